"""Whether what an engine allocates on its device, or on the host, grows run by run.

Memory after a run says nothing against memory before it: libraries keep workspaces, NCCL its
buffers, torch the last of many things, and all of that stays after the first run. What every run
loses grows with every run, while everything else stays. So an engine trains again and again, and
only growth each time is a leak; by the same amount each time, because runs are equal.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context

import torch
import torch.distributed as dist

from fuzzshard.training.leaked import collect_garbage

RUNS = 4
"""Runs after the one that was judged, which has filled every cache."""
REPEATS = 6
"""How often the schedule of a case is repeated in one run, to see what grows within it."""
WATCHDOG_SECONDS = 0.3
"""Three rounds of NCCL's watchdog, which looks every 100 ms at which collectives have ended."""


def bytes_after_runs(
    run: Callable[[], object], device: torch.device, group: dist.ProcessGroup | None = None
) -> tuple[int, ...]:
    """Return the bytes allocated after each of some runs by all ranks of ``group``."""
    after = []
    for _ in range(RUNS):
        run()
        collect_garbage()
        if dist.is_initialized() and device.type == "cuda":
            _wait_for_watchdog(device, group)
        after.append(allocated_bytes(device))
    return tuple(after)


@contextlib.contextmanager
def counting() -> Iterator[Callable[[], Counter[str]]]:
    """Yield what counts the objects that were made since; those of before cost nothing."""
    collect_garbage()
    gc.freeze()
    try:
        yield _objects
    finally:
        gc.unfreeze()


def _objects() -> Counter[str]:
    """Count the objects of each type, but for ours: what the garbage collector knows, and
    the context variables that are set.
    """
    collect_garbage()
    found = Counter[str]()
    for kind, count in Counter(map(type, (*gc.get_objects(), *copy_context()))).items():
        ours = kind.__module__.startswith(_OURS) or issubclass(kind, Warning)
        if not (ours or kind.__name__.startswith(_OF_CONTEXTS)):
            found[kind.__name__] += count
    return found


_OURS = ("fuzzshard", "warnings")
"""What records warnings keeps them."""
_OF_CONTEXTS = "hamt"
"""Nodes of the tree of context variables, whose number is that of their hashes."""


def growth(counts: Sequence[Counter[str]]) -> Counter[str]:
    """Return by how much each count grew every time, at least."""
    grown = (after - before for before, after in itertools.pairwise(counts))
    return functools.reduce(operator.and_, grown)


def _wait_for_watchdog(device: torch.device, group: dist.ProcessGroup | None) -> None:
    """Has NCCL let go of what it holds for asynchronous collectives: DDP's buckets, say.

    Its watchdog sees that they have ended, and the next collective of the group drops their
    tensors (see pull request 148590 of torch).
    """
    torch.cuda.synchronize(device)
    time.sleep(WATCHDOG_SECONDS)
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def allocated_bytes(device: torch.device) -> int:
    """Return what this process holds on ``device`` once everything queued there has run; on the
    host what tensors hold that Python knows.
    """
    if device.type != "cuda":
        tensors = [each for each in gc.get_objects() if type(each) in _TENSORS]
        storages = (each.untyped_storage() for each in tensors if each.device == device)
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)


_TENSORS = (torch.Tensor, torch.nn.Parameter)
