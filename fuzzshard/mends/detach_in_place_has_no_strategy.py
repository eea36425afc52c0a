"""``DTensor`` has no sharding strategy for ``detach_``, which ``inference_mode`` makes it meet.

Torch detaches the results of a ``torch.autograd.Function`` in place where they require no gradient
(``_process_backward_mode_ad`` in ``torch/csrc/autograd/custom_function.cpp``), and
``DTensor.redistribute`` and ``full_tensor`` are such functions. Autograd handles ``aten.detach_``
itself where it is on. Under ``torch.inference_mode()`` it is off, and the operator comes to the
dispatcher of DTensor, whose table has ``aten.detach`` and not ``aten.detach_``
(``torch/distributed/tensor/_ops/_tensor_ops.py``). Both need the same strategy.
"""

from fuzzshard.mending import Patch, Promise, Public, Releases

TITLE = "DTensor: an evaluation under inference_mode fails, as detach_ has no strategy"
COMPONENT = "DTensor"
CONTRACT = Promise(
    "InferenceMode is analogous to :class:`~no_grad` and should be used when you are certain your "
    "operations will not interact with autograd (e.g., during data loading or model evaluation).",
    "torch.autograd.grad_mode.inference_mode",
)
SETUP = "A model with tensor parallelism is evaluated under ``torch.inference_mode()``."
WORKAROUND = "Evaluate under ``torch.no_grad()``."
TORCH = Releases(since="2.11", until="2.13")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/167917",
        "fixed by pytorch PR 181876, in torch 2.13",
        "Operator aten.detach_.default does not have a sharding strategy registered "
        "inference_mode DTensor",
        "2026-11-25",
    ),
)


def apply(patch: Patch) -> None:
    """Gives ``detach_`` the strategy of ``detach``."""
    import torch
    from torch.distributed.tensor import DTensor

    propagator, aten = DTensor._op_dispatcher.sharding_propagator, torch.ops.aten
    strategies = propagator.op_strategy_funcs
    known = {aten.detach_.default: strategies[aten.detach.default], **strategies}
    patch(propagator, "op_strategy_funcs", known)
