"""Whether what an engine allocates on its device grows run by run.

Memory after a run says nothing against memory before it: libraries keep workspaces, NCCL its buffers, torch
the last of many things, and all of that stays after the first run. What every run loses grows with every run,
while everything else stays. So an engine trains again and again, and only growth each time is a leak; by the
same amount each time, because runs are equal, and threads of the backend that have not let go of a tensor yet
hold another one each time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuzzshard.training.survivors import collect_garbage

RUNS = 4
"""Runs after the one that was judged, which has filled every cache."""


def bytes_after_runs(run: Callable[[], object], device: torch.device) -> tuple[int, ...]:
    """The bytes that are allocated after each of some runs; none where nobody counts them."""
    after = []
    for _ in range(RUNS):
        if allocated_bytes(device) is None:
            return ()
        run()
        collect_garbage()
        after.append(allocated_bytes(device) or 0)
    return tuple(after)


def allocated_bytes(device: torch.device) -> int | None:
    """What this process holds on ``device`` once everything queued there has run; None if nobody counts."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)
