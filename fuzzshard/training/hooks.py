"""Records when ``fully_shard`` and FSDP1 run the post-backward of a wrap group.

What runs late keeps its unsharded parameters and gradients until the whole backward has ended: the results
are the same, the memory and the overlap are not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.distributed.fsdp import _runtime_utils as fsdp1
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from fuzzshard.training.collectives import Recorder


class PostBackward(NamedTuple):
    """One post-backward: the op of the schedule that ran, and whether it waited for the end of backward.

    ``number`` counts the groups of ``fully_shard`` that have parameters, in the order in which they were
    made; it is -1 for a unit of FSDP1.
    """

    op: int
    number: int
    deferred: bool


class _Watch:
    """Where the post-backwards of one engine run go."""

    def __init__(self, recorder: Recorder, log: list[PostBackward]) -> None:
        self.recorder, self.log = recorder, log
        self.numbers: Iterator[int] = itertools.count()
        self.ending = False

    def note(self, number: int) -> None:
        self.log.append(PostBackward(self.recorder.op, number, self.ending))


_watch: _Watch | None = None


def _numbered(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def call(group: Any, *args: Any, **kwargs: Any) -> None:
        make(group, *args, **kwargs)
        if _watch is not None:
            group.fuzzshard_number = next(_watch.numbers)

    return call


def _noted(post_backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(post_backward)
    def call(group: Any, *args: Any) -> Any:
        if _watch is not None:
            _watch.note(group.fuzzshard_number)
        return post_backward(group, *args)

    return call


def _ending(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def call(state: Any) -> Any:
        if _watch is None:
            return callback(state)
        _watch.ending = True
        try:
            return callback(state)
        finally:
            _watch.ending = False

    return call


def _noted_unit(reshard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reshard)
    def call(*args: Any) -> Any:
        if _watch is not None:
            _watch.note(-1)
        return reshard(*args)

    return call


def install() -> None:
    """Wraps the hooks of torch; once per rank process."""
    FSDPParamGroup.__init__ = _numbered(FSDPParamGroup.__init__)  # type: ignore[method-assign]
    FSDPParamGroup.post_backward = _noted(FSDPParamGroup.post_backward)  # type: ignore[method-assign]
    FSDPState._root_post_backward_final_callback = _ending(  # type: ignore[method-assign]
        FSDPState._root_post_backward_final_callback
    )
    fsdp1._post_backward_reshard = _noted_unit(fsdp1._post_backward_reshard)


def record_into(recorder: Recorder | None, log: list[PostBackward]) -> None:
    """From now on post-backwards are given to ``log``; without a recorder nothing is recorded."""
    global _watch
    _watch = None if recorder is None else _Watch(recorder, log)
