"""The distinct findings of campaigns: what their journals saw of each, with the entry that is on
disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

from fuzzshard.corpus.distinct import Stored, distinct
from fuzzshard.corpus.entry import Confirmation, CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.listing import component_of, component_rank, severity_rank
from fuzzshard.corpus.store import CASE_FILE
from fuzzshard.mending.mend import own_mends
from fuzzshard.report.node import CampaignNode, Sighting, entry_at


@dataclasses.dataclass(frozen=True)
class SeenFinding:
    """Entries that show the same (:func:`fuzzshard.corpus.distinct.distinct`), on any number of
    nodes.

    ``file`` and ``entry`` are those of the one to keep, or None where nothing that can be read is
    on disk.
    """

    sightings: tuple[Sighting, ...]
    file: Path | None = None
    entry: CorpusEntry | None = None

    @property
    def signature(self) -> str:
        """Of all of them."""
        return self.sightings[0].signature

    @property
    def anchor(self) -> str:
        """A name that is its own in a report."""
        return f"finding-{self.sightings[0].folder.name}"

    @property
    def folder(self) -> Path:
        """Where the entry to show is, or was."""
        return self.sightings[0].folder if self.file is None else self.file.parent

    @property
    def new(self) -> bool:
        """Whether these campaigns made it, and nobody knows its cause; if not, it is known."""
        return not self.cause and any(sighting.found for sighting in self.sightings)

    @property
    def at(self) -> float:
        """The campaign time at which it was seen first."""
        return min(sighting.at for sighting in self.sightings)

    @property
    def hits(self) -> int:
        """The cases that it explains."""
        return sum(sighting.hits for sighting in self.sightings)

    @property
    def rate(self) -> Confirmation | None:
        """How often it came back on fresh ranks; None before it was confirmed."""
        confirmed = self.entry.confirmed if self.entry is not None else None
        return confirmed or next((s.rate for s in self.sightings if s.rate is not None), None)

    @property
    def confirmed(self) -> bool:
        """Whether it counts: it came back at least once, here or in an earlier campaign."""
        return self.status not in ("inconclusive", "unconfirmed")

    @property
    def internal(self) -> bool:
        """Whether no user can see it."""
        return self.entry is not None and self.entry.internal

    @property
    def severity(self) -> str:
        """What it does to whoever trains; empty where no entry says it."""
        return (self.entry.severity if self.entry is not None else None) or ""

    @property
    def cause(self) -> str:
        """The name of the mend that cures it; empty where none is named."""
        return self.entry.cause if self.entry is not None else ""

    @property
    def component(self) -> str:
        """Where its cause is; empty where none is named."""
        return component_of(self.entry) if self.entry is not None else ""

    @property
    def issues(self) -> list[str]:
        """Where it is public: what the entry says, and what is known of its cause."""
        mend = own_mends().get(self.cause)
        own = [self.entry.issue] if self.entry is not None and self.entry.issue else []
        looks = mend.public if mend is not None else ()
        return list(dict.fromkeys([*own, *(look.link for look in looks if look.is_same)]))

    @property
    def status(self) -> str:
        """inconclusive, unconfirmed, or what the entry says: open, fixed, wontfix, flaky."""
        if all(sighting.flaky for sighting in self.sightings):
            return "inconclusive"
        rate, lifecycle = self.rate, self.entry.lifecycle if self.entry is not None else None
        if rate is None and (lifecycle is None or any(s.found or s.hits for s in self.sightings)):
            return "unconfirmed"
        is_flaky = rate is not None and rate.flaky
        return str(lifecycle or (Lifecycle.FLAKY if is_flaky else Lifecycle.OPEN))


def seen_findings(nodes: Iterable[CampaignNode]) -> list[SeenFinding]:
    """Return all that some case of these campaigns showed, new ones first, in the order in which
    they were seen, or else the worst first.

    What no user can see comes after the others, and what is not confirmed after that.
    """
    found = list(_grouped(nodes))
    return sorted(
        found,
        key=lambda f: (
            not f.confirmed,
            f.internal,
            not f.new,
            f.at,
            severity_rank(f.severity),
            component_rank(f.component),
            f.cause,
        ),
    )


def _grouped(nodes: Iterable[CampaignNode]) -> Iterator[SeenFinding]:
    by_file: dict[Path, Sighting] = {}
    stored: list[Stored] = []
    for node in nodes:
        for sighting in node.sightings:
            file = sighting.folder / CASE_FILE
            if (entry := entry_at(file, node.shared)) is None:
                yield SeenFinding((sighting,))
            else:
                by_file[file] = sighting
                stored.append(Stored(file, node.path, entry))
    for same in distinct(stored):
        sightings = tuple(by_file[item.file] for item in same.items)
        yield SeenFinding(sightings, same.items[0].file, same.entry)
