"""Whose fault the loss of a rank is: that of the engine that ran, or the machine's.

The rule: what a correct program suffers on a machine in a bad state is the machine's fault, and
says nothing about torch - no memory left, a full disk, a lost or defective device, a signal that
programs do not raise in themselves. What a program does to itself on a healthy machine is the
engine's: an access to memory that is not its own, on the host (SIGSEGV) or in a kernel (a sticky
CUDA error), a failed assertion, an abort. A request for more memory than the machine or the device
has in all can only be a wrong size: the cases are small.

The texts are those of ``cudaGetErrorString`` (CUDA runtime API, error handling), of strerror(3),
and of torch's allocators. After a sticky error every later call on the device fails too; only a
new process helps.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

_DEVICE_ERROR = re.compile(r"(?:CUDA error|CUDA driver error|Cuda failure \d*):? *'?([^\n']+)")

_DEVICE_TROUBLE = re.compile(
    r"out of memory|ECC error|NVLink|hardware error|unknown error|launch timed out"
    r"|devices? is/?a?r?e? busy|no CUDA-capable device|driver shutting down"
    r"|driver version is insufficient|system not yet initialized"
    r"|unsupported display driver|no kernel image|external device",
    re.IGNORECASE,
)
"""Of CUDA's errors, those in which no kernel of torch can be at fault."""

_MACHINE_TROUBLE = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
    r"|Too many open files|Cannot allocate memory|can't allocate memory|can't start new thread"
    r"|Unable to allocate|CUDA out of memory|bad_alloc|MemoryError"
    r"|Resource temporarily unavailable|GPU is lost|fallen off the bus"
)

_ASKED = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTPE]iB)")
_OF_DEVICE = re.compile(r"total capacity of ([\d.]+) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_SENT_BY_OTHERS = (
    "SIGKILL",
    "SIGTERM",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGPWR",
)

_SHARED_MEMORY = Path("/dev/shm")
_FULL = 0.01


def error_text(error: BaseException) -> str:
    """Return the error with everything that led to it, innermost last: libraries wrap what the
    system said.
    """
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 8:
        texts.append(f"{type(seen).__name__}: {seen}")
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "\n".join(texts)


def device_error(text: str) -> str:
    """Return what CUDA says of an error that a kernel ran into, ``device-side assert triggered``
    say; or nothing.
    """
    found = _DEVICE_ERROR.search(text)
    return found.group(1).strip() if found and not _DEVICE_TROUBLE.search(found.group(1)) else ""


def machine_trouble(text: str) -> str:
    """Return what the machine lacks or has lost, going by an error or by what a process printed;
    or nothing.
    """
    device = _DEVICE_ERROR.search(text)
    if device and (found := _DEVICE_TROUBLE.search(device.group(1))):
        return f"CUDA error: {device.group(1).strip()}" if not _asks_too_much(text) else ""
    found = _MACHINE_TROUBLE.search(text)
    return _line_of(text, found.start()) if found and not _asks_too_much(text) else ""


def _line_of(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    return text[start:].partition("\n")[0].strip()[:300]


def _asks_too_much(text: str) -> bool:
    """Return whether an allocation is larger than all the memory there is, of the device or of the
    machine.
    """
    asked = _ASKED.search(text)
    if asked is None:
        return False
    device = _OF_DEVICE.search(text)
    capacity = (
        _bytes(device) if device else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    return _bytes(asked) > capacity


def _bytes(amount: re.Match[str]) -> float:
    return float(amount.group(1)) * 1024.0 ** _UNITS.index(amount.group(2))


def signal_name(code: int) -> str:
    """Return the signal of a negative exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def death_trouble(code: int, printed: str, out_of_memory: bool) -> str:
    """Return why the machine or a person is to blame for a death; or nothing, where the engine is.

    ``printed`` is the end of what the process said, ``out_of_memory`` whether the kernel has
    killed processes for want of memory meanwhile.
    """
    name = signal_name(code) if code < 0 else ""
    if name == "SIGKILL" and out_of_memory:
        return "was killed by SIGKILL: by the kernel, for want of memory"
    if name in _SENT_BY_OTHERS:
        return f"was killed by {name}: by a person or another program"
    if name == "SIGBUS" and _is_full(_SHARED_MEMORY):
        return f"was killed by SIGBUS: {_SHARED_MEMORY} is full"
    trouble = machine_trouble(printed)
    return f"died: {trouble}" if trouble else ""


def _is_full(folder: Path) -> bool:
    """Return a page of a mapping that the file system has no room for is a SIGBUS, mmap(2)."""
    room = os.statvfs(folder)
    return room.f_bavail < _FULL * room.f_blocks


def oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory, in our control group if
    it counts them.
    """
    for file in _counters():
        if file.is_file() and (found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.M)):
            return int(found.group(1))
    return 0


def _counters() -> list[Path]:
    """Where the kernel counts (its documentation, cgroup-v2 and cgroup-v1/memory), the narrowest
    first.
    """
    root, files = Path("/sys/fs/cgroup"), []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.oom_control")
    return [*files, Path("/proc/vmstat")]
