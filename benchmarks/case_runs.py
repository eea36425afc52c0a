"""Every case of a journal: what nobody but benchmarks and tests looks at one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuzzshard.journal.history import History


class CaseRun(NamedTuple):
    """One case: judged, or without a ``status`` in flight or cut off."""

    session: int
    number: int
    world: int
    status: str | None


def case_runs(history: History, campaign: int) -> Iterator[CaseRun]:
    """Yield the cases of a campaign in the order in which they started."""
    for row in history.rows(
        "SELECT session, number, world, status FROM case_run "
        "JOIN session ON session.id = case_run.session WHERE campaign = ? ORDER BY case_run.id",
        campaign,
    ):
        yield CaseRun(*row)
