"""``Tensor.grad_dtype``."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.dtypes import DIGITS, Dtype
from fuzzshard.parts.moments import Never
from fuzzshard.parts.ops.unshard import Unshard

_LATE = Never(
    "Parameter dtypes and grad_dtype may change (e.g. module.bfloat16()) until lazy "
    "initialization at the first forward or FSDPModule.unshard; later changes are unsupported.",
    "torch/distributed/fsdp/_fully_shard/_fully_shard.py, fully_shard",
)
_WEIGHTS: Mapping[Dtype | None, int] = {"bfloat16": 4, "float64": 4, None: 1, "float32": 1}
"""What is drawn; few optimizers take the first ones."""

COPIED_GRADIENTS = (
    "an average is a copy of parameters with gradients of another dtype",
    "torch/_tensor.py, __deepcopy__, gives the copy of a DTensor the gradient and not its "
    "grad_dtype: leave one of the two out",
)
"""Why one schedule has not both."""


class SetGradDtype(op.Op, tag="set_grad_dtype", frozen=True, kw_only=True):
    """Sets ``grad_dtype`` of a parameter, or of every parameter of a module, to ``dtype``; None
    for gradients of any dtype.
    """

    target: str
    dtype: Dtype | None = None

    says = "{at}.grad_dtype = {op.value}"
    never = {
        "forward_to_backward": _LATE,
        "between_microbatches": _LATE,
        "backward_to_step": _LATE,
        "after_step": _LATE,
    }
    meanings = {
        "op:grad_dtype_any": "a parameter with gradients of any dtype",
        "op:grad_dtype_own": "a parameter with gradients of its dtype, if that is cast too",
        "op:grad_dtype_narrower": "a parameter with gradients of fewer bits",
        "op:grad_dtype_wider": "a parameter with gradients of more bits",
    }
    choices = (op.Choice("grad_dtype", 8, 110, new=True),)

    @property
    def value(self) -> str:
        """The expression for what it sets."""
        return "None" if self.dtype is None else f"torch.{self.dtype}"

    @property
    @override
    def retypes(self) -> op.Retyped:
        return op.Retyped(self.target, self.dtype)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.target_misfits()
        if at.averaged:
            yield COPIED_GRADIENTS
        if any(each.begins or isinstance(each, Unshard) for each in at.ops):
            yield (
                "grad_dtype is set after a forward or an unshard",
                f"move the op: {_LATE.why!r} ({_LATE.source})",
            )
        yield from dtype_misfits(at)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if self.dtype is None:
            yield "op:grad_dtype_any"
            return
        more = DIGITS[self.dtype] - DIGITS[at.cast or at.case.dtype]
        yield f"op:grad_dtype_{'wider' if more > 0 else 'narrower' if more else 'own'}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return scope.attribute_lines(self.target, f"grad_dtype = {self.value}")

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "between_steps" and "grad_dtype" in run.swarm:
            for _ in range(1 + run.tape.chance(40)):
                run.between[0] += cls.drawn(run)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        """Return ops for all parameters, a module's or one, of a dtype that steps take."""
        target = run.pick_parameters()
        fitting = [
            (made, weight)
            for dtype, weight in _WEIGHTS.items()
            if run.at.why_not(made := cls(target=target, dtype=dtype)) is None
        ]
        return (run.tape.weighted(fitting),) if fitting else ()


def dtype_misfits(at: op.Checker) -> op.Reasons:
    """Yield that steps would get gradients of another dtype than that of the parameter, if the
    optimizer takes none.

    With ``foreach`` some pass where torch takes them for states ("Tensors of the same index
    must be on the same device and the same dtype except [...]",
    ``_group_tensors_by_device_and_dtype``); a ``GradScaler`` takes none of float16
    ("Attempting to unscale FP16 gradients.", torch/amp/grad_scaler.py).
    """
    if not at.takes_gradients:
        yield (
            f"steps of {at.case.optimizer.kind} take no gradients of another dtype than that of "
            "the parameter",
            "torch/optim mixes both with the state of a parameter in one op or list, and a "
            "GradScaler takes none of float16: set another grad_dtype, or another optimizer",
        )
