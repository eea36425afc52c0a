"""Records when ``fully_shard`` and FSDP1 run the post-backward of a wrap group.

What runs late keeps its unsharded parameters and gradients until the whole backward has ended: the
results are the same, the memory and the overlap are not.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fuzzshard.training.collectives import Recorder


class PostBackward(NamedTuple):
    """One post-backward: the op of the schedule that ran, and whether it waited for the end of
    backward.

    ``number`` counts the groups of ``fully_shard`` that have parameters, in the order in which
    they were made; it is -1 for a unit of FSDP1. ``sums`` are the dtypes in which gradients were
    added up over the tensor-parallel axis.
    """

    op: int
    number: int
    deferred: bool
    sums: tuple[str, ...] = ()


class _Watch:
    """Where the post-backwards of one engine run go."""

    def __init__(self, recorder: Recorder, log: list[PostBackward]) -> None:
        self.recorder, self.log = recorder, log
        self.numbers: Iterator[int] = itertools.count()
        self.ending = False

    def note(self, number: int) -> None:
        self.log.append(PostBackward(self.recorder.op, number, self.ending))

    @contextlib.contextmanager
    def adding_up(self) -> Iterator[None]:
        """Notes what is added up within the last one."""
        self.recorder.sums = []
        try:
            yield
        finally:
            self.log[-1] = self.log[-1]._replace(sums=tuple(self.recorder.sums))
            self.recorder.sums = None


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
        if _watch is None:
            return post_backward(group, *args)
        _watch.note(getattr(group, "fuzzshard_number", -1))
        with _watch.adding_up():
            return post_backward(group, *args)

    return call


def _ending(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _watch is None:
            return callback(*args, **kwargs)
        _watch.ending = True
        try:
            return callback(*args, **kwargs)
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


def install() -> Callable[[], None]:
    """Wraps the hooks of torch; what it returns takes the wrappers off again.

    Hooks that this torch does not have are left out: who counts post-backwards reads none then,
    which the proofs of :mod:`fuzzshard.instruments` notice.
    """
    core = "torch.distributed.fsdp._fully_shard"
    wrapped = (
        (f"{core}._fsdp_param_group", "FSDPParamGroup", "__init__", _numbered),
        (f"{core}._fsdp_param_group", "FSDPParamGroup", "post_backward", _noted),
        (f"{core}._fsdp_state", "FSDPState", "_root_post_backward_final_callback", _ending),
        (f"{core}._fsdp_state", "FSDPState", "finalize_backward", _ending),
        ("torch.distributed.fsdp._runtime_utils", "", "_post_backward_reshard", _noted_unit),
        ("torch.distributed.fsdp._runtime_utils", "", "_post_backward_final_callback", _ending),
    )
    undo: list[tuple[Any, str, Any]] = []
    for module, owner, name, wrap in wrapped:
        try:
            holder: Any = importlib.import_module(module)
            holder = getattr(holder, owner) if owner else holder
            original = getattr(holder, name)
        except (ImportError, AttributeError):
            continue
        undo.append((holder, name, original))
        setattr(holder, name, wrap(original))
    return functools.partial(_put_back, undo)


def _put_back(originals: list[tuple[Any, str, Any]]) -> None:
    for holder, name, original in originals:
        setattr(holder, name, original)


def record_into(recorder: Recorder | None, log: list[PostBackward]) -> None:
    """From now on post-backwards are given to ``log``; without a recorder nothing is recorded."""
    global _watch
    _watch = None if recorder is None else _Watch(recorder, log)
