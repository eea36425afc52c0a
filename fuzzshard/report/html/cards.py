"""A finding as a card of the report: what it says, its script, and its minimal case."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pygments
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fuzzshard.campaign.known import saved_cause
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.expectation import known_versions
from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.corpus.store import replay_command, saved_script
from fuzzshard.drafts.words import title
from fuzzshard.mending.mend import own_mends
from fuzzshard.report.seen_findings import SeenFinding
from fuzzshard.report.show import drawn
from fuzzshard.report.stages import clock
from fuzzshard.verdict import Finding

MOST_FINDINGS = 6
"""Rows of observed against expected; one cause breaks many rules at once."""

_FORMATTER = HtmlFormatter(nowrap=True)


@dataclasses.dataclass(frozen=True)
class Card:
    """All that the template says of one finding; ``text``, what ``fuzzshard show`` prints, and
    script are None where there is no entry, or where another finding with the same cause has them.
    """

    seen: SeenFinding
    title: str
    facts: dict[str, str]
    findings: Sequence[Finding]
    num_more: int
    text: str | None = None
    script: str | None = None
    script_lines: int = 0
    entry: CorpusEntry | None = None


def by_cause(findings: Iterable[SeenFinding]) -> list[list[SeenFinding]]:
    """Return ``findings`` with one cause together, new ones apart, in order of the first."""
    groups: dict[object, list[SeenFinding]] = {}
    for seen in findings:
        groups.setdefault((seen.new, seen.cause or seen.anchor), []).append(seen)
    return list(groups.values())


def cards(group: Sequence[SeenFinding]) -> list[Card]:
    """Return the cards of findings with one cause; the first one has its case, for all of them."""
    return [card(seen, whole=number == 0) for number, seen in enumerate(group)]


def releases(group: Iterable[Card]) -> str:
    """Return the releases of torch that show one of these findings."""
    return ", ".join(in_order({bad for card in group if card.entry for bad in card.entry.bad_on}))


def card(seen: SeenFinding, *, whole: bool = True) -> Card:
    """Return the card of one finding, ``whole`` with its case and its script."""
    entry, file = seen.entry, seen.file
    if entry is None or file is None:
        return Card(seen, finding_title(seen), dict(_facts(seen)), (), 0)
    script = saved_script(file) if whole else None
    return Card(
        seen=seen,
        title=finding_title(seen),
        facts=dict(_facts(seen)),
        findings=entry.findings[:MOST_FINDINGS],
        num_more=max(len(entry.findings) - MOST_FINDINGS, 0),
        text=drawn(entry, seen.folder) if whole else None,
        # the formatter escapes everything
        script=Markup(pygments.highlight(script, PythonLexer(), _FORMATTER))
        if script is not None and seen.new
        else script,
        script_lines=0 if script is None else script.count("\n"),
        entry=entry,
    )


def finding_title(seen: SeenFinding) -> str:
    """Return what goes wrong, in one line."""
    if seen.entry is None or seen.file is None or not seen.entry.findings:
        return next((s.summary for s in seen.sightings if s.summary), "") or seen.signature
    is_known = seen.cause in own_mends()  # its title says it, and no other file has to be read
    return title(seen.entry, () if is_known else saved_cause(seen.file, seen.entry))


def _facts(seen: SeenFinding) -> Iterator[tuple[str, str]]:
    entry = seen.entry
    if seen.rate is not None:
        yield "came back in", seen.rate.text()
    if seen.hits:
        yield "first seen", f"after {clock(seen.at)}" + ("" if seen.new else ", known before")
        yield "cases with it", f"{seen.hits:,}"
    if seen.cause:
        yield "cause", seen.cause
    if seen.internal:
        yield "internal", "only an instrument sees it, and no user"
    if len(seen.sightings) > 1:
        yield "entries", f"{len(seen.sightings)} that show the same"
    if entry is not None:
        if entry.comparison:
            yield "comparison", entry.comparison
        yield "seen with", f"torch {entry.torch} on {entry.device}, {entry.case.mesh.text()}"
        if versions := known_versions(entry):
            yield "versions", versions
        yield "replay", replay_command(seen.folder, entry)
    yield "folder", str(seen.folder)
