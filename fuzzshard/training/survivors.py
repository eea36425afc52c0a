"""What outlives an engine: modules and parameters that somebody still refers to, memory of the device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch

from fuzzshard.engines.base import Engine
from fuzzshard.training.trace import Trace

SLACK = 4096
"""Bytes on a CUDA device by which a run may grow what is allocated: a few blocks of 512, which is what the
caching allocator hands out, for what torch makes once and keeps."""

_BLOCK = 512


class Survivors:
    """Weak references to the modules and parameters of an engine, to see whether they go when it goes."""

    def __init__(self, engine: Engine) -> None:
        model = engine.model
        modules = [(f"module {path or 'the root'}", weakref.ref(m)) for path, m in model.named_modules()]
        parameters = [(fqn, weakref.ref(p)) for fqn, p in engine.optimized().items()]
        self._watched = [*modules, *parameters]

    def names(self) -> tuple[str, ...]:
        """What is still there; whoever asks has collected garbage, once for all engines: it takes time."""
        return tuple(name for name, reference in self._watched if reference() is not None)


def collect_garbage() -> None:
    """Until nothing is left: what a graph of autograd held becomes garbage only when the graph is gone."""
    while gc.collect():
        pass


def allocated(device: torch.device) -> int:
    """The bytes that tensors take on a CUDA device; the workspaces of cuBLAS are no tensors of anybody."""
    collect_garbage()
    torch.cuda.synchronize(device)
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated(device)


def recorded_bytes(traces: Iterable[Trace]) -> int:
    """The bytes on CUDA devices that observations take."""
    storages = {}
    for trace in traces:
        for observation in trace.tensors.values():
            if observation.tensor is not None and observation.tensor.is_cuda:
                storage = observation.tensor.untyped_storage()
                storages[storage.data_ptr()] = -(-storage.size() // _BLOCK) * _BLOCK
    return sum(storages.values())
