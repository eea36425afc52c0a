"""``model.to(dtype)``."""

from __future__ import annotations

from typing import Literal, Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.moments import MODIFIED, Moment, Never
from fuzzshard.parts.ops.set_grad_dtype import dtype_misfits

_LATE = Never(
    "Initialize mixed precision attributes lazily in case the user changes the parameter dtypes "
    "after construction time but before forward",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, lazy_init",
)


class Cast(op.Op, tag="cast", frozen=True, kw_only=True):
    """``model.to(dtype)``; inputs are of this dtype from now on and the optimizer is made anew."""

    dtype: Literal["float32", "float64"]

    says = "model.to({op.dtype})"
    never = {
        "forward_to_backward": MODIFIED,
        "between_microbatches": _LATE,
        "backward_to_step": _LATE,
        "after_step": _LATE,
    }
    meanings = {
        "op:cast": "a cast of the wrapped model",
        "op:cast_before_forward": "a cast between wrapping and the first forward",
    }
    choices = (
        # what was saved has one dtype
        op.Choice("cast", 17, 2, excluded_by=("save_load", "other_dtypes"), new=True),
    )

    @classmethod
    def to_other(cls, dtype: str) -> Self:
        """Return the cast to the dtype that is not ``dtype``."""
        return cls(dtype="float64" if dtype == "float32" else "float32")

    @property
    @override
    def casts_to(self) -> Literal["float32", "float64"]:
        return self.dtype

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.cast_to(self.dtype)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.changed_misfits()
        policies = [group.precision for group in at.case.wrap]
        if any(policy.keep for policy in policies if policy):
            yield (
                "param_dtype_override_fn names a dtype once, and the model is cast later",
                "remove one of the two",
            )
        yield from dtype_misfits(at)

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:cast"
        if not at.has_run:
            yield "op:cast_before_forward"

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        super().run(trainer, index)
        trainer.engine.take_dtype(self.dtype)
        trainer.feed.batches.clear()

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return [*self.settings(scope), *scope.renewed]

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"{scope.called}.to(torch.{self.dtype})", *scope.event_lines]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "between_steps" and "cast" in run.swarm:
            run.between[0].append(cls.to_other(run.case.dtype))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls.to_other(run.case.dtype),) if "cast" in run.swarm else ()
