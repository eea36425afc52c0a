"""Judging cases in one or several worlds, and explaining every verdict that is not PASS."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.explain import Explanation, OnMends, judge_explained, unknown_only
from fuzzshard.campaign.judge import Stopped, judge
from fuzzshard.campaign.known import Found, Registry
from fuzzshard.campaign.reduce import SHRINK_BUDGET, Judged, confirm_and_shrink
from fuzzshard.campaign.tally import how_compared
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry
from fuzzshard.corpus.entry import make_entry
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.store import CASE_FILE, UNSHRUNK_FILE
from fuzzshard.report.comparisons import EngineRuns, comparisons
from fuzzshard.runner import Runner
from fuzzshard.shrink import Budget
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World

INTERNAL = ", internal"
PASSED, REFUSED, KNOWN, UNEXPLAINED = "pass", "documented refusal", "known cause", "UNEXPLAINED"


@dataclasses.dataclass
class Unexplained:
    """A verdict that nothing explains. ``repeats`` says whether fresh ranks give it again.

    ``internal``: only an instrument sees it, and no user.
    """

    index: int
    status: str
    signature: str
    comparison: str
    what: str
    repeats: bool
    path: str
    internal: bool = False

    @property
    def name(self) -> str:
        """``"DIVERGENCE divergence/fully_shard/hooks, internal"``."""
        return f"{self.status} {self.signature}".strip() + (INTERNAL if self.internal else "")


def explain(explained: Explanation) -> str:
    """Why the verdict is what it is."""
    if explained.known:
        return KNOWN
    match explained.verdict.status:
        case Status.PASS:
            return PASSED
        case Status.REJECTED:
            return REFUSED
    return UNEXPLAINED


def summarise(verdict: Verdict) -> str:
    """One line of what a verdict says."""
    if verdict.findings:
        first = verdict.findings[0]
        where = f" {first.name}" if first.name else ""
        size = (
            f", error {first.error:.2e}, bound {first.bound:.2e}"
            if first.error and first.bound
            else ""
        )
        return (
            f"{first.oracle}{where} at op {first.op}: {first.observed}, expected "
            f"{first.expected}{size}"
        )
    return verdict.message


def note_kind(note: str) -> str:
    """A note without the names of one case: modules in parentheses, parameters in quotes."""
    return shorten(re.sub(r" ?\((?=\w).*|'[^']*'", "...", note), 160)


def shorten(text: str, limit: int = 200) -> str:
    """One line of at most ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


class Examination:
    """Judges the cases of a stream and keeps the counts; any number of threads may do so at once.

    Cases run on torch with ``mends``, or as it is; what fails is explained by them. ``on_case`` is
    called after every case, under a lock, with what it adds to the list of the unexplained. A new
    finding is shrunk within ``budget``.
    """

    def __init__(
        self,
        mends: tuple[str, ...],
        keep: Path,
        on_case: Callable[[Unexplained | None], None],
        *,
        on_mended: bool = False,
        budget: Budget = SHRINK_BUDGET,
    ) -> None:
        self.mends = mends
        self.on_mended = on_mended
        self.registry = Registry()
        self.keep = keep
        self.on_case = on_case
        self.budget = budget
        self.statuses: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.comparisons: Counter[str] = Counter()
        self.compared: list[EngineRuns] = []
        self.explanations: Counter[str] = Counter()
        self.unexplained: list[Unexplained] = []
        self._lock = threading.Lock()

    def work(self, world: World, cases: Prefetch, control: Control) -> None:
        """Judges cases in ``world`` until there are no more, or until ``control`` is halted."""
        runner = ControlledWorld(world, control)
        try:
            while (taken := cases.take()) is not None:
                self.take(runner, world.info, *taken)
        except Stopped:
            pass

    def take(self, runner: Runner, info: Mapping[str, str], index: int, case: Case) -> Verdict:
        """Judges and counts one case."""
        case, explained = judge_explained(
            runner,
            case,
            self.mends,
            on_mended=self.on_mended,
            likely=self.registry.experience.likeliest,
        )
        verdict, explanation, shrunk = explained.verdict, explain(explained), None
        if explained.known:
            self.registry.experience.count(verdict.signature, explained.known)
        elif verdict.status.is_finding and self.budget.max_seconds > 0:
            only = unknown_only(runner, case, verdict, self.mends)
            shrunk = confirm_and_shrink(only(runner), case, verdict, budget=self.budget)
        entry = None
        if explanation == UNEXPLAINED:
            again = judge(
                OnMends(runner, self.mends) if self.on_mended else runner, case, fresh=True
            )
            alike = again.status is verdict.status and again.signature == verdict.signature
            shows = again.status.is_finding and again.signature in verdict.message
            entry = Unexplained(
                index=index,
                status=verdict.status,
                signature=verdict.signature,
                comparison=verdict.findings[0].comparison
                if verdict.findings
                else verdict.comparison,
                what=shorten(summarise(verdict)),
                repeats=alike or shows,  # INFRA names a finding that shows with mends only
                path=str(self._save(Found(index, case, verdict), shrunk, info)),
                internal=verdict.internal,
            )
        with self._lock:
            self._count(case, verdict, explanation)
            if entry is not None:
                self.unexplained.append(entry)
            self.on_case(entry)
        return verdict

    def _count(self, case: Case, verdict: Verdict, explanation: str) -> None:
        self.statuses[verdict.status] += 1
        if verdict.status is Status.PASS:
            judged = [engine for engine in case.engines if engine not in verdict.notes]
            self.judged.update(judged or ["no engine"])
        self.notes.update(f"{engine} {note_kind(note)}" for engine, note in verdict.notes.items())
        self.comparisons[f"{verdict.status} {verdict.comparison}".strip()] += 1
        self.explanations[explanation] += 1
        self.compared += (
            EngineRuns(engine, how.comparison, 1, how.tensors, how.skipped)
            for engine, how in how_compared(case, verdict).items()
        )

    def _save(self, found: Found, shrunk: Judged | None, info: Mapping[str, str]) -> Path:
        """Saves a case as the corpus does: in its smallest form, with the case as found beside
        it.
        """
        folder = self.keep / f"{found.index:06d}"
        case, verdict = found.case, found.verdict
        if shrunk is not None:
            write_atomic(folder / UNSHRUNK_FILE, codec.encode(case) + b"\n")
            case, verdict = shrunk.case, shrunk.verdict
        write_atomic(folder / CASE_FILE, encode_entry(make_entry(case, verdict, info)))
        return folder

    def result(self) -> dict[str, Any]:
        """The counts, as plain values; findings that no user can see come last."""
        unexplained = sorted(self.unexplained, key=lambda each: each.internal)
        names = Counter(each.name for each in unexplained).most_common()
        return {
            "cases": self.statuses.total(),
            "statuses": dict(self.statuses.most_common()),
            "comparisons": dict(self.comparisons.most_common()),
            "compared": msgspec.to_builtins(comparisons(self.compared)),
            "explanations": dict(self.explanations.most_common()),
            "judged": dict(self.judged.most_common()),
            "notes": dict(self.notes.most_common()),
            "known": dict(self.registry.experience.cases.most_common()),
            "signatures": dict(sorted(names, key=lambda counted: counted[0].endswith(INTERNAL))),
            "unexplained": [dataclasses.asdict(u) for u in unexplained],
        }
