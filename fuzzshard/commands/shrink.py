"""``fuzzshard shrink``: a smaller case of the same finding."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fuzzshard import reproducer
from fuzzshard.analysis.validate import validate
from fuzzshard.campaign.control import ControlledCheck
from fuzzshard.campaign.explain import unknown_part
from fuzzshard.campaign.finding_store import FindingStore
from fuzzshard.campaign.judge import FLAKY_RUNS, Stopped, judge_clearly
from fuzzshard.campaign.known import Found
from fuzzshard.campaign.options import CONFIRM_RUNS
from fuzzshard.campaign.reduce import SHRINK_BUDGET, confirm_and_shrink
from fuzzshard.case.case import Case
from fuzzshard.commands.worlds import CommandWorlds
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.replay import shown_path
from fuzzshard.corpus.store import CASE_FILE, only_case
from fuzzshard.drafts.reduced import reduced_script
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InfraError
from fuzzshard.events import PhaseChanged
from fuzzshard.mending.mend import mends_for
from fuzzshard.options import (
    DEFAULT_CORPUS,
    AtLeastOne,
    Duration,
    ExtraMends,
    Folder,
    RankOptions,
)
from fuzzshard.report.busy import busy
from fuzzshard.report.stages import Stages
from fuzzshard.runner import Runner
from fuzzshard.shrink import Budget
from fuzzshard.verdict import Status, Verdict


def shrink(
    path: Path,
    /,
    *,
    max_time: Annotated[Duration, Parameter(name=("--max-time", "--time"))] = None,
    corpus: Folder = DEFAULT_CORPUS,
    ranks: Annotated[RankOptions, Parameter(name="*")] = RankOptions(),
    mends: Literal["both", "off"] = "both",
    extra_mends: ExtraMends = (),
    confirm: AtLeastOne = CONFIRM_RUNS,
) -> int:
    """Shrink a case with a finding to a minimal one with the same finding.

    The shrunk case replaces that of an entry; its unshrunk.json stays. The
    finding of a bare case becomes a new entry of the corpus, and the file of
    the case is never written to. The smallest case so far is always on disk:
    after Ctrl-C, or when the time is up, the same command goes on from there.
    A CUDA finding that also shows on the CPU becomes a CPU entry.

    Exit code 0: the result is saved; 3: there is no finding, another one than
    the entry records, or it did not repeat; 130: interrupted.

    For example:
      fuzzshard shrink corpus/findings/NAME --max-time 10m
      fuzzshard shrink mine/case.json --corpus corpus

    Parameters
    ----------
    path
        An entry or a case file.
    max_time
        Stop after this long: 90s, 10m. By default it shrinks as long as a campaign would.
    corpus
        Where to save the finding of a bare case.
    mends
        both: if the case also fails with known bugs of torch fixed in memory, the shrunk case must
        fail with and without the fixes. off: no fixes are applied.
    confirm
        How often to run the finding again on fresh ranks, before and after.
    """
    known_bugs = mends_for(extra=extra_mends) if mends == "both" else ()
    file = only_case(path)
    known = read_entry(file)
    size = ranks.world_size
    if size is None:
        needed = known.case.mesh.size
        size = needed if ranks.kind == "cuda" else min(needed, ranks.most)
    here = CommandWorlds(dataclasses.replace(ranks, world_size=size), 1, max_time=max_time)
    validate(known.case, size)
    check = ControlledCheck(reproducer.check, here.control)
    said = list[str]()
    reduce = functools.partial(
        reduced_script, check=check, wanted=here.control.running, now=said.append
    )
    store = FindingStore(corpus, ranks.preload, reproducer.scripts, check, reduce)
    work = _Work(file, known, here, store, confirm, said)
    control = here.control
    try:
        with here.ending_with_signals(), busy(work.doing), here.start(size) as (world,):
            work.run(world, known_bugs, SHRINK_BUDGET if max_time is None else _UNBOUNDED)
    except _Nothing as why:
        print(why)
        return EXIT_INCONCLUSIVE
    except Stopped:
        control.accepting()
        again = f"fuzzshard shrink {work.folder}" if work.folder else "the same command"
        print(f"{control.reason}: {again} goes on with it")
        if not control.interrupted:
            return EXIT_INCONCLUSIVE if work.folder is None else EXIT_CLEAN
    return EXIT_INTERRUPTED if control.interrupted else EXIT_CLEAN


_UNBOUNDED = Budget(sys.maxsize, math.inf)


class _Nothing(Exception):
    """Says why nothing is shrunk."""


@dataclasses.dataclass
class _Work:
    """What is done with the entry ``known``, which ``file`` holds; ``folder`` is the one that has
    the smallest case so far, once it is saved. Reducing its script has ``said`` how far it is.
    """

    file: Path
    known: CorpusEntry
    here: CommandWorlds
    store: FindingStore
    confirm: int
    said: list[str]
    folder: Path | None = None
    stages: Stages = dataclasses.field(default_factory=Stages)

    def doing(self) -> str:
        """Say what is done at this moment."""
        control = self.here.control
        finishing = "" if control.accepting() else f"{control.reason}, finishing: "
        doing = self.said[-1] if self.said else self.stages.texts().get(0, "running the case")
        return f"{finishing}{doing}"

    def run(self, world: Runner, known_bugs: tuple[str, ...], budget: Budget) -> None:
        """Find the finding, shrink it, and save what came of it."""
        case, seen = self._first_seen(world)
        verdict, runner = unknown_part(world, case, seen, known_bugs)
        folder = self._saved(case, verdict, world)
        print(f"shrinking {verdict.signature} in {folder}", flush=True)
        judged = confirm_and_shrink(
            world,
            case,
            verdict,
            on_cpu=self.here.on_cpu(),
            runner=runner,
            emit=self.stages.update,
            keep=functools.partial(self.store.save_smaller, folder),
            runs=self.confirm,
            budget=budget,
            seconds_left=self.here.control.seconds_left,
        )
        rate = judged.confirmation.text()
        if not judged.confirmation.reproduced:
            if judged.cut_off:
                raise Stopped
            raise _Nothing(f"nothing is changed: the finding did not repeat, {rate}")
        entry = self.store.save_judged(folder, judged)
        note = f"; {judged.note}" if judged.note else ""
        print(f"{folder}: {judged.evaluations} cases tried; on fresh ranks {rate} show it{note}")
        if judged.cut_off:
            raise Stopped
        self.stages.update(PhaseChanged(phase="verifying", signature=entry.signature))
        self.store.verify(folder, entry)

    def _first_seen(self, world: Runner) -> tuple[Case, Verdict]:
        """Return the case and its finding; one that is known to be flaky may take several runs to
        show.
        """
        known = self.known
        for _ in range(FLAKY_RUNS if known.flaky else 1):
            case, verdict = judge_clearly(world, known.case)
            is_it = verdict.status.is_finding and known.signature in ("", verdict.signature)
            if is_it or verdict.status is Status.INFRA:
                break
        if verdict.status is Status.INFRA:
            raise InfraError(verdict.message, "run fuzzshard doctor")
        if not verdict.status.is_finding:
            raise _Nothing(f"no finding to shrink: the case is {verdict.status} here")
        return case, verdict

    def _saved(self, case: Case, verdict: Verdict, world: Runner) -> Path:
        """Return the folder of the entry, which is made for a bare case."""
        was = self.known.signature
        if was not in ("", verdict.signature):
            changed = f"{verdict.signature}, was {was}"
            where = shown_path(self.file)
            raise _Nothing(f"CHANGED  {where}  {changed}; nothing is written")
        if self.file.name == CASE_FILE and was:
            self.folder = self.file.parent
        else:
            found = Found(index=0, case=case, verdict=verdict)
            self.folder = self.store.save_found(found, world.info)
        return self.folder
