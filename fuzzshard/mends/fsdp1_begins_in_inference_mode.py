"""FSDP1 makes the tensors of its flat parameters in the first forward, in whatever mode that runs.

``_lazy_init`` (``torch/distributed/fsdp/_runtime_utils.py``) runs when the first forward begins,
and ``_share_state_and_init_handle_attrs`` allocates what flat parameters are gathered into. Under
``torch.inference_mode()`` these are inference tensors. The next forward with gradients makes a
flat parameter of one of them, for which autograd records nothing, and finds no ``grad_fn`` to put
its post-backward hook on. Only the allocations have to leave the mode.
"""

from fuzzshard.mending import Edit, Promise, Public, Releases

TITLE = "FullyShardedDataParallel: training raises when the first forward ran under inference_mode"
COMPONENT = "FSDP1"
WEIGHT = "limitation"
CONTRACT = Promise(
    "Tests that FSDP works under inference mode and produces the same output as under no grad mode.",
    "pytorch issue 113203, a maintainer's test",
)
SETUP = (
    "A training script evaluates under ``torch.inference_mode()`` before its first step. The first "
    "training step raises. After a first training step, the same evaluation does no harm."
)
WORKAROUND = "Use ``torch.no_grad()`` for forwards that come before the first training step."
TORCH = Releases(since="2.11")
PUBLIC = (
    Public(
        "https://github.com/pytorch/pytorch/issues/113203",
        "closed in 2023 without a change",
        "inference_mode before training results in FSDP AssertionError grad_fn AccumulateGrad",
        "2026-11-25",
    ),
)
EDITS = (
    Edit(
        "torch.distributed.fsdp._runtime_utils:_lazy_init",
        """
        _share_state_and_init_handle_attrs(state, root_module)
        """,
        """
        with torch.inference_mode(False):
            _share_state_and_init_handle_attrs(state, root_module)
        """,
    ),
)
