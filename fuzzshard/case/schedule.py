"""The schedule: the training run as a small straight-line program of ops.

Every op means the same under every engine. Ops name modules by their path from the root (``""`` is
the root) and apply at the point where they stand.
"""

from __future__ import annotations

from typing import Literal

from fuzzshard.parts.part import Part


class Forward(Part, tag="forward", frozen=True, kw_only=True):
    """Runs ``target`` on input batch ``batch`` and keeps the loss pending for a later backward.

    The same ``batch`` number means the same tensors. ``grad=False`` runs under ``torch.no_grad()``
    and leaves nothing pending. ``outputs`` are the indices of the outputs that enter the loss
    (None: all).
    """

    batch: int = 0
    target: str = ""
    grad: bool = True
    outputs: tuple[int, ...] | None = None


class Backward(Part, tag="backward", frozen=True, kw_only=True):
    """Calls ``backward`` on the sum of all pending losses, or only on the oldest or newest one."""

    which: Literal["all", "oldest", "newest"] = "all"


class Step(Part, tag="step", frozen=True, kw_only=True):
    """``optimizer.step()``."""


class ZeroGrad(Part, tag="zero_grad", frozen=True, kw_only=True):
    """``optimizer.zero_grad(set_to_none=...)``."""

    set_to_none: bool = True


Flag = Literal[
    "requires_gradient_sync",
    "requires_all_reduce",
    "is_last_backward",
    "reshard_after_backward",
    "reshard_after_forward",
]
Ranks = Literal["all", "others"]
"""Which ranks an op runs on: ``others`` are all but rank 0."""


class SetFlag(Part, tag="set_flag", frozen=True, kw_only=True):
    """``FSDPModule.set_<flag>(value)`` on the wrapped modules below ``target``, or on it alone.

    For DDP the first two at the root are ``no_sync()``; the others have no counterpart.
    """

    flag: Flag
    value: bool
    target: str = ""
    recurse: bool = True


class SetRequiresGrad(Part, tag="set_requires_grad", frozen=True, kw_only=True):
    """``requires_grad_(value)`` on a parameter, or on every parameter of a module.

    ``engines_only`` leaves the reference as it is, as an upstream test does by mistake.
    """

    target: str
    value: bool
    ranks: Ranks = "all"
    engines_only: bool = False


class SetMode(Part, tag="set_mode", frozen=True, kw_only=True):
    """``model.train()`` or ``model.eval()``."""

    train: bool


class SetPath(Part, tag="set_path", frozen=True, kw_only=True):
    """From now on the calls with alternatives of the block ``target`` call alternative ``path``."""

    path: int
    target: str = ""
    ranks: Ranks = "all"


class SetDivideFactor(Part, tag="set_divide_factor", frozen=True, kw_only=True):
    """``FSDPModule.set_gradient_divide_factor(factor)`` on the wrapped modules below ``target``, or on it.

    Gradients are then the sum over the data-parallel ranks divided by ``factor``, not by their number.
    """

    factor: float
    target: str = ""
    recurse: bool = True

    def multiplies(self, shard_size: int) -> bool:
        """Whether torch reduce-scatters with ``PREMUL_SUM``, which gloo does not have.

        It does for factors other than the size of the shard axis; one of one rank has no reduce-scatter
        (``_get_gradient_divide_factors`` in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
        """
        return shard_size > 1 and self.factor != shard_size


class Unshard(Part, tag="unshard", frozen=True, kw_only=True):
    """``FSDPModule.unshard(async_op)`` on the wrapped modules below ``target``, or on it alone.

    ``wait``: the handles that an ``async_op`` returns are waited for, once all are there.
    """

    target: str = ""
    recurse: bool = True
    async_op: bool = False
    wait: bool = False

    @property
    def waits(self) -> bool:
        """Whether parameters are unsharded after it, and not only on their way."""
        return self.wait or not self.async_op


class Reshard(Part, tag="reshard", frozen=True, kw_only=True):
    """``FSDPModule.reshard()`` on the wrapped modules below ``target``, or on it alone."""

    target: str = ""
    recurse: bool = True


class Abort(Part, tag="abort", frozen=True, kw_only=True):
    """An iteration on batch ``batch`` that ends with an exception of ``target``, and the recovery.

    It is raised when the module is called, or in the backward of all outputs when the gradient of what the
    module has returned arrives. Then ``reset_iter_state()`` is called on the root, and ``zero_grad()``.
    """

    target: str
    batch: int = 0
    during: Literal["forward", "backward"] = "forward"


class ClipGradNorm(Part, tag="clip_grad_norm", frozen=True, kw_only=True):
    """``clip_grad_norm_`` over all parameters; FSDP1 has a method of its own for it."""

    max_norm: float
    norm_type: float = 2.0


class Cast(Part, tag="cast", frozen=True, kw_only=True):
    """``model.to(dtype)``; inputs are of this dtype from now on and the optimizer is made anew."""

    dtype: Literal["float32", "float64"]


class TakeStateDict(Part, tag="take_state_dict", frozen=True, kw_only=True):
    """Keeps ``model.state_dict()``; its tensors are the parameters' own and must follow every later step."""


class SaveState(Part, tag="save_state", frozen=True, kw_only=True):
    """Saves model and optimizer: through ``torch.distributed.checkpoint``, or as copied state dicts."""

    via: Literal["dcp", "state_dict"] = "dcp"


class CorruptState(Part, tag="corrupt_state", frozen=True, kw_only=True):
    """Zeroes every parameter and optimizer state in place, or builds model and optimizer anew.

    A model that is built anew has other initial values.
    """

    how: Literal["zero", "rebuild"] = "zero"


class LoadState(Part, tag="load_state", frozen=True, kw_only=True):
    """Loads what was saved last, the way it was saved.

    ``assign`` is that of ``load_state_dict``. A checkpoint is loaded in place, into the tensors of the state
    dicts, or with ``assign`` into copies that ``set_model_state_dict`` and its like are given.
    """

    assign: bool = False


Op = (
    Forward
    | Backward
    | Step
    | ZeroGrad
    | SetFlag
    | SetRequiresGrad
    | SetMode
    | SetPath
    | SetDivideFactor
    | Unshard
    | Reshard
    | Abort
    | ClipGradNorm
    | Cast
    | TakeStateDict
    | SaveState
    | CorruptState
    | LoadState
)
