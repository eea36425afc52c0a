"""``fuzzshard shrink``: a smaller case of the same finding."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard.case.validate import validate
from fuzzshard.commands.options import DEFAULT_CORPUS, Confirm, Device, Duration, Preload, world_config
from fuzzshard.corpus.entry import read_entry
from fuzzshard.corpus.outcome import LARGEST_CPU_WORLD
from fuzzshard.corpus.store import CASE_FILE, only_case
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InfraError
from fuzzshard.verdict import Status


def shrink(
    path: Path,
    /,
    *,
    max_time: Annotated[Duration, Parameter(name=("--max-time", "--time"))] = None,
    corpus: Path = DEFAULT_CORPUS,
    device: Device = "auto",
    world_size: int | None = None,
    preload: Preload = (),
    confirm: Confirm = 3,
) -> int:
    """Reduce a case that shows a finding to a minimal one that shows the same.

    An entry is replaced by its smaller form; its unshrunk.json stays. The
    finding of a bare case file becomes a new entry of the corpus. The smallest
    case so far is always on disk: after Ctrl-C, or when the time is up, the
    same command goes on from there. Exit code 0: the result is saved; 3: there
    is no finding, or it did not repeat; 130: interrupted.

    For example:
      fuzzshard shrink corpus/findings/NAME --max-time 10m
      fuzzshard shrink case.json --corpus corpus

    Parameters
    ----------
    path
        An entry or a case file.
    max_time
        How long to shrink: 90s, 10m. By default as long as a campaign does.
    corpus
        Where the finding of a bare case file is saved.
    device
        auto is CUDA with NCCL where there is any, else the CPU with gloo.
    world_size
        Ranks to start. By default as many as the mesh of the case needs.
    preload
        A Python file that every rank runs first; repeat it for several.
    confirm
        How often the finding is run again on fresh ranks, before and after.
    """
    from fuzzshard import reproducer
    from fuzzshard.campaign.control import Control, ControlledWorld
    from fuzzshard.campaign.judge import SHRINK_BUDGET, Stopped, confirm_and_shrink, judge_clearly
    from fuzzshard.campaign.keep import Keeper
    from fuzzshard.campaign.known import Found
    from fuzzshard.campaign.signals import signals_call
    from fuzzshard.shrink import Budget
    from fuzzshard.world import World, resolve_device

    file = only_case(path)
    case = read_entry(file).case
    kind, num_devices = resolve_device(device)
    default = case.mesh.size if kind == "cuda" else min(case.mesh.size, LARGEST_CPU_WORLD)
    config = world_config(kind, num_devices, preload, asked=world_size, default=default)
    validate(case, config.size)
    budget = (
        Budget(max_evaluations=sys.maxsize, max_seconds=max_time) if max_time is not None else SHRINK_BUDGET
    )
    control = Control(None)
    keeper = Keeper(corpus, preload, reproducer.scripts, reproducer.check)
    try:
        with signals_call(control.halt_or_raise), World(config) as started:
            world = ControlledWorld(started, control)
            case, verdict = judge_clearly(world, case)
            if verdict.status is Status.INFRA:
                raise InfraError(verdict.message, "run fuzzshard doctor")
            if not verdict.status.is_finding:
                print(f"no finding to shrink: the case is {verdict.status} here")
                return EXIT_INCONCLUSIVE
            folder = file.parent
            if file.name != CASE_FILE:
                folder = keeper.save_found(Found(index=0, case=case, verdict=verdict), started.info)
            print(f"shrinking {verdict.signature} in {folder}", flush=True)
            judged = confirm_and_shrink(
                world,
                case,
                verdict,
                keep=lambda case, verdict: keeper.save_smaller(folder, case, verdict, started.info),
                runs=confirm,
                budget=budget,
            )
            info = started.info
    except Stopped:
        return EXIT_INTERRUPTED
    if not judged.confirmation.reproduced:
        if control.halted:
            return EXIT_INTERRUPTED
        print(f"nothing is changed: the finding did not repeat, {judged.confirmation.text()}")
        return EXIT_INCONCLUSIVE
    entry = keeper.save_judged(folder, judged, info)
    if not control.halted:
        keeper.verify(folder, entry)
    rate = f"on fresh ranks {judged.confirmation.text()} show it"
    print(f"{folder}: {judged.evaluations} cases tried; {rate}" + (f"; {judged.note}" if judged.note else ""))
    return EXIT_INTERRUPTED if control.halted else EXIT_CLEAN
