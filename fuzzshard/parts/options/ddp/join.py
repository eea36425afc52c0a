"""``join()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Reasons, Replicated, Tape
from fuzzshard.parts.options.ddp import DDPOption


class Join(DDPOption):
    """Trains within ``ddp.join()``.

    It divides by the ranks there were at first or by those left, raises where a rank is done, or
    is off. Buffers are the last rank's then, "since rank 0 may already have been joined"
    (``_sync_buffers``).
    """

    name, place, of_wrapper = "join", 10, True
    texts = {
        "initial": "",
        "effective": "divide_by_initial_world_size=False",
        "throwing": "throw_on_early_termination=True",
        "off": "enable=False",
    }
    traits = dict.fromkeys(("initial", "effective", "throwing"), ("ends_with_last_rank",))
    meanings = {
        "ddp:join_initial": "training within join()",
        "ddp:join_effective": "training within join(divide_by_initial_world_size=False)",
        "ddp:join_throwing": "training within join(throw_on_early_termination=True)",
        "ddp:join_off": "training within join(enable=False)",
    }

    @override
    def draw(self, tape: Tape, seen: Replicated) -> str | None:
        return tape.weighted(
            ((None, 4), ("initial", 3), ("effective", 3), ("throwing", 3), ("off", 3))
        )

    @override
    def arguments(self, value: str | None) -> tuple[str, ...]:
        return ()

    @override
    def context(self, value: str | None, engine: str) -> str:
        return "" if value is None else f"{engine}.join({self.texts[value]})"

    @override
    def excludes(self, value: str | None, seen: Replicated) -> Reasons:
        if seen.by_replicate and value is not None:
            yield "replicate() has no join() and no finalize_backward()", seen.LATE
