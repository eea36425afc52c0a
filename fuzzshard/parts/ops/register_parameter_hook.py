"""Hooks that users register on parameters."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts import op

Hook = Literal["tensor_hook", "post_accumulate_grad_hook", "step_in_backward"]
_HOOKS: dict[Hook, str] = {
    "tensor_hook": "lambda gradient: gradient * {}",
    "post_accumulate_grad_hook": "scaling_grad({})",
    "step_in_backward": "stepping({})",
}


class RegisterParameterHook(op.Op, tag="register_parameter_hook", frozen=True, kw_only=True):
    """A hook on the parameter ``target`` that multiplies its gradient by ``scale``: what a
    backward brings (``register_hook``), or all that has accumulated
    (``register_post_accumulate_grad_hook``). A power of two rounds nothing.

    ``step_in_backward``: once the gradient has accumulated, a step of SGD with the learning rate
    ``scale`` takes it, so that no more than one gradient is held at a time.
    """

    hook: Hook
    scale: float = 2.0
    target: str

    wants_sharded = True
    sources = """
def scaling_grad(scale):  # a hook of the user on a parameter
    def hook(p):
        if p.grad is not None:  # frozen since forward
            p.grad.mul_(scale)
    return hook

def stepping(rate):  # a hook of the user on a parameter: an optimizer that steps within backward
    def hook(p):
        if p.grad is not None:  # frozen since forward
            with torch.no_grad():
                p.sub_(p.grad, alpha=rate)
            p.grad = None
    return hook
"""
    meanings = {
        "user_hook:tensor_hook": "a hook of the user that changes what a backward brings a "
        "parameter",
        "user_hook:post_accumulate_grad_hook": "a hook of the user that changes the accumulated "
        "gradient of a parameter",
        "user_hook:step_in_backward": "a step of an optimizer within the backward, as soon as a "
        "parameter has its gradient",
    }
    choices = (
        op.Choice("parameter_hooks", 8, 104),
        op.Choice("step_in_backward", 3, 109, excludes=("set_reshard", "any_moment", "compile")),
    )
    comes = op.AMID_STEPS, 30

    @property
    def _is_late(self) -> bool:
        """Whether it is on all that has accumulated."""
        return self.hook != "tensor_hook"

    @override
    def follow(self, at: op.ScheduleState) -> None:
        if self._is_late:
            at.hooked.add(self.target)
        if self.hook == "step_in_backward":
            at.stepped.add(self.target)

    @property
    def _call(self) -> str:
        when = "post_accumulate_grad_" if self._is_late else ""
        return f"register_{when}hook({self._function})"

    @property
    def _function(self) -> str:
        return _HOOKS[self.hook].format(self.scale)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if self.target not in at.found.parameters:
            yield (
                f"a hook is registered on {self.target!r}, which is no parameter",
                "name a parameter",
            )
        if self.target in at.frozen:
            yield (
                f"a hook is registered on the frozen parameter {self.target!r}",
                "torch cannot register a hook on a tensor that does not require a gradient",
            )
        if self.hook == "step_in_backward" and at.case.optimizer.grad_scaler:
            yield (
                "a GradScaler, and steps within backwards that take scaled gradients",
                "leave one of the two out",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"user_hook:{self.hook}"
        if self.hook == "tensor_hook" and at.is_managed(self.target):
            yield "user_hook:tensor_hook_sharded"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"{op.expression(self.target)}.{self._call}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        parameter = scope.at(self.target)
        registered = [f"{parameter}.{self._call}"]
        if not (self._is_late and scope.keeps_hooks):
            return registered
        return scope.either([f"hooks.append(({parameter}, {self._function}))"], registered)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        if moment == "step_begins" and run.allows("step_in_backward", 90):
            run.add(*cls._stepping(run))
        else:
            super().draw(run, moment)

    @classmethod
    def _stepping(cls, run: op.Run) -> tuple[op.Op, ...]:
        """Who steps within backward does so for all parameters."""
        rate = run.tape.pick((0.125, 0.5))
        targets = sorted(run.trainable - run.at.stepped)
        return tuple(cls(hook="step_in_backward", scale=rate, target=t) for t in targets)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        """Return fewer of the hooks that few engines run."""
        hook: Hook = "post_accumulate_grad_hook"
        targets = run.trainable
        if not targets:
            return ()
        if (whole := run.whole) and run.tape.chance(30):
            hook, targets = "tensor_hook", whole
        scale = run.tape.pick((2.0, 0.5))
        return (cls(hook=hook, scale=scale, target=run.tape.pick(sorted(targets))),)
