"""``fuzzshard shrink``: a smaller case of the same finding."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from fuzzshard.case.case import Case
from fuzzshard.case.validate import validate
from fuzzshard.commands.options import (
    DEFAULT_CORPUS,
    Confirm,
    DeviceHere,
    Duration,
    ExtraMends,
    Folder,
    Preload,
    RanksShared,
    world_config,
)
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.outcome import LARGEST_CPU_WORLD
from fuzzshard.corpus.store import CASE_FILE, only_case
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InfraError
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict
from fuzzshard.world.config import WorldConfig


def shrink(
    path: Path,
    /,
    *,
    max_time: Annotated[Duration, Parameter(name=("--max-time", "--time"))] = None,
    corpus: Folder = DEFAULT_CORPUS,
    device: DeviceHere = "auto",
    world_size: int | None = None,
    ranks_per_device: RanksShared = 1,
    mends: Literal["both", "off"] = "both",
    extra_mends: ExtraMends = (),
    preload: Preload = (),
    confirm: Confirm = 3,
    worlds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1,
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
    world_size
        Number of ranks to start. By default what the mesh of the case needs.
    mends
        both: if the case also fails with known bugs of torch fixed in memory, the shrunk case must
        fail with and without the fixes. off: no fixes are applied.
    confirm
        How often to run the finding again on fresh ranks, before and after.
    worlds
        How many cases run at the same time, each on its own ranks. Faster, with the same result.
    """
    from fuzzshard import reproducer
    from fuzzshard.campaign.control import (
        Control,
        ControlledCheck,
        ControlledWorld,
        cpu_ranks,
        ended_in_time,
        run_by,
        signals_call,
    )
    from fuzzshard.campaign.explain import unknown_part
    from fuzzshard.campaign.judge import Stopped
    from fuzzshard.campaign.keep import Keeper
    from fuzzshard.campaign.known import Found
    from fuzzshard.campaign.reduce import SHRINK_BUDGET, confirm_and_shrink
    from fuzzshard.events import PhaseChanged
    from fuzzshard.mending.mend import mends_for
    from fuzzshard.report.busy import busy
    from fuzzshard.report.stages import Stages
    from fuzzshard.shrink import Budget
    from fuzzshard.world import World, resolve_device

    known_bugs = mends_for(extra=extra_mends) if mends == "both" else ()
    file = only_case(path)
    known = read_entry(file)
    kind, num_devices = resolve_device(device)
    if world_size is None:
        needed = known.case.mesh.size
        world_size = needed if kind == "cuda" else min(needed, LARGEST_CPU_WORLD)
    config = world_config(
        kind,
        num_devices,
        preload,
        size=world_size,
        ranks_per_device=ranks_per_device,
    )
    validate(known.case, config.size)
    budget = SHRINK_BUDGET if max_time is None else Budget(sys.maxsize, math.inf)
    control, stages = Control(max_time), Stages()
    check = ControlledCheck(reproducer.check, control)
    keeper = Keeper(corpus, preload, reproducer.scripts, check)
    all_worlds: list[World] = []

    def make_world(config: WorldConfig) -> World:
        all_worlds.append(World(config))
        return all_worlds[-1]

    def doing() -> str:
        finishing = "" if control.accepting() else f"{control.reason}, finishing: "
        return f"{finishing}{stages.texts().get(0, 'running the case')}"

    folder = None
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(signals_call(control.halt_or_raise))
            stack.enter_context(busy(doing))
            stack.enter_context(
                ended_in_time(control, lambda: [pid for w in all_worlds for pid in w.pids])
            )
            started = [stack.enter_context(make_world(config)) for _ in range(worlds)]
            worlds_run = [ControlledWorld(world, control) for world in started]
            case, verdict = _first_seen(worlds_run[0], known)
            if verdict.status is Status.INFRA:
                raise InfraError(verdict.message, "run fuzzshard doctor")
            if not verdict.status.is_finding:
                print(f"no finding to shrink: the case is {verdict.status} here")
                return EXIT_INCONCLUSIVE
            verdict, runner = unknown_part(worlds_run[0], case, verdict, known_bugs)
            if known.signature not in ("", verdict.signature):
                print(
                    f"CHANGED  {path}  {verdict.signature}, was {known.signature}; nothing is "
                    "written"
                )
                return EXIT_INCONCLUSIVE
            if file.name != CASE_FILE or not known.signature:
                folder = keeper.save_found(
                    Found(index=0, case=case, verdict=verdict), worlds_run[0].info
                )
            else:
                folder = file.parent
            print(f"shrinking {verdict.signature} in {folder}", flush=True)
            on_cpu = cpu_ranks(config, make_world, control, worlds=worlds)
            judged = confirm_and_shrink(
                [runner(world) for world in worlds_run],
                case,
                verdict,
                on_cpu=on_cpu and run_by(runner, on_cpu),
                emit=stages.update,
                keep=functools.partial(keeper.save_smaller, folder),
                runs=confirm,
                budget=budget,
                seconds_left=control.seconds_left,
            )
            rate = judged.confirmation.text()
            if not judged.confirmation.reproduced:
                if judged.cut_off:
                    raise Stopped
                print(f"nothing is changed: the finding did not repeat, {rate}")
                return EXIT_INCONCLUSIVE
            entry = keeper.save_judged(folder, judged)
            note = f"; {judged.note}" if judged.note else ""
            print(
                f"{folder}: {judged.evaluations} cases tried; on fresh ranks {rate} show it{note}"
            )
            if judged.cut_off:
                raise Stopped
            stages.update(PhaseChanged(phase="verifying", signature=entry.signature))
            keeper.verify(folder, entry)
    except Stopped:
        control.accepting()
        print(f"{control.reason}: fuzzshard shrink {folder or path} goes on with it")
        if control.interrupted:
            return EXIT_INTERRUPTED
        return EXIT_CLEAN if folder is not None else EXIT_INCONCLUSIVE
    return EXIT_INTERRUPTED if control.interrupted else EXIT_CLEAN


def _first_seen(world: Runner, known: CorpusEntry) -> tuple[Case, Verdict]:
    """The case and its verdict; a finding that is known to be flaky may take several runs to
    show.
    """
    from fuzzshard.campaign.judge import FLAKY_RUNS, judge_clearly

    for _ in range(FLAKY_RUNS if known.flaky else 1):
        case, verdict = judge_clearly(world, known.case)
        is_it = verdict.status.is_finding and known.signature in ("", verdict.signature)
        if is_it or verdict.status is Status.INFRA:
            break
    return case, verdict
