"""``foreach``: the implementation over lists."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing
from fuzzshard.parts.options.optimizer import OptimizerOption


class Foreach(OptimizerOption):
    """Whether the optimizer takes tensors in lists; DTensors on different meshes go in none."""

    name, extension, for_matrices = "foreach", Choice("foreach", 12, 0), False
    traits = {True: ("steps_lists", "may_step_lists"), None: ("may_step_lists",)}
    meanings = {"optimizer:foreach": "foreach=True", "optimizer:no_foreach": "foreach=False"}

    @override
    def arguments(self, value: bool | None) -> tuple[str, ...]:
        return () if value is None else (f"foreach={value}",)

    @override
    def features(self, value: bool) -> Iterator[str]:
        yield f"optimizer:{'foreach' if value else 'no_foreach'}"

    @override
    def value(self, drawing: Drawing) -> bool | None:
        if drawing.case.tensor_parallel:  # which makes DTensors on different meshes
            return False
        return drawing.tape.chance(60) if "foreach" in drawing.swarm else None
