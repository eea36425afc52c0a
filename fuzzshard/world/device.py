"""Which device a world runs on, found out without importing torch."""

from __future__ import annotations

import ctypes
import os
from typing import Literal

from fuzzshard.errors import UsageError

CPU_RANKS = 4
"""The default number of ranks on CPU: enough for every mesh up to 4, HSDP and int reshards."""


def cuda_devices() -> int:
    """How many CUDA devices this process may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([d for d in visible.split(",") if d.strip() not in ("", "-1")])
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def resolve_device(device: str) -> tuple[Literal["cpu", "cuda"], int]:
    """The device that ``auto``, ``cpu`` or ``cuda`` means here, and the default number of ranks on it."""
    if device == "cpu":
        return "cpu", CPU_RANKS
    devices = cuda_devices()
    if device == "cuda" and not devices:
        raise UsageError("this machine has no CUDA device", "use --device cpu")
    return ("cuda", devices) if devices else ("cpu", CPU_RANKS)
