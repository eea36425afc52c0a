"""Accesses to one memory that nothing orders.

CUDA runs the kernels of one stream in order, and those of two streams in any order that events do
not forbid (CUDA C++ Programming Guide, "Streams"). The caching allocator hands a block out again
for the stream that it belongs to, as soon as nobody refers to it: what other streams do with it
must be over by then, or be told by ``record_stream`` (its documentation).
"""

from __future__ import annotations

from fuzzshard.instruments.streams import clocks
from fuzzshard.instruments.streams.clocks import Access
from fuzzshard.instruments.streams.events import HOST, Launch
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.parts.oracles.race import Race
from fuzzshard.verdict import Finding


def race_findings(run: Run) -> list[Finding]:
    """Return a finding for each pair of lines whose accesses have no order."""
    found: dict[str, Finding] = {}
    for race in run.trace.races:
        detail = f"{_place(race.earlier)} and {_place(race.later)}"
        found.setdefault(detail, _finding(run, race, detail))
    return list(found.values())[:MOST_FINDINGS]


def _finding(run: Run, race: clocks.Race, detail: str) -> Finding:
    return Finding(
        oracle=Race.name,
        engine=run.engine,
        observed=describe(race),
        expected="one of the two waits for the other",
        op=getattr(race.later.event, "op", -1),
        name=race.later.touch.tensor or race.earlier.touch.tensor,
        rank=run.mesh.global_rank,
        detail=detail,
    )


def describe(race: clocks.Race) -> str:
    """Say what the two accesses do, and which lines issued them."""
    again = ", memory that was handed out again" * race.reused
    return f"{_text(race.later)}, and before {_text(race.earlier)}{again}"


def _text(access: Access) -> str:
    """Say what an access does, on which stream, and by which line."""
    event = access.event
    stream = f"stream {access.stream}" if access.stream else "the default stream"
    where = "the host" if access.stream == HOST else stream
    if isinstance(event, Launch):
        verb = "writes" if access.write else "reads"
        did = f"{event.name} {verb} {access.touch.tensor} on {where}"
    else:
        did = f"the allocator {type(event).__name__.lower()}s a block of {where}"
    return f"{did} ({event.where or 'unknown line'})"


def _place(access: Access) -> str:
    """Name the function that an access comes from, for a signature; torch's, not the user's."""
    file, _, function = access.event.where.partition(" in ")
    return function if file.startswith("torch/") else "other code"


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    return race_findings(run)
