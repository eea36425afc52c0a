"""Preloaded by ranks: notes what a case takes time for, in the folder that ``FOLDER`` names."""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzzshard.case.case import Case

FOLDER = "FUZZSHARD_CASE_TIME"
PROFILE = "profile"
"""While the folder has a file of this name, what the device does is counted: that takes longer."""

_seconds: Counter[str] = Counter()
_counts: Counter[str] = Counter()
_inner: list[float] = []


def _now() -> float:
    """Processor seconds of this rank, or what a clock says where it waits for a GPU."""
    import torch

    return time.perf_counter() if torch.cuda.is_initialized() else time.process_time()


def _timed(owner: Any, attribute: str, name: str) -> None:
    """Counts the time within a function, without that of timed ones which it calls."""
    function = getattr(owner, attribute)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = _now()
        _inner.append(0.0)
        try:
            return function(*args, **kwargs)
        finally:
            spent = _now() - began
            _seconds[name] += spent - _inner.pop()
            _counts[name] += 1
            if _inner:
                _inner[-1] += spent

    setattr(owner, attribute, call)


def _profiled(owner: Any, attribute: str) -> None:
    """Adds up what CUDA and NCCL do within a function."""
    function = getattr(owner, attribute)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not Path(os.environ[FOLDER], PROFILE).exists():
            return function(*args, **kwargs)
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            result = function(*args, **kwargs)
            torch.cuda.synchronize()
        for event in seen.key_averages():
            on_device = event.self_device_time_total / 1e6
            if event.key.startswith("cuda"):
                _counts[event.key] += event.count
                _seconds["calls of CUDA"] += event.self_cpu_time_total / 1e6
            elif on_device and event.device_type != torch.autograd.DeviceType.CPU:
                kind = "nccl" if "nccl" in event.key.lower() else "other kernels"
                _counts[kind] += event.count
                _seconds[kind] += on_device
        return result

    setattr(owner, attribute, call)


def apply() -> None:
    """Called once the rank has joined its world."""
    import torch.distributed as dist

    from fuzzshard.engines import mesh
    from fuzzshard.mending.patch import Mended
    from fuzzshard.training import housekeeping, observer
    from fuzzshard.world import comparison, experiment, rank

    for owner, attribute, name in (
        (rank, "receive", "waiting for the coordinator"),
        (Mended, "switch", "mends"),
        (housekeeping, "clear_caches", "mends"),
        (mesh, "prepare_groups", "process groups"),
        (experiment.Experiment, "_build", "building and wrapping"),
        (experiment.Experiment, "_train", "training"),
        (experiment.Experiment, "_wait_for_kernels", "waiting for kernels"),
        (observer.Observer, "look", "recording"),
        (comparison, "differences", "comparing"),
        (comparison.ReferenceComparison, "judge", "judging"),
        (comparison, "train_reference", "training references again"),
        (experiment.Experiment, "_findings_beside_tensors", "other oracles"),
        (experiment, "_digest", "digests"),
        (housekeeping, "clean_up", "garbage"),
    ):
        _timed(owner, attribute, name)
    for attribute in ("run", "run_bare"):
        _profiled(experiment.Experiment, attribute)
        _timed(experiment.Experiment, attribute, "the rest")
    clean_up = housekeeping.clean_up

    @functools.wraps(clean_up)
    def write(case: Case) -> None:
        clean_up(case)
        if dist.get_rank() == 0:
            file = Path(os.environ[FOLDER], "cases.jsonl")
            with file.open("a") as lines:
                lines.write(json.dumps({"seconds": _seconds, "counts": _counts}) + "\n")
        _seconds.clear()
        _counts.clear()

    housekeeping.clean_up = write
