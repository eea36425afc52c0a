"""What a campaign is asked to do, and what it makes of it on this machine."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fuzzshard.analysis.steering import ANYTHING, Steering
from fuzzshard.errors import UsageError
from fuzzshard.options import (
    DEFAULT_CORPUS,
    AtLeastOne,
    Duration,
    ExtraMends,
    Folder,
    RankOptions,
    Worlds,
)

if TYPE_CHECKING:
    from fuzzshard.world.config import WorldConfig

CONFIRM_RUNS = 3
"""Runs on fresh ranks, of the case as found and of the final one; the rate is kept in the corpus
entry.
"""
MendsMode = Literal["both", "on", "off"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CampaignOptions(RankOptions):
    """One campaign. Without any of the four limits it runs until it is interrupted.

    Parameters
    ----------
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
        device; on CPU 4, or 2 where there are fewer than 4 cores.
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
    nodes
        A node of the cluster of fleet run that has its share of the ranks of each world. Repeat
        for several.
    """

    max_time: Duration = None
    max_cases: int | None = None
    max_findings: int | None = None
    stop_after_no_new: Duration = None
    fresh: Annotated[bool, Parameter(negative=())] = False
    seed: int | None = None
    corpus: Folder = DEFAULT_CORPUS
    worlds: Worlds = 1
    steering: Annotated[Steering, Parameter(parse=False)] = ANYTHING
    shrink: bool = True
    confirm: AtLeastOne = CONFIRM_RUNS
    mends: MendsMode = "both"
    extra_mends: ExtraMends = ()
    exchange: Path | None = None
    nodes: Annotated[tuple[str, ...], Parameter(name="--node", show=False, negative=())] = ()

    def check(self) -> None:
        """Raises :class:`UsageError` for what makes no campaign."""
        from fuzzshard.campaign.exchange import check_exchange
        from fuzzshard.corpus.store import CASE_FILE, FINDINGS_FOLDER
        from fuzzshard.mending.mend import mends_for

        limits = ("max_cases", "max_time", "max_findings", "stop_after_no_new")
        for name in (*limits, "world_size", "worlds", "ranks_per_device", "confirm"):
            value = getattr(self, name)
            if isinstance(value, int | float) and value <= 0:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is {value}", "give more than 0, or leave it out")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"the seed is {self.seed}", "use a seed of at least 0")
        if self.extra_mends and self.mends == "off":
            raise UsageError(
                "--extra-mends does nothing with --mends off", "leave one of the two out"
            )
        mends_for(extra=self.extra_mends)
        if self.exchange is not None:
            check_exchange(self.exchange, self.corpus)
        if any(self.corpus.glob(f"*/{CASE_FILE}")):
            raise UsageError(
                f"{self.corpus} is a folder of entries, not a corpus",
                f"name the folder above: a corpus has its entries in {FINDINGS_FOLDER}/",
            )

    def resolved_seed(self) -> int:
        """Return the seed asked for, or a fresh one."""
        return secrets.randbits(32) if self.seed is None else self.seed

    def world_configs(self) -> tuple[WorldConfig, ...]:
        """Return the settings of each world; raises :class:`UsageError` for what cannot be."""
        from fuzzshard.world.config import WorldConfig
        from fuzzshard.world.placement import placed

        self.check()
        kind, num_devices = self.here
        shared = self.ranks_per_device if kind == "cuda" else 1
        size = self.usual if self.world_size else self.usual * (len(self.nodes) + 1)
        config = WorldConfig(size, kind, self.preloaded(), nodes=self.nodes)
        return placed(config, self.worlds, num_devices, shared)
