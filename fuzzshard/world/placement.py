"""How many worlds a node takes, and on which devices the ranks of each run. No torch import."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from fuzzshard.errors import UsageError
from fuzzshard.world.config import WorldConfig

Worlds = int | Literal["auto"]
RanksOf = Literal["world", "mesh"]
"""What says how many ranks a world has: itself, or the mesh of a model of the user's own."""

WORLDS_PER_DEVICE_SET = 8
"""How many worlds ``auto`` puts on the same CUDA devices.

On two H200s worlds of two ranks did 1.46 cases/s in one world, 3.72 in four and 5.72 in eight
(note 0023).
"""

RANKS_PER_CORE = 16
"""The most ranks of a world for each core of the CPU. More wait for one another for so long that
they look hung.
"""

_CGROUP = Path("/sys/fs/cgroup")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Return the cores that this process may use at the same time: its affinity, and the quota of
    its container.
    """
    cores = len(os.sched_getaffinity(0))
    for quota, period in filter(None, (_quota_v2(cgroup / "cpu.max"), _quota_v1(cgroup / "cpu"))):
        cores = min(cores, max(1, math.floor(quota / period)))
    return cores


def _quota_v2(file: Path) -> tuple[int, int] | None:
    """Microseconds of processor time in each period, from cgroup v2 (kernel.org, cgroup-v2,
    "cpu.max").
    """
    if not file.is_file():
        return None
    quota, period = file.read_text().split()
    return None if quota == "max" else (int(quota), int(period))


def _quota_v1(folder: Path) -> tuple[int, int] | None:
    """Return the same from cgroup v1, where -1 means no limit (kernel.org, sched-bwc)."""
    if not (folder / "cpu.cfs_quota_us").is_file():
        return None
    quota, period = (
        int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period")
    )
    return None if quota < 0 else (quota, period)


def place_on_cpu(worlds: Worlds, size: int, cores: int) -> int:
    """Return how many worlds of ``size`` ranks run here; ``auto`` gives each rank a core."""
    return worlds if isinstance(worlds, int) else max(1, cores // size)


def cores_of(rank: int, size: int, cores: Collection[int]) -> set[int]:
    """Return the ``cores`` that a rank of a world of ``size`` ranks on the CPU keeps to.

    Where ranks fill all cores evenly, each has its own: the threads of gloo wake one another
    several times for each message, and woken on other cores they take a tenth more time (note
    0036). Anywhere else the kernel places them, as it does where other worlds run beside.
    """
    if size % len(cores):
        return set(cores)
    return {sorted(cores)[rank % len(cores)]}


def check_cores(size: int, cores: int, of: RanksOf = "world") -> None:
    """Raise :class:`UsageError` for more ranks than ``cores`` of the CPU can run, in a world that
    was asked for or ``of`` a mesh.
    """
    most = RANKS_PER_CORE * cores
    if size > most:
        raise UsageError(
            f"a {of} of {size} ranks is too large for the {cores} cores of this machine",
            "use a smaller --mesh" if of == "mesh" else f"use --world-size {most} or less",
        )


def check_devices(size: int, num_devices: int, ranks_per_device: int = 1) -> None:
    """Raises :class:`UsageError` for a world of more ranks than the devices take."""
    if size > num_devices * ranks_per_device:
        needed, each = math.ceil(size / ranks_per_device), math.ceil(size / num_devices)
        raise UsageError(
            f"a world of {size} ranks needs {needed} CUDA devices and there are {num_devices}",
            f"use --world-size {num_devices * ranks_per_device}, --ranks-per-device {each} or "
            "--device cpu",
        )


def place_on_devices(
    worlds: Worlds, size: int, num_devices: int, cores: int, ranks_per_device: int = 1
) -> list[tuple[int, ...]]:
    """Return the devices of each world: disjoint sets of them, taken in turn.

    Devices are numbered within ``CUDA_VISIBLE_DEVICES``. Ranks of one world share a device only
    where ``ranks_per_device`` allows it; ranks of different worlds always may. ``auto`` puts
    :data:`WORLDS_PER_DEVICE_SET` on each set as far as there is a core for each rank. Raises
    :class:`UsageError` for more ranks than the devices take.
    """
    check_devices(size, num_devices, ranks_per_device)
    wide = math.ceil(size / ranks_per_device)
    sets = [tuple(range(first, first + wide)) for first in range(0, num_devices - wide + 1, wide)]
    filling = min(WORLDS_PER_DEVICE_SET * len(sets), max(len(sets), cores // size))
    number = worlds if isinstance(worlds, int) else filling
    return [sets[world % len(sets)] for world in range(number)]


def placed(
    config: WorldConfig, worlds: Worlds, num_devices: int, ranks_per_device: int = 1
) -> tuple[WorldConfig, ...]:
    """Return the settings of ``worlds`` that run side by side.

    Raises :class:`UsageError` for more ranks than this node takes.
    """
    cores = available_cores()
    if config.device == "cpu":
        check_cores(config.ranks_per_node, cores)
        return (config,) * place_on_cpu(worlds, config.ranks_per_node, cores)
    sets = place_on_devices(worlds, config.ranks_per_node, num_devices, cores, ranks_per_device)
    return tuple(dataclasses.replace(config, devices=devices) for devices in sets)
