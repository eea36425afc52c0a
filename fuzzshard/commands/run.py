"""``fuzzshard run``: a campaign."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fuzzshard.case.case import EngineName
from fuzzshard.case.feature_words import globs_of_words
from fuzzshard.case.steering import Steering
from fuzzshard.commands.options import (
    DEFAULT_CORPUS,
    Confirm,
    Device,
    Duration,
    ExtraMends,
    Globs,
    Guidance,
    Json,
    Preload,
    RanksPerDevice,
)
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import digest
from fuzzshard.corpus.store import only_case


def run(
    *,
    profile: str | None = None,
    max_time: Duration = None,
    max_cases: int | None = None,
    max_findings: int | None = None,
    stop_after_no_new: Duration = None,
    fresh: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    corpus: Path = DEFAULT_CORPUS,
    device: Device = "auto",
    world_size: int | None = None,
    worlds: Annotated[int | Literal["auto"], Parameter(metavar="INT|auto")] = 1,
    ranks_per_device: RanksPerDevice = 1,
    engine: Annotated[tuple[EngineName, ...], Parameter(negative=(), show_default=False)] = (),
    only: Globs = (),
    exclude: Globs = (),
    require: Globs = (),
    like: str = "",
    focus: Path | None = None,
    preload: Preload = (),
    shrink: bool = True,
    confirm: Confirm = 3,
    mends: Literal["both", "on", "off"] = "both",
    extra_mends: ExtraMends = (),
    guidance: Guidance = "none",
    as_json: Json = False,
) -> int:
    """Draw random cases and run them until a limit is reached, or until Ctrl-C.

    Each finding is saved as soon as it is seen, confirmed on fresh ranks,
    reduced to a minimal case and saved again with a script that shows it.
    A campaign that was killed or interrupted goes on with the same command.
    What known bugs of torch cause is counted by cause, and fails nothing; nor
    do findings that the corpus has already.

    For example:
      fuzzshard run --max-time 10m
      fuzzshard run --profile ci
      fuzzshard run --max-cases 500 --seed 7 --device cpu --world-size 2
      fuzzshard run --engine fully_shard --max-findings 1 --corpus /data/corpus
      fuzzshard run --require mesh:hsdp 'checkpoint:*' --exclude 'compile:*'
      fuzzshard run --like "hsdp bf16 checkpoint" --max-time 10m
      fuzzshard run --focus corpus/findings/NAME --max-time 10m
      fuzzshard run --worlds auto --world-size 2 --max-time 8h

    Parameters
    ----------
    profile
        Several options under one name: ci, nightly, soak or dev, or a table
        [tool.fuzzshard.profiles.NAME] of the pyproject.toml here or above.
    max_time
        Stop after this long: 90s, 10m, 2h.
    max_cases
        Stop after this many cases.
    max_findings
        Stop after this many distinct findings that the corpus did not have.
    stop_after_no_new
        Stop when no pair of features, line of torch or finding was new for this long.
    fresh
        Begin a new campaign where an earlier one in the same corpus could be continued.
    seed
        What the random cases are drawn from; without it a fresh one, which is printed.
    corpus
        The folder of the campaign: its findings and its journal. Findings that it has already are
        known.
    device
        auto is CUDA with NCCL where there is any, else the CPU with gloo.
    world_size
        Ranks of a world, and so the largest mesh. By default all that CUDA devices take, or 4 on
        CPU.
    worlds
        How many worlds run cases at the same time. auto fills the node: a core for each rank on
        CPU; on CUDA a set of devices for each world, shared by several where there are cores for
        it.
    ranks_per_device
        How many ranks of a world may share a CUDA device, for meshes larger than the node: slower
        by far.
    engine
        An engine that cases may have; repeat it for several. By default all. The same as --only
        engine:NAME.
    only
        Features, such as 'mesh:[23]': of the same dimension (mesh) cases have no others. See
        fuzzshard features for the names.
    exclude
        Features that no case has.
    require
        Features that every case has: for each glob one that matches. 'A|B' matches what A or B
        does.
    like
        Words in place of --require, such as "hsdp bf16 checkpoint". What they stand for is
        printed.
    focus
        An entry or a case file. Half of the cases are mutants of it, the others share its rarest
        features.
    preload
        A Python file that every rank runs first; repeat it for several.
    shrink
        Whether to reduce findings to minimal cases.
    confirm
        How often a finding is run again on fresh ranks, as found and when it is shrunk. One that
        stays away in one of these runs is flaky: it gets at least ten, and keeps its rate.
    mends
        On which torch cases run. on: with known bugs mended, which then neither show nor hide
        others; what fails there counts if it fails on torch as it is. off: as it is, where every
        bug is news. both: three cases of four mended, the others as it is.
    extra_mends
        A folder with mends of your own, one Python file each; repeat it for several.
    guidance
        What cases are chosen by: none, the features they combine, or also
        their coverage of torch's own Python.
    as_json
        Print one JSON object for each event, and no panel.
    """
    from fuzzshard.campaign.loop import run_campaign
    from fuzzshard.campaign.options import CampaignOptions
    from fuzzshard.report.html.page import ReportWriter
    from fuzzshard.report.sinks import make_sink, tee
    from fuzzshard.report.stats import StatsWriter

    steering = _steering(only, exclude, require, like, focus, engine)
    options = CampaignOptions(
        max_cases=max_cases,
        max_time=max_time,
        max_findings=max_findings,
        stop_after_no_new=stop_after_no_new,
        fresh=fresh,
        seed=seed,
        world_size=world_size,
        worlds=worlds,
        ranks_per_device=ranks_per_device,
        device=device,
        steering=steering,
        corpus=corpus,
        preload=preload,
        shrink=shrink,
        confirm=confirm,
        mends=mends,
        extra_mends=extra_mends,
        guidance=guidance,
    )
    with make_sink(json=as_json) as sink:
        return run_campaign(options, tee(StatsWriter(corpus), ReportWriter(corpus), sink))


def _steering(
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    require: tuple[str, ...],
    like: str,
    focus: Path | None,
    engine: tuple[EngineName, ...],
) -> Steering:
    """Return what the options ask for; print what the words of ``like`` stand for."""
    globs = globs_of_words(like) if like else {}
    for words, glob in globs.items():
        print(f"{words!r} is --require {shlex.quote(glob)}", file=sys.stderr)
    case = None if focus is None else read_entry(only_case(focus)).case
    return Steering(
        only=(*only, *(f"engine:{name}" for name in dict.fromkeys(engine))),
        exclude=exclude,
        require=(*require, *globs.values()),
        focus=case,
        focus_name="" if case is None else f"{focus} ({digest(case)})",
    )
