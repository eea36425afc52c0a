"""Hooks that users register on parameters."""

from __future__ import annotations

from typing import Literal, Self

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op
from fuzzshard.parts.moments import Moment

Hook = Literal["tensor_hook", "post_accumulate_grad_hook"]
_CALLS: dict[Hook, str] = {
    "tensor_hook": "register_hook(lambda gradient: gradient * {})",
    "post_accumulate_grad_hook": "register_post_accumulate_grad_hook(scaling_grad({}))",
}


class RegisterParameterHook(op.Op, tag="register_parameter_hook", frozen=True, kw_only=True):
    """A hook on the parameter ``target`` that multiplies its gradient by ``scale``: what a
    backward brings (``register_hook``), or all that has accumulated
    (``register_post_accumulate_grad_hook``). A power of two rounds nothing.
    """

    hook: Hook
    scale: float = 2.0
    target: str

    meanings = {
        "user_hook:tensor_hook": "a hook of the user that changes what a backward brings a "
        "parameter",
        "user_hook:post_accumulate_grad_hook": "a hook of the user that changes the accumulated "
        "gradient of a parameter",
    }
    choices = (op.Choice("parameter_hooks", 8, 104),)

    @property
    @override
    def wants_sharded(self) -> bool:
        """It is registered on the sharded parameter, which is the one that stays."""
        return True

    @property
    @override
    def hooked(self) -> op.Hooked:
        return op.Hooked(self.target, accumulated=self.hook == "post_accumulate_grad_hook")

    @override
    def check(self, at: op.Checked) -> None:
        if self.target not in at.found.parameters:
            raise InvalidCase(
                f"a hook is registered on {self.target!r}, which is no parameter",
                "name a parameter",
            )
        if self.target in at.frozen:
            raise InvalidCase(
                f"a hook is registered on the frozen parameter {self.target!r}",
                "torch cannot register a hook on a tensor that does not require a gradient",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"user_hook:{self.hook}"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"{op.expression(self.target)}.{_CALLS[self.hook].format(self.scale)}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return [f"{scope.at(self.target)}.{_CALLS[self.hook].format(self.scale)}"]

    @override
    def lines(self, program: op.Program, index: int) -> list[str]:
        return [*self.lines_again(program), *program.look(index)]

    @override
    def lines_again(self, program: op.Program) -> list[str]:
        """The reference runs hooks on what has accumulated when its gradients are averaged."""
        scope = program.scope
        registered = self.settings(scope)
        if not (self.hooked.accumulated and program.keeps_hooks):
            return registered
        kept = f"hooks.append(({scope.at(self.target)}, scaling_grad({self.scale})))"
        return scope.either([kept], registered)

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        moments = ("step_begins", "before_second_forward", "before_backward", "between_rounds")
        if moment in moments and run.allows("parameter_hooks", 30):
            run.ops += cls._drawn(run)

    @classmethod
    @override
    def draw_at(cls, run: op.Run, moment: Moment) -> tuple[op.Op, ...]:
        return cls._drawn(run) if "parameter_hooks" in run.swarm else ()

    @classmethod
    def _drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        """Of the hooks that few engines run, fewer."""
        hook: Hook = "tensor_hook" if run.tape.chance(30) else "post_accumulate_grad_hook"
        scale = run.tape.pick((2.0, 0.5))
        trainable = sorted(run.trainable)
        if not trainable:
            return ()
        return (cls(hook=hook, scale=scale, target=run.tape.pick(trainable)),)

    @classmethod
    @override
    def additions(cls, offered: op.Offered) -> op.Additions:
        yield (
            cls(hook="post_accumulate_grad_hook", target=offered.rng.choice(offered.parameters)),
        )

    @override
    def mended(self, names: op.Names) -> Self | None:
        target = names.with_parameters(self.target)
        return None if target is None else replace(self, target=target)
