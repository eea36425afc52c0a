"""Waits that perturb the timing of an engine and must not change what it computes."""

from __future__ import annotations

import time

import torch

from fuzzshard.case.case import Case
from fuzzshard.case.options import DelaySite
from fuzzshard.parts.op import names_rank

_CYCLES_PER_MILLISECOND = 1_500_000
"""Of ``torch.cuda._sleep``, at about 1.5 GHz; how long exactly does not matter."""


class Delays:
    """The delays of one case on one rank."""

    def __init__(self, case: Case, device: torch.device, rank: int) -> None:
        self.device = device
        self.milliseconds: dict[str, float] = {}
        for delay in case.delays:
            if names_rank(delay.ranks, rank):
                self.milliseconds[delay.site] = (
                    self.milliseconds.get(delay.site, 0.0) + delay.milliseconds
                )

    def at(self, site: DelaySite) -> None:
        """Waits if there is a delay here: the host on the CPU, the current stream on CUDA."""
        if not (milliseconds := self.milliseconds.get(site)):
            return
        if self.device.type == "cuda":
            cycles = int(milliseconds * _CYCLES_PER_MILLISECOND)
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        else:
            time.sleep(milliseconds / 1000)
