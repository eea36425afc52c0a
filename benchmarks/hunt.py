"""Hunting one planted bug: draw until a finding that stock torch does not show, then shrink and check it."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import msgspec

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.events import Event, FindingConfirmed
from fuzzshard.campaign.judge import Stopped, judge
from fuzzshard.campaign.keep import Keeper
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.prefetch import Prefetch
from fuzzshard.campaign.reduce import Judged, confirm_and_shrink
from fuzzshard.case.case import Case
from fuzzshard.case.order import leaf_count
from fuzzshard.corpus.entry import mesh_text
from fuzzshard.corpus.store import SCRIPT_FILE
from fuzzshard.errors import FuzzshardError, InfraError, UsageError
from fuzzshard.guidance import Feedback, Guidance, guided
from fuzzshard.reproducer import check, scripts
from fuzzshard.shrink import Budget
from fuzzshard.strategies import case_stream
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world import World, WorldConfig
from fuzzshard.world.config import SAMPLED_COVERAGE

FOUND, MISSED, ERROR, INTERRUPTED, NOT_APPLICABLE = (
    "found",
    "missed",
    "error",
    "interrupted",
    "does not apply",
)


class PlantedBug(msgspec.Struct, frozen=True):
    """One line of ``INDEX.json``; what else stands there is not for the fuzzer to know."""

    id: str
    min_world: int = 1
    difficulty: str = ""


class Row(msgspec.Struct, kw_only=True):
    """What became of one bug.

    ``outcome`` is ``found``, ``missed``, ``does not apply``, ``needs N ranks``, ``interrupted`` or
    ``error``. ``cases`` and ``seconds`` count until the finding was confirmed, or until the end.
    ``stock`` are findings that torch without the bug shows too, ``flaky`` those that did not repeat.
    ``script_ok``: the reproducer fails with the bug and passes without it.
    """

    id: str
    difficulty: str
    outcome: str
    guidance: str = "none"
    seed: int = 0
    found: bool = False
    cases: int = 0
    seconds: float = 0.0
    verdict: str = ""
    signature: str = ""
    modules_before: int | None = None
    modules_after: int | None = None
    ops_before: int | None = None
    ops_after: int | None = None
    mesh_before: str = ""
    mesh_after: str = ""
    shrink_seconds: float = 0.0
    shrink_evaluations: int = 0
    shrink_finished: bool = False
    script_ok: bool | None = None
    stock: int = 0
    flaky: int = 0
    infra: int = 0
    note: str = ""

    @property
    def counts(self) -> bool:
        """Whether the bug could have been found here, and so counts in the total."""
        return self.outcome in (FOUND, MISSED, ERROR)


def read_index(planted: Path, only: frozenset[str] | None = None) -> list[PlantedBug]:
    """The bugs in ``planted``, or those of them named in ``only``; raises :class:`UsageError`."""
    file = planted / "INDEX.json"
    try:
        bugs = msgspec.json.decode(file.read_bytes(), type=list[PlantedBug])
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot read {file}: {error}", "give the folder that has INDEX.json") from None
    if only is None:
        return bugs
    if unknown := only - {bug.id for bug in bugs}:
        raise UsageError(f"{file} has no {', '.join(sorted(unknown))}", "check the ids")
    return [bug for bug in bugs if bug.id in only]


class StockWorld:
    """A world without any bug, shared by all hunts: does a finding show there too?"""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()

    def shows(self, case: Case, expected: Verdict) -> bool:
        """Whether ``case`` has a finding with the signature of ``expected``."""
        with self._lock:
            verdict = judge(self._world, case)
        return verdict.status.is_finding and verdict.signature == expected.signature


SHOWS_WITHOUT = "torch shows this without the bug as well"


class BugWorld:
    """A world with a bug, in which a finding that also shows without it is none.

    So neither the hunt nor the shrinking of its catch can end at another bug, one of torch itself.
    """

    def __init__(self, world: World, stock: StockWorld) -> None:
        self._world = world
        self._stock = stock

    @property
    def info(self) -> dict[str, str]:
        """What the ranks run on."""
        return self._world.info

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks."""
        return self._world.pids

    def run(self, case: Case, *, deadline: float | None = None) -> Verdict:
        """The verdict with the bug; REJECTED for a finding that shows without it."""
        verdict = self._world.run(case, deadline=deadline)
        if verdict.status.is_finding and self._stock.shows(case, verdict):
            return Verdict(status=Status.REJECTED, seconds=verdict.seconds, message=SHOWS_WITHOUT)
        return verdict

    def restart(self) -> None:
        """Replaces the ranks by fresh ones."""
        self._world.restart()

    def close(self) -> None:
        """Ends the ranks."""
        self._world.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuntSettings:
    """What all hunts have in common. ``keep`` is the folder that gets a corpus for each bug."""

    mutants: Path
    config: WorldConfig
    seed: int
    max_cases: int
    budget: Budget
    keep: Path
    scripts: bool = True
    guidance: Guidance = "none"


