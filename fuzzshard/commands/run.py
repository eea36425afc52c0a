"""``fuzzshard run``: a campaign."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fuzzshard.case.case import EngineName
from fuzzshard.commands.options import (
    DEFAULT_CORPUS,
    Confirm,
    DeviceHere,
    Duration,
    ExtraMends,
    Folder,
    Globs,
    Json,
    Preload,
    RanksShared,
    WorldsAtOnce,
)

if TYPE_CHECKING:
    from fuzzshard.case.steering import Steering


def run(
    *,
    profile: str | None = None,
    max_time: Duration = None,
    max_cases: int | None = None,
    max_findings: int | None = None,
    stop_after_no_new: Duration = None,
    fresh: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    corpus: Folder = DEFAULT_CORPUS,
    device: DeviceHere = "auto",
    world_size: int | None = None,
    worlds: WorldsAtOnce = 1,
    ranks_per_device: RanksShared = 1,
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
    exchange: Path | None = None,
    cluster: Annotated[str, Parameter(show=False)] = "",
    node: Annotated[tuple[str, ...], Parameter(show=False, negative=())] = (),
    as_json: Json = False,
) -> int:
    """Fuzz: draw random training runs and judge each one, until a limit or Ctrl-C.

    Each finding is saved at once, confirmed on fresh ranks, shrunk to a
    minimal case, and saved again with a script that shows it.
    The same command continues a campaign that was killed or interrupted.
    Findings that known bugs of torch cause are counted for each bug. Neither
    they nor findings that the corpus already has change the exit code.

    For example:
      fuzzshard run --max-time 10m
      fuzzshard run --profile ci
      fuzzshard run --max-cases 500 --seed 7 --device cpu --world-size 2
      fuzzshard run --engine fully_shard --max-findings 1 --corpus /data/corpus
      fuzzshard run --require mesh:hsdp 'checkpoint:*' --exclude 'compile:*'
      fuzzshard run --like "hsdp bf16 checkpoint" --max-time 10m
      fuzzshard run --focus corpus/findings/NAME --max-time 10m
      fuzzshard run --worlds auto --world-size 2 --max-time 8h
      fuzzshard run --worlds auto --corpus /local/fuzz --exchange /nfs/fuzz

    Parameters
    ----------
    profile
        Take several options from a profile: ci, nightly, soak or dev, or a table
        [tool.fuzzshard.profiles.NAME] in the pyproject.toml of this folder or the nearest parent.
    max_time
        Stop after this long: 90s, 10m, 2h.
    max_cases
        Stop after this many cases.
    max_findings
        Stop after this many distinct new findings.
    stop_after_no_new
        Stop when nothing new came for this long: no finding, no feature.
    fresh
        Begin a new campaign even if an earlier one in the same corpus could be continued.
    seed
        The seed of the random cases. By default a random one, which is printed.
    corpus
        The folder of the campaign, with its findings and its journal. Findings that it has
        already do not count as new.
    world_size
        Number of ranks that run a case together: the largest mesh. By default one for each CUDA
        device, or 4 on CPU.
    engine
        Test only this engine. Repeat for several. By default all are tested. The same as --only
        engine:NAME.
    only
        Features, such as 'mesh:[23]'. Cases have no other features of the same dimension (mesh).
        fuzzshard features lists the names.
    exclude
        Features that no case may have.
    require
        Features that every case must have: one that matches for each glob. 'A|B' matches what A
        or B matches.
    like
        Words instead of --require, such as "hsdp bf16 checkpoint". What they stand for is
        printed.
    focus
        An entry or a case file. It comes first; the others share its rarest features.
    shrink
        Whether to shrink findings to minimal cases.
    confirm
        How often to run a finding again on fresh ranks: as found, and as shrunk. A finding that
        is absent in some of these runs is flaky: it gets at least ten runs, and its rate is saved.
    mends
        Whether known bugs of torch are fixed in memory, by "mends". on: yes, so that they hide no
        others; a case that fails counts if it also fails without the fixes. off: no, and known
        bugs count as new. both: on for three of four cases, off for the others.
    exchange
        A folder that several nodes can reach. Campaigns with the same one tell each other what
        they find and work on, so that each finding is shrunk once. Each keeps its own --corpus.
    cluster
        The address of a Ray cluster; fleet run gives it.
    node
        A node of that cluster that has its share of the ranks of each world. Repeat for several.
    as_json
        Print one JSON object for each event instead of the panel.
    """
    from fuzzshard.world.processes import import_torch_meanwhile

    import_torch_meanwhile()
    from fuzzshard.campaign.loop import run_campaign
    from fuzzshard.campaign.options import CampaignOptions
    from fuzzshard.report.html.page import report_writer
    from fuzzshard.report.sinks import make_sink, tee
    from fuzzshard.report.stats import stats_writer

    steering = _steering(only, exclude, require, like, focus, engine)
    if not steering.of_engines_alone:
        print("looking for such cases takes up to half a minute", file=sys.stderr, flush=True)
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
        exchange=exchange,
        nodes=node,
    )
    with contextlib.ExitStack() as stack:
        if node:
            from fuzzshard.fleet.cluster import borrowing

            stack.enter_context(borrowing(cluster))
        sink = stack.enter_context(make_sink(json=as_json))
        return run_campaign(options, tee(stats_writer(corpus), report_writer(corpus), sink))


def _steering(
    only: tuple[str, ...],
    exclude: tuple[str, ...],
    require: tuple[str, ...],
    like: str,
    focus: Path | None,
    engine: tuple[EngineName, ...],
) -> Steering:
    """Return what the options ask for; print what the words of ``like`` stand for."""
    from fuzzshard.case.feature_words import globs_of_words
    from fuzzshard.case.steering import Steering
    from fuzzshard.corpus.codec import read_entry
    from fuzzshard.corpus.entry import digest
    from fuzzshard.corpus.store import only_case

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
