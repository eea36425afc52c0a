"""``fuzzshard shrink``: a smaller case of the same finding."""

from __future__ import annotations

import sys
from pathlib import Path

from fuzzshard.case.validate import validate
from fuzzshard.commands.options import DEFAULT_CORPUS, Device, Duration, Preload, world_config
from fuzzshard.corpus.entry import read_entry
from fuzzshard.corpus.replay import LARGEST_CPU_WORLD
from fuzzshard.corpus.store import CASE_FILE, only_case
from fuzzshard.errors import EXIT_CLEAN, EXIT_INCONCLUSIVE, InfraError
from fuzzshard.verdict import Status


def shrink(
    path: Path,
    /,
    *,
    max_time: Duration = None,
    corpus: Path = DEFAULT_CORPUS,
    device: Device = "auto",
    world_size: int | None = None,
    preload: Preload = (),
) -> int:
    """Reduce a case that shows a finding to a minimal one that shows the same.

    An entry is replaced by its smaller form; its unshrunk.json stays. The
    finding of a bare case file becomes a new entry of the corpus. Exit code 0:
    the result is saved; 3: there is no finding, or it did not repeat.

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
    """
    from fuzzshard import reproducer
    from fuzzshard.campaign.judge import SHRINK_BUDGET, confirm_and_shrink, judge_clearly
    from fuzzshard.campaign.keep import Keeper
    from fuzzshard.campaign.known import Found
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
    with World(config) as world:
        case, verdict = judge_clearly(world, case)
        if verdict.status is Status.INFRA:
            raise InfraError(verdict.message, "run fuzzshard doctor")
        if not verdict.status.is_finding:
            print(f"no finding to shrink: the case is {verdict.status} here")
            return EXIT_INCONCLUSIVE
        print(f"shrinking {verdict.signature}", flush=True)
        judged = confirm_and_shrink(world, case, verdict, budget=budget)
        info = world.info
    confirmed = judged.confirmation
    if not confirmed.reproduced:
        print("the finding did not repeat on fresh ranks; nothing is changed")
        return EXIT_INCONCLUSIVE
    keeper = Keeper(corpus, preload, reproducer.scripts, reproducer.check)
    folder = file.parent
    if file.name != CASE_FILE:
        folder = keeper.save_found(Found(index=0, case=case, verdict=verdict), info)
    entry = keeper.save_judged(folder, judged, info)
    keeper.verify(folder, entry)
    rate = f"{confirmed.reproduced} of {confirmed.runs} runs on fresh ranks show it"
    print(f"{folder}: {judged.evaluations} cases tried; {rate}" + (f"; {judged.note}" if judged.note else ""))
    return EXIT_CLEAN
