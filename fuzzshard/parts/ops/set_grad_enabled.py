"""``torch.set_grad_enabled()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import op, ops


class SetGradEnabled(op.Op, tag="set_grad_enabled", frozen=True, kw_only=True):
    """``torch.set_grad_enabled(enabled)``, for all ops from now on: a region under ``no_grad``."""

    enabled: bool

    says = "torch.set_grad_enabled({op.enabled})"
    meanings = {"op:no_grad_region": "ops other than a forward while gradients are disabled"}

    @property
    @override
    def grad_enabled(self) -> bool:
        return self.enabled

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        if not self.enabled:
            yield "op:no_grad_region"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"torch.set_grad_enabled({self.enabled})"]

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        call = op.Call(batch=offered.batch, grad=False)
        yield (cls(enabled=False), ops.running(call), cls(enabled=True))
