"""Outcomes of replayed entries, counted by the folder that they lie in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fuzzshard.corpus.outcome import Outcome

HEADINGS = ("cases", "passed", "skipped", "other")


@dataclasses.dataclass
class FolderSummary:
    """How many cases of one folder passed, could not be run here, and did anything else; and why.

    What torch refuses did not pass, nor did a finding that is not seen on this device.
    """

    passed: int = 0
    skipped: int = 0
    other: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """The numbers under :data:`HEADINGS`."""
        return self.passed + self.skipped + self.other, self.passed, self.skipped, self.other

    def add(self, outcome: Outcome, message: str) -> None:
        """Counts one result, and the reason if it did not pass."""
        if outcome is Outcome.PASS and not message:
            self.passed += 1
        elif outcome is Outcome.SKIPPED:
            self.skipped += 1
            self.reasons[message] += 1
        else:
            self.other += 1
            self.reasons[message if outcome is Outcome.PASS else str(outcome)] += 1


def summarise(results: Iterable[tuple[Path, Outcome, str]]) -> dict[Path, FolderSummary]:
    """(path, outcome, message) by the folder that the path is in, in the order of the results."""
    folders: dict[Path, FolderSummary] = {}
    for path, outcome, message in results:
        folders.setdefault(path.parent, FolderSummary()).add(outcome, message)
    return folders


def summary_lines(folders: dict[Path, FolderSummary]) -> list[str]:
    """A table with one line for each folder and one for all."""
    total = [sum(s.counts[column] for s in folders.values()) for column in range(len(HEADINGS))]
    rows: list[tuple[str, Iterable[object], str]] = [("folder", HEADINGS, "")]
    rows += [(str(path), s.counts, "; ".join(s.reasons)) for path, s in folders.items()]
    rows.append(("all", total, ""))
    width = max(len(name) for name, _, _ in rows)
    return [
        f"{name:<{width}}{''.join(f'{count:>9}' for count in counts)}  {reasons}".rstrip()
        for name, counts, reasons in rows
    ]
