"""``clip_grad_norm_()``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import UNSHARDED, Moment


class ClipGradNorm(op.Op, tag="clip_grad_norm", frozen=True, kw_only=True):
    """``clip_grad_norm_`` over all parameters; FSDP1 has a method of its own for it."""

    max_norm: float
    norm_type: float = 2.0

    says = "clip_grad_norm_({op.max_norm}, norm_type={op.norm_type})"
    lane = "optimizer"
    clips = takes_norm = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    meanings = {"op:clip": "clip_grad_norm_"}
    choices = (op.Choice("clip", 18, 4),)

    @override
    def check(self, at: op.Checked) -> None:
        if min(self.max_norm, self.norm_type) <= 0:
            raise InvalidCase("a norm is not positive", "use a positive number")

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.clip_norm_lines(f"{self.max_norm}, {self.norm_type}")

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
        norm_type = 1.0 if run.tape.chance(25) else 2.0
        return cls(max_norm=run.tape.pick((1.0, 0.25, 8.0)), norm_type=norm_type)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        yield (cls(max_norm=1.0), ops.update())
