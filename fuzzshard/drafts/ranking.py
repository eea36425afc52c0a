"""Which roots of a corpus to file first, and which not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from fuzzshard.campaign.saved import saved_cause
from fuzzshard.case.feature_names import FEATURES
from fuzzshard.corpus.causes import by_cause
from fuzzshard.corpus.distinct import Stored
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.listing import severity_rank
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import saved_script
from fuzzshard.drafts.words import (
    harm,
    has_private_names,
    issue_number,
    known_public,
    markdown,
    ranks,
    title,
)
from fuzzshard.mending.mend import Mend, own_mends
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.oracle import Severity, cut

_RARE = (
    *("mesh:1", "mesh:axis_of_one", "dim:one", "dim:smaller_than_mesh", "tensor:empty_shard"),
    *("input:no_rows", "input:one_row"),
)
"""Features of sizes that few train with."""

_LEGACY = "FSDP1"
"""The component whose issues torch's maintainers answer with its successor."""


@dataclasses.dataclass(frozen=True)
class Root:
    """One root: how bad it is, who runs into it, and the entry that shows it best.

    ``cause`` is the name of a mend, or ``"not known: FOLDER"``. ``of_values``: something computed
    is wrong, and not how parameters are registered, say. ``example``: its mend has a program that
    somebody may have and that shows it. ``rare``: sizes that it takes and few have. ``why`` says
    what its place comes from. ``left_out`` says why it is not to be filed, and is empty where it
    is.
    """

    cause: str
    title: str
    component: str
    severity: Severity
    of_values: bool
    who: str
    example: bool
    rare: str
    entry: str
    entries: int
    shown_by: tuple[str, ...]
    public_api: bool
    ranks: int
    why: tuple[str, ...]
    left_out: str


def ranked(stored: Iterable[Stored]) -> list[Root]:
    """The roots of findings, the one to file first first.

    Worse ones come first (:class:`fuzzshard.parts.oracle.Severity`), of silent ones those with
    wrong values. Of these come first those that somebody runs into in a way that can be told, with
    usual sizes, and best with an example; then those that the newest torch shows, of components
    that are developed, with public API only, on few ranks, of many entries.
    """
    found = [item for item in stored if item.entry.findings]
    tried = {v for item in found for v in (*item.entry.bad_on, *item.entry.good_on)}
    newest = max(tried, key=Version, default="")
    by_name = {shown_path(item.file).name: item for item in found}
    roots = [
        _root(cause.name, cause.component, [by_name[name] for name in cause.entries], newest)
        for cause in by_cause(found)
    ]
    return sorted(
        roots,
        key=lambda root: (
            severity_rank(root.severity),
            not root.of_values,
            not root.who,
            bool(root.rare),
            not root.example,
            newest not in root.shown_by,
            root.component == _LEGACY,
            not root.public_api,
            root.ranks,
            -root.entries,
            root.title,
        ),
    )


def _root(name: str, component: str, items: Sequence[Stored], newest: str) -> Root:
    mend = own_mends().get(name)
    best = min(items, key=lambda item: _preference(item, component))
    entry, script = best.entry, saved_script(best.file)
    severity, features = entry.severity, saved_cause(best.file, entry)
    assert severity is not None, "an entry without a finding has no root"
    rare = [FEATURES[name] for name in _RARE if name in features]
    if _is_lonely(component, entry.case.mesh.size):
        rare.append(FEATURES["mesh:1"])
    shown_by = {v for item in items for v in item.entry.bad_on}
    public_api = script is not None and not has_private_names(script)
    root = Root(
        cause=name,
        title=title(entry, features, script),
        component=component,
        severity=severity,
        of_values=entry.findings[0].of_values,
        who=markdown(mend.setup) if mend is not None else "",
        example=mend is not None and bool(mend.example),
        rare=", ".join(dict.fromkeys(rare)),
        entry=str(shown_path(best.file)),
        entries=len(items),
        shown_by=tuple(sorted(shown_by, key=Version, reverse=True)),
        public_api=public_api,
        ranks=entry.case.mesh.size,
        why=(),
        left_out=_left_out(mend, [item.entry for item in items], newest),
    )
    return dataclasses.replace(root, why=tuple(_why(root, entry, script, mend)))


def _why(root: Root, entry: CorpusEntry, script: str | None, mend: Mend | None) -> Iterator[str]:
    yield harm(root.severity, of_values=root.of_values)
    if root.who:
        yield f"Who hits it: {cut(root.who, 240)}"
    else:
        yield "Nobody has said yet who hits it."
    if root.example:
        yield "An example shows it in such a program."
    if root.rare:
        yield f"It needs sizes that few use: {root.rare}."
    yield f"Shown by torch {', '.join(root.shown_by) or entry.torch}."
    if script is None:
        yield "There is no script."
    else:
        api = "public API only" if root.public_api else "private names of torch"
        yield f"A script of {len(script.splitlines())} lines on {ranks(entry)}, with {api}."
    if mend is None:
        yield "Nobody has looked for it in public yet."
        return
    near = [issue_number(look.link) for look in mend.public if look.link]
    dates = sorted({look.date for look in mend.public if look.date})
    searched = f" (searched on {' and '.join(dates)})" if dates else ""
    nearby = f"; near: {', '.join(near)}" if near else ""
    yield f"Not found in public{searched}{nearby}."


def _preference(item: Stored, component: str) -> tuple[object, ...]:
    """Smallest for the entry that shows a root best: open, at its worst, in a short script."""
    entry, script = item.entry, saved_script(item.file)
    return (
        entry.lifecycle is Lifecycle.FIXED,
        severity_rank(entry.severity or ""),
        not entry.findings[0].of_values,
        script is None,
        entry.flaky,
        script is not None and has_private_names(script),
        _is_lonely(component, entry.case.mesh.size),
        entry.case.mesh.size,
        len((script or "").splitlines()),
        item.file,
    )


def _is_lonely(component: str, num_ranks: int) -> bool:
    """Whether an engine runs on one rank, which few do outside of tests."""
    return num_ranks == 1 and component.lower() in ENGINES


def _left_out(mend: Mend | None, entries: Sequence[CorpusEntry], newest: str) -> str:
    if issue := next((entry.issue for entry in entries if entry.issue), ""):
        return f"public: {issue}"
    if mend is not None and (same := next((look for look in mend.public if look.is_same), None)):
        return f"public: {known_public(same)}"
    if all(entry.lifecycle is Lifecycle.FIXED for entry in entries):
        return f"fixed: torch {newest} does not show it"
    if all(entry.lifecycle is Lifecycle.WONTFIX for entry in entries):
        return "meant to stay"
    return ""
