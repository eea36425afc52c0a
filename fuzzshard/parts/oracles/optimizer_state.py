"""The states of the optimizer after a step: what decides later steps."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class OptimizerState(oracle.StateOracle):
    """The states of the optimizer after a step: moments and momentum buffers.

    It comes after ``parameter``, in which a wrong step shows as well.

    It cannot see the states of FSDP1, which belong to flat parameters.
    """

    name = "optimizer_state"
    place = 115
    looks = ("trained",)
    what = "state of the optimizer after a step"
    thing = "{name} after the optimizer step"

    @override
    def record(self, seen: oracle.Observer, index: int, look: str) -> None:
        case = seen.trainer.case
        if case.schedule[index].updates and seen.engine.registers:
            super().record(seen, index, look)

    @override
    def entries(self, watch: oracle.Watch, index: int) -> str:
        return super().entries(watch, index) if watch.ops[index].updates else ""
