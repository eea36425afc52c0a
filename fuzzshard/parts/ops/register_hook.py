"""Hooks that users register on modules, and on the tensors that these return."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts import op

Hook = Literal[
    "forward_pre_hook",
    "forward_hook",
    "full_backward_pre_hook",
    "full_backward_hook",
    "output_hook",
]
_OF_FORWARDS: tuple[Hook, ...] = ("forward_pre_hook", "forward_hook")
_OF_BACKWARDS: tuple[Hook, ...] = ("full_backward_pre_hook", "full_backward_hook")
_OF_OUTPUTS: tuple[Hook, ...] = ("output_hook",)


class RegisterHook(op.Op, tag="register_hook", frozen=True, kw_only=True):
    """``register_{hook}()`` of the module ``target``, with a hook that multiplies what it may
    replace by ``scale``: inputs, outputs, or gradients of either. A power of two rounds nothing.
    An ``output_hook`` is ``Tensor.register_hook()`` of what each forward returns.

    Hooks of backwards are for leaf modules alone: others may return what such a hook is not called
    for ("module output should be a Tensor or a tuple of Tensors", torch/nn/modules/module.py). The
    tensor that is hooked is one that the module made: only leaves with parameters always do.
    """

    hook: Hook
    scale: float = 2.0
    target: str = ""

    sources = """
def scaling(scale, given=-1):  # a hook of the user: the last of what it is given, or another
    def hook(module, *values):
        scaled = lambda t: t * scale if t.is_floating_point() else t
        return tree_map_only(torch.Tensor, scaled, values[given])
    return hook

def hooking(scale):  # a hook of the user on the tensor that a module returns
    def hook(module, args, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * scale)
    return hook
"""
    meanings = {
        "user_hook:forward_pre_hook": "a hook of the user that changes the inputs of a module",
        "user_hook:forward_hook": "a hook of the user that changes the outputs of a module",
        "user_hook:full_backward_pre_hook": "a hook of the user that changes gradients of outputs",
        "user_hook:full_backward_hook": "a hook of the user that changes gradients of inputs",
        "user_hook:output_hook": "a hook of the user on the tensor that a module returns",
    }
    choices = (op.Choice("user_hooks", 10, 102),)
    comes = op.AMID_STEPS, 30

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        yield from at.recomputed_misfits("a hook")
        if self.hook not in _kinds(at.found, self.target):
            yield (
                f"no {self.hook} is called at {self.target!r}",
                "name a module whose forward is called, for hooks of backwards a leaf module",
            )
        if at.case.compile is not None:
            yield (
                "a hook is registered on a compiled model",
                "torch.compile may not see it (skip_nnmodule_hook_guards): compile nothing",
            )
        if at.changes_in_place:
            yield (
                "a hook returns new tensors, and iadd or the loss changes a tensor in place",
                "which tensor is changed would depend on the hook: remove either",
            )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"user_hook:{self.hook}"

    @property
    def _call(self) -> str:
        if self.hook == "output_hook":
            return f"register_forward_hook(hooking({self.scale}))"
        given = "" if self.hook != "full_backward_hook" else ", given=0"
        return f"register_{self.hook}(scaling({self.scale}{given}))"

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"{op.expression(self.target)}.{self._call}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        module = scope.at(self.target) if self.target else scope.called
        return [f"{module}.{self._call}"]

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        found = run.model.found
        target = run.tape.pick([path for path in found.modules if _kinds(found, path)])
        hook = run.tape.pick(_kinds(found, target))
        return (cls(hook=hook, scale=run.tape.pick((2.0, 0.5)), target=target),)


def _kinds(found: op.Inferred, path: str) -> tuple[Hook, ...]:
    """The hooks that are called at a module: none where its callers call a method of its own."""
    if path in found.leaves:
        makes = bool(found.leaves[path].parameters(1))
        return (*_OF_FORWARDS, *_OF_BACKWARDS, *_OF_OUTPUTS * makes)
    return _OF_FORWARDS if path in found.modules.keys() - found.by_method.keys() else ()
