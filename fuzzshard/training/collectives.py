"""Records the collectives that Python code of torch issues, per engine run, and delays them if
asked to.

``fully_shard`` calls them through ``torch.distributed`` (its names changed between versions:
``all_gather_into_tensor`` became ``all_gather_single``); DDP's reducer calls them in C++ and is
not seen. DTensors add up through functional collectives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

from fuzzshard.case.options import DelaySite
from fuzzshard.instruments.streams.recorder import Recorder as Streams
from fuzzshard.training.delays import Delays

KINDS: dict[str, str] = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
"""What each entry point does, whatever its name in this version."""
_SITES: dict[str, DelaySite] = {
    "all_gather": "before_all_gather",
    "reduce_scatter": "before_reduce_scatter",
    "all_reduce": "before_all_reduce",
}


class Collective(NamedTuple):
    """One call: the op of the schedule that ran (-1: none), its kind, and the sizes of its
    tensors.

    ``explicit`` ones are no doing of the engine's but what it leaves to its user. ``group`` is the
    number of the group of ``fully_shard`` that gathers by it
    (:class:`fuzzshard.training.hooks.Hook`), -1 if none does.
    """

    op: int
    kind: str
    name: str
    sizes: tuple[int, ...]
    dtype: str
    explicit: bool = False
    group: int = -1

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.sizes))})"


@dataclasses.dataclass
class Recorder:
    """Where the collectives of one engine run go; the rest is kept up to date by whoever
    trains.
    """

    log: list[Collective] = dataclasses.field(default_factory=list)
    sums: list[str] | None = None
    """The dtypes of what DTensors add up, while somebody wants to know."""
    delays: Delays | None = None
    streams: Streams | None = None
    """What records the streams, where somebody wants to know."""
    op: int = -1
    explicit: bool = False
    group: int = -1

    def unseen(self) -> contextlib.AbstractContextManager[None]:
        """Return what is done within is no part of the run for whoever watches its streams."""
        return contextlib.nullcontext() if self.streams is None else self.streams.paused()


_recorder: Recorder | None = None


def _recorded(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    kind = KINDS[name]

    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _recorder is not None:
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
            sizes = tuple(t.numel() for t in tensors)
            explicit, group = _recorder.explicit, _recorder.group
            _recorder.log.append(
                Collective(_recorder.op, kind, name, sizes, dtype, explicit, group)
            )
            if _recorder.delays is not None and kind in _SITES:
                _recorder.delays.at(_SITES[kind])
        return collective(*args, **kwargs)

    return call


def _recorded_sum(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(all_reduce)
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _recorder is not None and _recorder.sums is not None:
            _recorder.sums.append(str(tensor.dtype).removeprefix("torch."))
        return all_reduce(tensor, *args, **kwargs)

    return call


def install() -> Callable[[], None]:
    """Wraps the entry points; what it returns takes the wrappers off again."""
    originals = {name: getattr(dist, name) for name in KINDS if hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, _recorded(name, original))
    all_reduce = _functional_collectives.all_reduce
    _functional_collectives.all_reduce = _recorded_sum(all_reduce)

    def put_back() -> None:
        for name, original in originals.items():
            setattr(dist, name, original)
        _functional_collectives.all_reduce = all_reduce

    return put_back


def record_into(recorder: Recorder | None) -> None:
    """Give collectives to ``recorder`` from now on; None stops recording."""
    global _recorder
    _recorder = recorder


def current_op() -> int:
    """Return the op of the schedule that runs, -1 outside of an engine."""
    return -1 if _recorder is None else _recorder.op
