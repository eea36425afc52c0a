"""``clip_grad_norm_()``."""

from __future__ import annotations

from typing import Literal, Self

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import UNSHARDED, Moment

_NORMS: tuple[tuple[float | Literal["inf"], int], ...] = ((2.0, 11), (1.0, 5), ("inf", 4))


class ClipGradNorm(op.Op, tag="clip_grad_norm", frozen=True, kw_only=True):
    """``clip_grad_norm_`` over all parameters; FSDP1 has a method of its own for it.

    ``norm_type`` "can be ``'inf'`` for infinity norm" (torch/nn/utils/clip_grad.py).
    """

    max_norm: float
    norm_type: float | Literal["inf"] = 2.0

    says = "clip_grad_norm_({op.max_norm}, norm_type={op.norm_type!r})"
    lane = "optimizer"
    clips = takes_norm = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    meanings = {
        "op:clip": "clip_grad_norm_",
        "op:clip_by_largest": "clip_grad_norm_ with the infinity norm",
    }
    choices = (op.Choice("clip", 18, 4, of_stages=True),)

    @override
    def check(self, at: op.Checked) -> None:
        if min(self.max_norm, float(self.norm_type)) <= 0:
            raise InvalidCase("a norm is not positive", "use a positive number")

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:clip"
        if self.norm_type == "inf":
            yield "op:clip_by_largest"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.clip_norm_lines(f"{self.max_norm}, {self.norm_type!r}")

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "before_step" and not run.restore and run.allows("clip", 75):
            run.ops.append(cls._drawn(run))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls._drawn(run),) if "clip" in run.swarm else ()

    @classmethod
    def _drawn(cls, run: op.Run) -> Self:
        norm_type = run.tape.weighted(_NORMS)
        return cls(max_norm=run.tape.pick((1.0, 0.25, 8.0)), norm_type=norm_type)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        yield (cls(max_norm=1.0), ops.update())
        yield (cls(max_norm=1.0, norm_type="inf"), ops.update())