class Hunt:
    """The hunt of one bug; :meth:`run` once."""

    def __init__(self, bug: PlantedBug, stock: StockWorld, settings: HuntSettings, control: Control) -> None:
        self.row = Row(
            id=bug.id,
            difficulty=bug.difficulty,
            outcome=MISSED,
            guidance=settings.guidance,
            seed=settings.seed,
        )
        self._stock = stock
        self._settings = settings
        self._control = control
        self._file = (settings.mutants / f"{bug.id}.py").resolve()
        self._min_world = bug.min_world
        self._confirmed_at = 0.0

    def run(self) -> Row:
        """Returns the finished row; also after the control was halted."""
        config = self._settings.config
        if self._min_world > config.size:
            self.row.outcome = f"needs {self._min_world} ranks"
            return self.row
        if not self._control.running():
            self.row.outcome = INTERRUPTED
            return self.row
        coverage = SAMPLED_COVERAGE if self._settings.guidance == "coverage" else 0
        with World(dataclasses.replace(config, preload=(str(self._file),), coverage=coverage)) as world:
            try:
                world.start()
            except InfraError as error:
                # The stock world has started, so a rank that raises here does so in the bug's apply().
                self.row.outcome = NOT_APPLICABLE if "cannot start:" in error.problem else ERROR
                self.row.note = error.problem
                return self.row
            try:
                self._search(world)
            except Stopped:
                self.row.outcome = INTERRUPTED
            except FuzzshardError as error:
                self.row.outcome, self.row.note = ERROR, str(error)
        return self.row

    def _search(self, world: World) -> None:
        settings, row = self._settings, self.row
        runner = ControlledWorld(BugWorld(world, self._stock), self._control)
        config = settings.config
        stream = case_stream(settings.seed, world_size=config.size, cuda=config.device == "cuda")
        on_cuda = config.device == "cuda"
        learner = guided(settings.guidance, stream, settings.seed, world_size=config.size, cuda=on_cuda)
        cases = Prefetch(learner, ahead=4, limit=settings.max_cases)
        began = time.monotonic()
        try:
            while (taken := cases.take()) is not None:
                index, case = taken
                verdict = judge(runner, case)
                new_points = len(world.take_points())
                cases.tell(Feedback(case, verdict.status is Status.PASS, new_points))
                row.cases = index + 1
                row.seconds = time.monotonic() - began
                if verdict.status is Status.INFRA:
                    row.infra += 1
                    self._control.count_infra(verdict)
                    continue
                self._control.count_judged()
                row.stock += verdict.message == SHOWS_WITHOUT
                if verdict.status.is_finding and self._accept(world, runner, Found(index, case, verdict)):
                    row.seconds = self._confirmed_at - began
                    return
        finally:
            cases.close()

    def _accept(self, world: World, runner: ControlledWorld, found: Found) -> bool:
        """Whether ``found`` repeats on fresh ranks."""
        judged = confirm_and_shrink(
            [runner], found.case, found.verdict, emit=self._on_event, budget=self._settings.budget
        )
        if not judged.confirmation.reproduced:
            if not self._control.running():
                raise Stopped
            self.row.flaky += 1
            return False
        self._describe(found, judged)
        self._keep(found, judged, world)
        return True

    def _on_event(self, event: Event) -> None:
        if isinstance(event, FindingConfirmed):
            self._confirmed_at = time.monotonic()

    def _describe(self, found: Found, judged: Judged) -> None:
        row = self.row
        row.outcome, row.found = FOUND, True
        row.verdict, row.signature = judged.verdict.status, judged.verdict.signature
        row.modules_before, row.modules_after = leaf_count(found.case), leaf_count(judged.case)
        row.ops_before, row.ops_after = len(found.case.schedule), len(judged.case.schedule)
        row.mesh_before, row.mesh_after = mesh_text(found.case.mesh), mesh_text(judged.case.mesh)
        row.shrink_seconds = time.monotonic() - self._confirmed_at
        row.shrink_evaluations, row.shrink_finished = judged.evaluations, judged.finished
        row.note = judged.note
        if self._stock.shows(judged.case, judged.verdict):
            row.note += " shrinking slipped to a finding that torch shows without the bug"

    def _keep(self, found: Found, judged: Judged, world: World) -> None:
        """Writes case and script as a campaign does, and runs the script with the bug and without."""
        keeper = Keeper(self._settings.keep / self.row.id, (self._file,), scripts, check)
        folder = keeper.save_found(found, world.info)
        entry = keeper.save_judged(folder, judged)
        if not self._settings.scripts:
            return
        with_bug = keeper.verify(folder, entry)
        stock = check(folder / SCRIPT_FILE, entry.case.mesh.size)
        without_bug = stock.fails
        self.row.script_ok = with_bug and not without_bug
        if not with_bug:
            self.row.note += " the script passes with the bug"
        if without_bug:
            (folder / "without-bug.log").write_text(stock.output)
            self.row.note += " the script fails without the bug (its output is beside it)"


def totals(rows: list[Row]) -> dict[str, int]:
    """``total`` counts the bugs that could be found here; the others are counted by why not."""
    return {
        "found": sum(row.found for row in rows),
        "total": sum(row.counts for row in rows),
        "not_applicable": sum(row.outcome == NOT_APPLICABLE for row in rows),
        "needs_ranks": sum(row.outcome.startswith("needs") for row in rows),
        "interrupted": sum(row.outcome == INTERRUPTED for row in rows),
        "errors": sum(row.outcome == ERROR for row in rows),
        "scripts_ok": sum(row.script_ok is True for row in rows),
        "stock_findings": sum(row.stock for row in rows),
        "flaky": sum(row.flaky for row in rows),
    }
