"""The gradients of inputs."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class InputGradient(oracle.TensorOracle):
    """The gradients of inputs that require one, after each backward.

    It cannot see the gradients of what modules pass to each other.
    """

    name = "input_gradient"
    place = 60
    looks = ("inputs",)
    gradient = "input"
    handle = "expression"
    what = "gradient of an input"
    thing = "The gradient of {name}"

    @override
    def tensors(self, seen: oracle.Observer) -> oracle.Tensors:
        return ((name, x.grad) for name, x in seen.trainer.feed.differentiable())

    @override
    def pairs(self, watch: oracle.Watch, index: int) -> list[tuple[str, str]]:
        return [(name, f"{variable}.grad") for name, variable in watch.inputs.differentiable()]
