"""What causes the findings of a corpus, and tables of them: a row for each mend that an entry
names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import in_order
from fuzzshard.corpus.listing import component_rank, severity_rank, table_lines
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import SCRIPT_FILE, saved_script
from fuzzshard.mending.mend import Mend, Public, own_mends
from fuzzshard.parts.oracle import Severity


@dataclasses.dataclass(frozen=True)
class Cause:
    """Findings with one cause; ``verified`` of their scripts were run and showed the finding.

    ``severity`` is that of the worst, and ``example`` the first with it. ``name`` is that of a
    mend, or ``"not known: FOLDER"`` for an entry without one. ``releases`` says of each release of
    torch how many entries are bad and how many good on it.
    """

    name: str
    title: str
    severity: Severity
    component: str
    weight: str
    kind: str
    torch: str
    example: str
    entries: tuple[str, ...]
    signatures: tuple[str, ...]
    verified: int
    releases: dict[str, tuple[int, int]]
    contract: str
    public: tuple[Public, ...]


def by_cause(stored: Iterable[Stored]) -> list[Cause]:
    """Return findings by the mend that their entries name, in the order of severity, component and
    entries; each of those without one is a cause of its own.
    """
    named: dict[str, list[Stored]] = {}
    for item in stored:
        if item.entry.severity:
            name = item.entry.cause if item.entry.cause in own_mends() else ""
            named.setdefault(name or f"not known: {shown_path(item.file).name}", []).append(item)
    causes = [_cause(name, items, own_mends().get(name)) for name, items in named.items()]
    return sorted(causes, key=_ranks)


def _ranks(cause: Cause) -> tuple[object, ...]:
    where = severity_rank(cause.severity), component_rank(cause.component)
    return *where, -len(cause.entries), cause.name


def _cause(name: str, items: Sequence[Stored], mend: Mend | None) -> Cause:
    entries = [item.entry for item in items]
    severity = Severity.worst(entry.severity for entry in entries if entry.severity)
    return Cause(
        name=name,
        title=mend.title if mend else name,
        severity=severity,
        component=mend.component if mend else "",
        weight=mend.weight if mend else "",
        kind=mend.kind if mend else "",
        torch=mend.torch.text() if mend else "",
        example=min(shown_path(i.file).name for i in items if i.entry.severity is severity),
        entries=tuple(sorted(shown_path(item.file).name for item in items)),
        signatures=tuple(sorted({entry.signature for entry in entries})),
        verified=sum(
            SCRIPT_FILE not in i.entry.notes and saved_script(i.file) is not None for i in items
        ),
        releases=_releases(entries),
        contract=mend.contract.text() if mend else "",
        public=mend.public if mend else (),
    )


def _releases(entries: Sequence[CorpusEntry]) -> dict[str, tuple[int, int]]:
    bad = Counter(release for entry in entries for release in entry.bad_on)
    good = Counter(release for entry in entries for release in entry.good_on)
    return {
        release: (bad[release], good[release]) for release in in_order(bad.keys() | good.keys())
    }


def cause_lines(causes: Sequence[Cause], width: int, releases: Sequence[str] = ()) -> list[str]:
    """Return a table of ``width`` columns, with a column for each of ``releases``, and a line that
    counts them.
    """
    if not causes:
        return ["no findings"]
    rows = [
        {
            "severity": str(cause.severity),
            "component": cause.component,
            "weight": cause.weight,
            **{release: _share(cause, release) for release in releases},
            "entries": str(len(cause.entries)),
            "issue": _numbers(cause.public),
            "cause": cause.name,
        }
        for cause in causes
    ]
    entries = sum(len(cause.entries) for cause in causes)
    return [
        *table_lines(rows, width, cut=("issue", "cause")),
        f"{len(causes)} cause{'s' * (len(causes) != 1)} of "
        f"{entries} entr{'y' if entries == 1 else 'ies'}: "
        + weights_text(cause.weight for cause in causes),
    ]


def weights_text(weights: Iterable[str]) -> str:
    """Return ``"70 bugs, 63 exotic, 15 limitations"``, without what there is none of."""
    words = {"bug": "bugs", "exotic": "exotic", "limitation": "limitations", "": "not known"}
    counts = Counter(weights)
    return ", ".join(
        f"{number} {each if number == 1 and each else word}"
        for each, word in words.items()
        if (number := counts[each])
    )


def first_to_file(causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes in the installed torch that its issues do not have, the most urgent first.

    What is silent and wrong counts most, then the setup: one that people have, the more if other
    projects have met the bug. Of equal ones, the smaller fix comes first. Limitations are left
    out.
    """
    open_ = [
        (_urgency(cause, mend), cause)
        for cause in causes
        if (mend := own_mends().get(cause.name)) is not None
        and mend.torch.include()
        and mend.weight != "limitation"
        and not mend.filed
    ]
    return [cause for _, cause in sorted(open_, key=lambda each: (-each[0], each[1].name))]


def top_lines(causes: Sequence[Cause], width: int) -> list[str]:
    """Return a table of :func:`first_to_file`, with an entry to draft an issue of for each."""
    if not causes:
        return ["nothing to file: torch has an issue of each cause, or this release lacks it"]
    rows = [
        {
            "severity": str(cause.severity),
            "weight": cause.weight,
            "seen": "elsewhere" if own_mends()[cause.name].is_seen_elsewhere else "",
            "fix": _lines_text(own_mends()[cause.name].changed_lines),
            "cause": cause.name,
            "entry": cause.example,
        }
        for cause in causes
    ]
    return table_lines(rows, width, cut=("cause", "entry"))


def _lines_text(count: int | None) -> str:
    return "" if count is None else f"{count} line{'s' * (count != 1)}"


_HARM = {Severity.SILENT: 3.0, Severity.HANG: 2.0, Severity.CRASH: 2.0}


def _urgency(cause: Cause, mend: Mend) -> float:
    setup = {"bug": 3, "exotic": 1}[mend.weight] * (1.5 if mend.is_seen_elsewhere else 1)
    lines = mend.changed_lines
    fix = 1 if lines is None else 2 if lines <= 4 else 1.5 if lines <= 12 else 1
    return _HARM.get(cause.severity, 1.0) * setup * fix


def _share(cause: Cause, release: str) -> str:
    """``"2/3"``: of three entries that say something of a release, two are bad."""
    bad, good = cause.releases.get(release, (0, 0))
    return f"{bad}/{bad + good}" if bad + good else "n/a"


def _numbers(public: Iterable[Public]) -> str:
    """``"196460"``: the issues and pull requests that are about the very bug."""
    same = (look.link.rpartition("/")[2] for look in public if look.is_same)
    return ", ".join(dict.fromkeys(same))


def issue_link(address: str) -> str:
    """Return ``[pytorch 183702](https://github.com/pytorch/pytorch/issues/183702)`` for an issue
    on GitHub.
    """
    return f"[{issue_name(address)}]({address})"


def issue_name(address: str) -> str:
    """Return ``pytorch 183702`` for an issue on GitHub."""
    parts = address.split("/")
    return f"{parts[-3]} {parts[-1]}" if len(parts) > 5 else address
