"""Hunting one planted bug: draw until a finding that stock torch does not show, then shrink and
check it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from bug_worlds import (
    SHOWS_WITHOUT,
    STOCK_RUNS,
    BugWorld,
    StockWorld,
    mends_beside,
    stock_world,
)
from hunt_rows import (
    ERROR,
    INTERRUPTED,
    MISSED,
    NOT_APPLICABLE,
    PlantedBug,
    Row,
    Shrinking,
    describe_sizes,
)

from fuzzshard.campaign.control import Control, ControlledWorld
from fuzzshard.campaign.drawing import Prefetch
from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.judge import Stopped, judge
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.reduce import Judged, confirm_and_shrink
from fuzzshard.case.case import Case
from fuzzshard.corpus.store import SCRIPT_FILE
from fuzzshard.errors import FuzzshardError, InfraError
from fuzzshard.events import Event, FindingConfirmed, PhaseChanged
from fuzzshard.reproducer import check, scripts
from fuzzshard.runner import Runner
from fuzzshard.shrink import Budget
from fuzzshard.strategies.steered import steered_stream
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig


@dataclasses.dataclass
class Reduced:
    """What became of a finding. ``always``: it came back in every run, as found and as shrunk."""

    judged: Judged
    shrinking: Shrinking
    always: bool


def reduced(
    runner: Runner,
    found: Found,
    budget: Budget,
    confirmed: Callable[[], None] = lambda: None,
) -> Reduced:
    """Confirms ``found``, calls ``confirmed``, and shrinks it; the time is that of shrinking
    alone.
    """
    began = ended = 0.0
    always = False

    def on_event(event: Event) -> None:
        nonlocal began, ended, always
        if isinstance(event, FindingConfirmed):
            always = event.reproduced == event.runs
            confirmed()
        elif isinstance(event, PhaseChanged) and event.phase == "shrinking":
            began = time.monotonic()
        elif isinstance(event, PhaseChanged) and began:
            ended = ended or time.monotonic()

    judged = confirm_and_shrink(runner, found.case, found.verdict, emit=on_event, budget=budget)
    if began and not ended:  # nothing smaller was there to be confirmed
        ended = time.monotonic()
    shrinking = Shrinking(
        seconds=ended - began,
        evaluations=judged.evaluations,
        finished=judged.finished,
    )
    return Reduced(judged, shrinking, always and not judged.confirmation.flaky)


def goes_away(found: Case, shrunk: Case, stock: StockWorld) -> bool:
    """Whether a finding is the bug's: its case passes without the bug every time, as found and as
    shrunk.
    """
    return all(stock.passes(case, runs=STOCK_RUNS) for case in dict.fromkeys((found, shrunk)))


def mending_file(folder: Path, *mends: str) -> Path:
    """A file that a script preloads to run on torch with ``mends``."""
    file = folder.resolve() / "mended.py"
    file.write_text(
        "from fuzzshard.mending.patch import Mended\n\n\ndef apply():\n"
        f"    Mended().switch({mends!r}, compiles=False)\n"
    )
    return file


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuntSettings:
    """What all hunts have in common. ``keep`` is the folder that gets a corpus for each bug.

    A hunt ends with ``findings``, of which the first is shrunk and the others have their
    signatures counted. torch has ``mends``, with the bug and without.
    """

    mutants: Path
    config: WorldConfig
    seed: int
    max_cases: int
    budget: Budget
    keep: Path
    scripts: bool = True
    findings: int = 1
    mends: tuple[str, ...] = ()


class Hunt:
    """The hunt of one bug; :meth:`run` once."""

    def __init__(self, bug: PlantedBug, settings: HuntSettings, control: Control) -> None:
        self.row = Row(
            id=bug.id,
            difficulty=bug.difficulty,
            outcome=MISSED,
            seed=settings.seed,
        )
        self._settings = settings
        self._control = control
        self._file = (settings.mutants / f"{bug.id}.py").resolve()
        self._min_world = bug.min_world
        self._mends = settings.mends
        self._confirmed_at = 0.0

    @property
    def _stock(self) -> StockWorld:
        return stock_world(self._settings.config, 0, self._mends)

    def run(self) -> Row:
        """Returns the finished row; also after the control was halted."""
        config = self._settings.config
        if self._min_world > config.size:
            self.row.outcome = f"needs {self._min_world} ranks"
            return self.row
        if not self._control.running():
            self.row.outcome = INTERRUPTED
            return self.row
        with World(dataclasses.replace(config, preload=(str(self._file),))) as world:
            try:
                world.start()
            except InfraError as error:
                self.row.outcome = NOT_APPLICABLE if "cannot start:" in error.problem else ERROR
                self.row.note = error.problem
                return self.row
            self._mends = mends_beside(self._file, self._settings.mends)
            try:
                self._search(world)
            except Stopped:
                self.row.outcome = INTERRUPTED
            except FuzzshardError as error:
                self.row.outcome, self.row.note = ERROR, str(error)
        return self.row

    def _search(self, world: World) -> None:
        settings, row = self._settings, self.row
        runner = ControlledWorld(BugWorld(world, self._stock, self._mends), self._control)
        config = settings.config
        on_cuda = config.device == "cuda"
        stream = steered_stream(settings.seed, world_size=config.size, cuda=on_cuda)
        cases = Prefetch(stream, ahead=4, limit=settings.max_cases)
        began = time.monotonic()
        try:
            while (taken := cases.take()) is not None:
                index, case = taken
                verdict = judge(runner, case)
                if not row.found:
                    row.cases, row.seconds = index + 1, time.monotonic() - began
                if verdict.status is Status.INFRA:
                    row.infra += 1
                    self._control.count_infra(verdict)
                    continue
                self._control.count_judged()
                row.stock += verdict.message == SHOWS_WITHOUT
                if verdict.status.is_finding and row.found:
                    row.signatures[verdict.signature] = (
                        row.signatures.get(verdict.signature, 0) + 1
                    )
                elif verdict.status.is_finding and self._accept(
                    runner, Found(index, case, verdict)
                ):
                    row.seconds = self._confirmed_at - began
                if sum(row.signatures.values()) >= settings.findings:
                    return
        finally:
            cases.close()

    def _accept(self, runner: ControlledWorld, found: Found) -> bool:
        """Whether ``found`` comes back every time, and goes away without the bug."""
        self._confirmed_at = 0.0
        reduction = reduced(runner, found, self._settings.budget, self._on_confirmed)
        judged = reduction.judged
        if not reduction.always:
            if not self._control.running():
                raise Stopped
            self.row.flaky += 1
            return False
        if not goes_away(found.case, judged.case, self._stock):
            self.row.stock += 1
            return False
        self.row.shrinkings.append(reduction.shrinking)
        self._describe(found, judged)
        self._keep(found, judged)
        return True

    def _on_confirmed(self) -> None:
        self._confirmed_at = self._confirmed_at or time.monotonic()

    def _describe(self, found: Found, judged: Judged) -> None:
        describe_sizes(self.row, found.case, judged)
        self.row.note = judged.note
        if judged.verdict.internal:
            self.row.note += " internal: only an instrument sees it"

    def _keep(self, found: Found, judged: Judged) -> None:
        """Writes case and script as a campaign does, and runs the script with the bug and
        without.
        """
        corpus, mends = self._settings.keep / self.row.id, self._mends
        corpus.mkdir(parents=True, exist_ok=True)
        mended = (mending_file(corpus, *mends),) if mends else ()
        store = FindingStore(corpus, (self._file, *mended), scripts, check)
        folder = store.save_found(found, judged.info)
        entry = store.save_judged(folder, judged)
        if not self._settings.scripts:
            return
        with_bug = store.verify(folder, entry)
        stock = check(folder / SCRIPT_FILE, entry.case.mesh.size, preload=mended)
        without_bug = stock.fails
        self.row.script_ok = with_bug and not without_bug
        self.row.script_lines = len((folder / SCRIPT_FILE).read_text().splitlines())
        if not with_bug:
            self.row.note += " the script passes with the bug"
        if without_bug:
            (folder / "without-bug.log").write_text(stock.output)
            self.row.note += " the script fails without the bug (its output is beside it)"
