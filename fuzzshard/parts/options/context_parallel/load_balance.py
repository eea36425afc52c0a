"""``enable_load_balance``: which positions a rank has."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.context_parallel import ContextParallelOption


class LoadBalance(ContextParallelOption):
    """By default a rank has the next part from the beginning and the next from the end: later
    positions attend to more.
    """

    name, label = "load_balance", "enable_load_balance"
    texts = {False: "_cp_options.enable_load_balance = False"}
    traits = {True: ("balances",)}
    meanings = {"context_parallel:in_order": "positions lie on the ranks in order, unbalanced"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        return case.inputs.seq % (2 * case.mesh.shard) == 0 and not tape.chance(40)
