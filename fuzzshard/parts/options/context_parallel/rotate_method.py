"""``set_rotate_method``: how keys and values come to all ranks."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.context_parallel import ContextParallelOption


class RotateMethod(ContextParallelOption):
    """By default one all-gather; or each rank sends to the next, in as many steps as ranks."""

    name, label = "rotate_method", "set_rotate_method"
    texts = {"alltoall": 'set_rotate_method("alltoall")'}
    meanings = {"context_parallel:ring": "keys and values go from rank to rank"}

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        return "alltoall" if tape.chance(50) else self.default
