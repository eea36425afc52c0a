"""``torch.amp.GradScaler``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import Drawing
from fuzzshard.parts.options.optimizer import OptimizerOption

_SCALES = {"finite": "1024.0, growth_interval=1", "infinite": 'float("inf")'}


class GradScaler(OptimizerOption):
    """Whether losses are scaled for their backward, and steps unscale gradients.

    A scale that is ``infinite`` at first makes gradients overflow in every precision: the first
    step is skipped, and ``update()`` sets a finite scale after it, as after every other step.
    ``growth_interval=1`` doubles a ``finite`` scale after every step.

    It is for gradients of one kind: torch checks those of a device and dtype in one list, which
    must not have both DTensors and others (``_amp_foreach_non_finite_check_and_unscale_``).
    """

    name, place = "grad_scaler", 100
    extension = Choice(
        "grad_scaler", 12, 102, needs=("several_steps",), excludes=("lr_scheduler",)
    )
    traits = {"finite": ("scales",), "infinite": ("scales",)}
    meanings = {
        "optimizer:scaled": "a GradScaler that doubles its scale after every step",
        "optimizer:skipped": "a GradScaler that skips the first step: it is infinite",
    }

    @override
    def scaler(self, value: str | None) -> str:
        return f"torch.amp.GradScaler(device, init_scale={_SCALES[value]})" if value else ""

    @override
    def update(self, value: str | None) -> str:
        return f"scaler.update({'1024.0' if value == 'infinite' else ''})"

    @override
    def features(self, value: str) -> Iterator[str]:
        yield "optimizer:skipped" if value == "infinite" else "optimizer:scaled"

    @override
    def value(self, drawing: Drawing) -> str | None:
        mixes = drawing.case.tensor_parallel or None in drawing.found.owners.values()
        if self.name not in drawing.swarm or mixes:
            return None
        return "infinite" if drawing.tape.chance(40) else "finite"
