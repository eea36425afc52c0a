"""A module without parameters."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from fuzzshard.parts.leaf import DrawingLeaf, Kind, Leaf

Function = Literal["relu", "gelu", "tanh"]
_CLASSES: dict[Function, str] = {"relu": "ReLU()", "gelu": "GELU()", "tanh": "Tanh()"}


def _draw(drawing: DrawingLeaf) -> Activation:
    return (
        Activation()
        if drawing.exact
        else drawing.tape.pick(tuple(Activation(fn=fn) for fn in _CLASSES))
    )


class Activation(Leaf, tag="activation", frozen=True, kw_only=True):
    """A parameterless module: ``nn.ReLU()``, ``nn.GELU()`` or ``nn.Tanh()``."""

    fn: Function = "relu"

    complexity, noun, prefix = 0, "activation", "act"
    has_parameters = False
    styles = ("elementwise",)
    kinds = (Kind("activation", "a module without parameters", 11, _draw, exact=True),)

    @override
    def constructor(self, width: int) -> str:
        return f"nn.{_CLASSES[self.fn]}"

    @override
    def simpler(self) -> Activation:
        return Activation()
