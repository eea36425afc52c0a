"""``fuzzshard explain``: which known bugs of torch cause a finding."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from cyclopts import Parameter

from fuzzshard.campaign.explain import Origin
from fuzzshard.campaign.explain import explain as explain_case
from fuzzshard.case.case import Case
from fuzzshard.commands.corpus_sets import complain
from fuzzshard.commands.worlds import CommandWorlds
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.gather import load
from fuzzshard.corpus.outcome import obstacle
from fuzzshard.corpus.replay import shown_path
from fuzzshard.errors import (
    EXIT_FINDING,
    EXIT_INFRA,
    EXIT_INTERRUPTED,
    UsageError,
)
from fuzzshard.mending.mend import find_mend, mends_for
from fuzzshard.options import DEFAULT_CORPUS, ExtraMends, Json, RankOptions, Worlds
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status


class _Told(NamedTuple):
    """What one case was told to be, by which causes, and how long that took in seconds."""

    origin: str
    path: Path
    signature: str = ""
    causes: tuple[str, ...] = ()
    seconds: float = 0.0
    message: str = ""


def explain(
    *paths: Path,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
    worlds: Worlds = "auto",
    extra_mends: ExtraMends = (),
    as_json: Json = False,
) -> int:
    """Find out which known bugs of torch cause the findings of cases.

    Each case runs on torch as it is, and with all mends: fixes of known bugs,
    applied in memory only. A finding that goes away is known. The smallest set
    of mends with which it goes away is its cause.

    KNOWN    it goes away with mends, or a known bug that no mend can fix occurred
    NEW      it is there even with all mends
    MEND     it is there only with mends: a mend is wrong
    NONE     torch as it is shows no finding
    SKIPPED  this machine cannot run the case
    INFRA    the ranks failed

    After several cases, a last line counts them.

    Exit code 0: no finding, or all are known; 1: at least one is NEW;
    2: an entry cannot be read, and none is NEW; 4: MEND or INFRA.

    For example:
      fuzzshard explain corpus/findings/NAME
      fuzzshard explain corpus/findings
      fuzzshard explain corpus --extra-mends my_mends --json

    Parameters
    ----------
    paths
        Entries, case files, or folders to search for them; by default ./corpus.
    as_json
        Print one JSON object for each case.
    """
    mends = mends_for(extra=extra_mends)
    stored, broken = load(paths or (DEFAULT_CORPUS,))
    entries = [(shown_path(item.file), item.entry) for item in stored]
    unread = complain(broken)
    if not entries and broken:
        return unread
    if not entries:
        raise UsageError(
            "no cases found", "give an entry of a corpus, a case file or a folder of them"
        )
    here = CommandWorlds(ranks, worlds)

    all_told: list[_Told] = []

    def explain_one(world: Runner, path: Path, entry: CorpusEntry) -> _Told:
        if reason := obstacle(entry, ranks.kind, here.config.size):
            return _Told("SKIPPED", path, message=reason)
        return _explained(world, path, entry.case, mends)

    def tell(told: _Told) -> None:
        all_told.append(told)
        _tell(told, as_json=as_json)

    left = here.tell_each("explaining", entries, explain_one, tell)
    if (len(entries) > 1 or left) and not as_json:
        print(_summary(all_told, left))
    if left:
        return EXIT_INTERRUPTED
    seen = {told.origin for told in all_told}
    if seen & {"INFRA", Origin.MEND.upper()}:
        return EXIT_INFRA
    return EXIT_FINDING if Origin.NEW.upper() in seen else unread


def _explained(world: Runner, path: Path, case: Case, mends: tuple[str, ...]) -> _Told:
    """Explain one case."""
    began = time.monotonic()
    explained = explain_case(world, case, mends)
    verdict = explained.verdict
    infra = verdict.status is Status.INFRA
    return _Told(
        "INFRA" if infra else explained.origin.upper(),
        path,
        verdict.signature,
        tuple(explained.causes),
        time.monotonic() - began,
        verdict.message if infra else "",
    )


def _summary(all_told: Sequence[_Told], left: int) -> str:
    """Return the counts of cases."""
    origins = Counter(told.origin for told in all_told)
    in_order = sorted(origins.items(), key=lambda each: (-each[1], each[0]))
    parts = [f"{count} {origin}" for origin, count in in_order]
    if left:
        parts.append(f"interrupted, {left} not explained")
    return f"explained {origins.total()}: {', '.join(parts)}"


def _tell(told: _Told, *, as_json: bool) -> None:
    if as_json:
        line = {
            "path": str(told.path),
            "origin": told.origin,
            "signature": told.signature,
            "causes": told.causes,
            "seconds": round(told.seconds, 3),
            "message": told.message,
        }
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    said = (f"{told.origin:<7}", str(told.path), told.signature, told.message)
    print("  ".join(filter(None, said)), flush=True)
    for cause in told.causes:
        print(f"         {cause}: {find_mend(cause).title}", flush=True)
