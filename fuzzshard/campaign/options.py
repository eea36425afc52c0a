"""What a campaign is asked to do, and what it makes of it on this machine."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Literal

from fuzzshard.campaign.exchange import check_exchange
from fuzzshard.campaign.judge import CONFIRM_RUNS
from fuzzshard.case.steering import ANYTHING, Steering
from fuzzshard.corpus.store import CASE_FILE, FINDINGS_FOLDER
from fuzzshard.errors import UsageError
from fuzzshard.mending.mend import mends_for
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.placement import Worlds, placed

MendsMode = Literal["both", "on", "off"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """One campaign. Without any of the four limits it runs until it is interrupted.

    ``max_time`` is in seconds and bounds shrinking too. ``max_findings`` counts distinct findings
    that the corpus did not have. ``stop_after_no_new`` is for how many seconds there may be no new
    feature or finding. ``fresh`` begins a new campaign where an earlier one could be
    continued. ``confirm`` is how often a finding is run again, as found and when it is shrunk.
    ``mends`` says on which torch cases run: mended, as it is, or three of four mended and the
    others not; ``extra_mends`` are folders with more mends than fuzzshard's own. ``seed=None``
    draws a fresh one; 0 is a seed like any other. ``worlds`` sets of ``world_size``
    ranks run cases at the same time, ``"auto"`` as many as this node takes; at most
    ``ranks_per_device`` ranks of a world share a CUDA device. ``preload`` are Python files that
    every rank imports before torch is used. ``steering`` says which cases are drawn. Through the
    folder ``exchange`` campaigns on several nodes tell each other what they find. The ranks of
    each world lie on this node and on the other ``nodes``.
    """

    corpus: Path
    max_cases: int | None = None
    max_time: float | None = None
    max_findings: int | None = None
    stop_after_no_new: float | None = None
    fresh: bool = False
    seed: int | None = None
    world_size: int | None = None
    worlds: Worlds = 1
    ranks_per_device: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    steering: Steering = ANYTHING
    preload: tuple[Path, ...] = ()
    shrink: bool = True
    confirm: int = CONFIRM_RUNS
    mends: MendsMode = "both"
    extra_mends: tuple[Path, ...] = ()
    exchange: Path | None = None
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        limits = ("max_cases", "max_time", "max_findings", "stop_after_no_new")
        for name in (*limits, "world_size", "worlds", "ranks_per_device", "confirm"):
            value = getattr(self, name)
            if isinstance(value, int | float) and value <= 0:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is {value}", "give more than 0, or leave it out")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"the seed is {self.seed}", "use a seed of at least 0")
        for path in self.preload:
            if not path.is_file():
                raise UsageError(f"{path}, to be preloaded, is not a file", "check the path")
        if self.extra_mends and self.mends == "off":
            raise UsageError(
                "--extra-mends does nothing with --mends off", "leave one of the two out"
            )
        mends_for(extra=self.extra_mends)
        if self.exchange is not None:
            check_exchange(self.exchange, self.corpus)
        if any(self.corpus.glob(f"*/{CASE_FILE}")):
            raise UsageError(
                f"{self.corpus} holds entries, and a campaign looks for them in a folder of it",
                f"name the folder that has them in its {FINDINGS_FOLDER}/",
            )

    def resolved_seed(self) -> int:
        """The seed asked for, or a fresh one."""
        return secrets.randbits(32) if self.seed is None else self.seed


def world_configs(
    options: CampaignOptions, device: Literal["cpu", "cuda"], num_devices: int
) -> tuple[WorldConfig, ...]:
    """The settings of each world, given what :func:`fuzzshard.world.resolve_device` found.

    Raises :class:`UsageError` for more ranks in a world than the CUDA devices take.
    """
    shared = options.ranks_per_device if device == "cuda" else 1
    size = options.world_size or num_devices * shared * (len(options.nodes) + 1)
    preload = tuple(str(path.resolve()) for path in options.preload)
    config = WorldConfig(size=size, device=device, preload=preload, nodes=options.nodes)
    return placed(config, options.worlds, num_devices, shared)
