"""A file that shows a campaign while it runs, written anew now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fuzzshard.events import CampaignFinished, Event

_MOST_SHARE = 0.02
"""Of the time of a campaign, for writing one file: a journal of millions of cases is read more
rarely.
"""


class PeriodicWriter:
    """An event sink that calls ``write`` at the first event, at the last one, and at most every
    ``seconds`` between. What ``write`` reads in the journal must be written there before.

    What is wrong with the file, ``name``, must not end a campaign of weeks: it is said once, on
    stderr.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[], object],
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._due = 0.0
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Writes if it is time."""
        began = self._clock()
        if self._failed or (began < self._due and not isinstance(event, CampaignFinished)):
            return
        try:
            self._write()
        except Exception as error:
            self._failed = True
            print(f"fuzzshard: {self._name} is not written any more: {error}", file=sys.stderr)
        took = self._clock() - began
        self._due = began + max(self._seconds, took / _MOST_SHARE)
