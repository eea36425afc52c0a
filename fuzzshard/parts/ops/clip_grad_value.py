"""``clip_grad_value_()``."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op, ops
from fuzzshard.parts.moments import UNSHARDED, Moment


class ClipGradValue(op.Op, tag="clip_grad_value", frozen=True, kw_only=True):
    """``clip_grad_value_`` over all parameters. It is elementwise, so a shard needs no other."""

    clip_value: float

    says = "clip_grad_value_({op.clip_value})"
    lane = "optimizer"
    clips = True
    looks = ("gradients",)
    never = {"forward_to_backward": UNSHARDED}
    meanings = {"op:clip_value": "clip_grad_value_"}
    choices = (op.Choice("clip_value", 12, 101, of_stages=True),)

    @override
    def check(self, at: op.Checked) -> None:
        if self.clip_value <= 0:
            raise InvalidCase("a gradient is clipped to no range", "use a positive number")

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        """Clips one by one where foreach refuses the list: DTensors beside others."""
        foreach = ", foreach=False" if scope.mixes_kinds else ""
        return [
            f"if any(p.grad is not None for p in {scope.trained}):  # torch raises elsewhere",
            f"    torch.nn.utils.clip_grad_value_({scope.trained}, {self.clip_value}{foreach})",
        ]

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "before_step" and not run.restore and run.allows("clip_value", 75):
            run.ops.append(cls._drawn(run))

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return (cls._drawn(run),) if "clip_value" in run.swarm else ()

    @classmethod
    def _drawn(cls, run: op.Run) -> Self:
        return cls(clip_value=run.tape.pick((0.5, 0.125, 2.0)))

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        yield (cls(clip_value=0.5), ops.update())
