"""The options of the engine ``context_parallel``."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import override

from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of


class ContextParallel(WithOptions["ContextParallelOption"], frozen=True, kw_only=True):
    """Options of the engine ``context_parallel``."""

    load_balance: bool = True
    rotate_method: Literal["allgather", "alltoall"] = "allgather"


class ContextParallelOption(Option):
    """One of them; its arguments are statements."""

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a case that has all but these."""
        return self.default


class LoadBalance(ContextParallelOption):
    """By default a rank has the next part from the beginning and the next from the end: later
    positions attend to more.
    """

    name = "load_balance"
    texts = {False: "_cp_options.enable_load_balance = False"}
    meanings = {"context_parallel:in_order": "positions lie on the ranks in order, unbalanced"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        return case.inputs.seq % (2 * case.mesh.shard) == 0 and not tape.chance(40)


class RotateMethod(ContextParallelOption):
    """By default one all-gather; or each rank sends to the next, in as many steps as ranks."""

    name = "rotate_method"
    texts = {"alltoall": 'set_rotate_method("alltoall")'}
    meanings = {"context_parallel:ring": "keys and values go from rank to rank"}

    @override
    def draw(self, tape: Tape, case: Case) -> str:
        return "alltoall" if tape.chance(50) else self.default


CONTEXT_PARALLEL_OPTIONS = options_of(ContextParallel, ContextParallelOption)
"""In the order of their fields."""
