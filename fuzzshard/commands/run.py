"""``fuzzshard run``: a campaign."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fuzzshard.analysis.steering import Steering
from fuzzshard.campaign.options import CampaignOptions
from fuzzshard.case.case import EngineName
from fuzzshard.options import Json

Engines = Annotated[tuple[EngineName, ...], Parameter(negative=(), show_default=False)]
Globs = Annotated[
    tuple[str, ...],
    Parameter(negative=(), consume_multiple=True, show_default=False, metavar="GLOB..."),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which cases are drawn.

    Parameters
    ----------
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
    focus
        An entry or a case file. It comes first; the others share its rarest features.
    """

    engine: Engines = ()
    only: Globs = ()
    exclude: Globs = ()
    require: Globs = ()
    focus: Path | None = None

    def steering(self) -> Steering:
        """Return what is asked for."""
        from fuzzshard.corpus.codec import read_entry
        from fuzzshard.corpus.entry import digest
        from fuzzshard.corpus.store import only_case

        case = None if self.focus is None else read_entry(only_case(self.focus)).case
        return Steering(
            only=(*self.only, *(f"engine:{name}" for name in dict.fromkeys(self.engine))),
            exclude=self.exclude,
            require=self.require,
            focus=case,
            focus_name="" if case is None else f"{self.focus} ({digest(case)})",
        )


def run(
    *,
    campaign: Annotated[CampaignOptions, Parameter(name="*")] = CampaignOptions(),
    wanted: Annotated[Wanted, Parameter(name="*")] = Wanted(),
    cluster: Annotated[str, Parameter(show=False)] = "",
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
      fuzzshard run --max-cases 500 --seed 7 --device cpu --world-size 2
      fuzzshard run --engine fully_shard --max-findings 1 --corpus /data/corpus
      fuzzshard run --require mesh:hsdp 'checkpoint:*' --exclude 'compile:*'
      fuzzshard run --focus corpus/findings/NAME --max-time 10m
      fuzzshard run --worlds auto --world-size 2 --max-time 8h
      fuzzshard run --worlds auto --corpus /local/fuzz --exchange /nfs/fuzz

    Parameters
    ----------
    cluster
        The address of the Ray cluster with the nodes; fleet run gives it.
    as_json
        Print one JSON object for each event instead of the panel.
    """
    from fuzzshard.world.processes import import_torch_meanwhile

    import_torch_meanwhile()
    from fuzzshard.campaign.loop import run_campaign
    from fuzzshard.report.html.page import report_writer
    from fuzzshard.report.sinks import make_sink, tee
    from fuzzshard.report.stats import stats_writer

    steering = wanted.steering()
    if not steering.of_engines_alone:
        print("looking for such cases takes up to half a minute", file=sys.stderr, flush=True)
    options = dataclasses.replace(campaign, steering=steering)
    with contextlib.ExitStack() as stack:
        if options.nodes:
            from fuzzshard.fleet.cluster import borrowing

            stack.enter_context(borrowing(cluster))
        sink = stack.enter_context(make_sink(json=as_json))
        writers = stats_writer(options.corpus), report_writer(options.corpus)
        return run_campaign(options, tee(*writers, sink))
