"""``GradScaler.unscale_()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import UNSHARDED, Moment, Never

_ACCUMULATED = Never(
    "should only be called once per optimizer per :meth:`step` call, and only after all gradients "
    "for that optimizer's assigned parameters have been accumulated",
    "torch.amp.GradScaler.unscale_",
)


class Unscale(op.Op, tag="unscale", frozen=True, kw_only=True):
    """``GradScaler.unscale_()`` before a step, which does not do it again then: "to modify or
    inspect gradients between the backward pass(es) and :meth:`step`".
    """

    says = "scaler.unscale_(optimizer)"
    lane = "optimizer"
    clips = unscales = of_optimizer = True
    looks = ("gradients",)
    never = {
        "before_first_forward": _ACCUMULATED,
        "forward_to_backward": UNSHARDED,
        "between_microbatches": _ACCUMULATED,
        "after_step": _ACCUMULATED,
    }
    meanings = {"op:unscale": "GradScaler.unscale_ before a step"}

    @override
    def check(self, at: op.Checked) -> None:
        at.check_scaled()
        if not at.case.optimizer.does("scales"):
            raise InvalidCase("there is no scale", "give the optimizer a grad_scaler")
        if at.unscaled or not at.backwards:
            raise InvalidCase(
                "gradients have no scale any more", "put a backward before it, and no step"
            )

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return [f"scaler.unscale_({name})" for name in scope.case.optimizer.each]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        scales = run.case.optimizer.does("scales")
        if scales and moment == "before_step" and not run.restore and run.tape.chance(50):
            run.ops.append(cls())

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls(),) if run.case.optimizer.does("scales") else ()

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        if offered.case.optimizer.does("scales"):
            yield (cls(), ops.update())
