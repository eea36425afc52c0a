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

    ``norm_type`` "can be ``'inf'`` for infinity norm" (torch/nn/utils/clip_grad.py). "If True, an
    error is thrown if the total norm of the gradients ... is ``nan``, ``inf``, or ``-inf``": the
    program catches it and makes zeros of the gradients, so that what follows shows on which ranks
    it came. FSDP1 has no such argument and returns the norm, which the program looks at.
    """

    max_norm: float
    norm_type: float | Literal["inf"] = 2.0
    error_if_nonfinite: bool = False

    says = "clip_grad_norm_({op.max_norm}, norm_type={op.norm_type!r}{op.told})"
    lane = "optimizer"
    clips = takes_norm = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    meanings = {
        "op:clip": "clip_grad_norm_",
        "op:clip_by_largest": "clip_grad_norm_ with the infinity norm",
        "op:clip_finite": "clip_grad_norm_ with error_if_nonfinite",
    }
    choices = (op.Choice("clip", 18, 4, of_stages=True),)

    @property
    def told(self) -> str:
        """Return what else a program says."""
        return ", error_if_nonfinite=True" if self.error_if_nonfinite else ""

    @override
    def check(self, at: op.Checked) -> None:
        if min(self.max_norm, float(self.norm_type)) <= 0:
            raise InvalidCase("a norm is not positive", "use a positive number")

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:clip"
        if self.norm_type == "inf":
            yield "op:clip_by_largest"
        if self.error_if_nonfinite:
            yield "op:clip_finite"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        told = f"{self.max_norm}, {self.norm_type!r}"
        return scope.clip_norm_lines(told, finite=self.error_if_nonfinite)

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
        largest = run.tape.pick((1.0, 0.25, 8.0))
        overflows = run.case.optimizer.does("scales")
        finite = run.tape.chance(70 if overflows else 20)
        return cls(max_norm=largest, norm_type=norm_type, error_if_nonfinite=finite)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        yield (cls(max_norm=1.0), ops.update())
        yield (cls(max_norm=1.0, norm_type="inf"), ops.update())
        yield (cls(max_norm=1.0, error_if_nonfinite=True), ops.update())
