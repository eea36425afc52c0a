"""Hooks that users register on optimizers."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts import op

Hook = Literal["step_pre_hook", "step_post_hook"]
_SCALING: dict[Hook, str] = {
    "step_pre_hook": "scaling_gradients",
    "step_post_hook": "scaling_parameters",
}


class RegisterStepHook(op.Op, tag="register_step_hook", frozen=True, kw_only=True):
    """``optimizer.register_{hook}()``, with a hook that multiplies all gradients before a step, or
    all parameters after it, by ``scale``. A power of two rounds nothing.

    It is a hook of this optimizer: one that is made anew does not have it.
    """

    hook: Hook
    scale: float = 0.5

    lane = "optimizer"
    of_optimizer = True
    sources = """
def scaling_gradients(scale):  # a hook of the user on an optimizer
    def hook(optimizer, args, kwargs):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.grad is not None:
                p.grad.mul_(scale)
    return hook

def scaling_parameters(scale):  # a hook of the user on an optimizer
    @torch.no_grad()
    def hook(optimizer, args, kwargs):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.mul_(scale)
    return hook
"""
    meanings = {
        "user_hook:step_pre_hook": "a hook of the user that changes gradients before a step",
        "user_hook:step_post_hook": "a hook of the user that changes parameters after a step",
    }
    choices = (op.Choice("step_hooks", 6, 105),)
    comes = ("step_begins", "before_step"), 40

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        optimizer = at.case.optimizer
        if optimizer.grad_scaler and "fused" in optimizer.flags:
            yield (
                "hooks of a fused step run where a GradScaler skips it, which others do not begin "
                "(torch/amp/grad_scaler.py, step: 'customized scale-handling logic, so we can "
                "call optimizer.step() directly')",
                "do without one of them",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"user_hook:{self.hook}"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"optimizer.register_{self.hook}({_SCALING[self.hook]}({self.scale}))"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return [self.statement(0)]

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        return (cls(hook=run.tape.pick((*_SCALING,)), scale=run.tape.pick((0.5, 2.0))),)
