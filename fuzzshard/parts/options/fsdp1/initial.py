"""How units come to the values of a case."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import DrawingFSDP1, Reasons, SeenByFSDP1
from fuzzshard.parts.options.fsdp1 import FSDP1Option


class Initial(FSDP1Option):
    """How parameters get their values: all ranks have them; only the first rank has them; half of
    them, which ``apply()`` doubles; from ``param_init_fn`` on the meta device.
    """

    name, place, argument, further = "initial", 8, 7, True
    texts = {"first_rank": "sync_module_states=True", "meta": "param_init_fn=initialize"}
    traits = {
        "first_rank": ("spoils",),
        "applied": ("starts_halved",),
        "meta": ("starts_on_meta",),
    }
    meanings = {
        "fsdp1:initial_first_rank": "sync_module_states=True, and only the first rank has the "
        "right values",
        "fsdp1:initial_applied": "values that FSDP1's apply() makes right",
        "fsdp1:initial_meta": "a model on the meta device, and param_init_fn",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        drawn: str = drawing.tape.weighted(
            (
                *(("equal", 8), ("applied", 3)),
                *(() if drawing.case.ties else (("meta", 3),)),
                *((("first_rank", 2),) if drawing.cuda else ()),
            )
        )
        return drawn

    @override
    def needs_cuda(self, value: str) -> str | None:
        if value == "first_rank":
            return "FSDP1's sync_module_states needs parameters on CUDA devices"
        return None

    @override
    def excludes(self, value: str, seen: SeenByFSDP1) -> Reasons:
        if value == "meta" and seen.case.ties:
            source = "torch/nn/modules/module.py, to_empty: a parameter for each name"
            yield "a tie on the meta device", source
