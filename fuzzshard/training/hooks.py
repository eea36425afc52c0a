"""Records when ``fully_shard`` and FSDP1 are done with a wrap group, and which group gathers."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from fuzzshard.training.collectives import Recorder


class Hook(NamedTuple):
    """A group is done with a forward or a backward, in the op of the schedule that ran.

    ``number`` counts the calls of ``fully_shard`` that have parameters, in their order; those on
    meshes of their own (``ShardPlacementResult``) count as one. It is -1 for a unit of FSDP1.
    ``place`` is the number of collectives that came before. A post-backward is ``deferred`` if it
    waited for the end of backward. ``sums`` are the dtypes in which gradients were added up over
    the tensor-parallel axis.
    """

    op: int
    number: int
    kind: Literal["post_forward", "post_backward"] = "post_backward"
    deferred: bool = False
    sums: tuple[str, ...] = ()
    place: int = 0


class _Watch:
    """Where the hooks of one engine run go."""

    def __init__(self, recorder: Recorder, log: list[Hook]) -> None:
        self.recorder, self.log = recorder, log
        self.number = -1
        """That of the newest group, and its modules."""
        self.modules: tuple[Any, ...] | None = None
        self.ending = False

    def note(self, number: int, kind: Literal["post_forward", "post_backward"]) -> None:
        recorder = self.recorder
        self.log.append(Hook(recorder.op, number, kind, self.ending, place=len(recorder.log)))

    @contextlib.contextmanager
    def adding_up(self) -> Iterator[None]:
        """Note for the latest hook which gradients are added up while it runs."""
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
            if _watch.modules is not group.modules:
                _watch.modules, _watch.number = group.modules, _watch.number + 1
            group.fuzzshard_number = _watch.number

    return call


def _noted(post_backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(post_backward)
    def call(group: Any, *args: Any) -> Any:
        if _watch is None:
            return post_backward(group, *args)
        _watch.note(_number(group), "post_backward")
        with _watch.adding_up():
            return post_backward(group, *args)

    return call


def _noted_forward(post_forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(post_forward)
    def call(group: Any, *args: Any) -> Any:
        if _watch is not None:
            _watch.note(_number(group), "post_forward")
        return post_forward(group, *args)

    return call


def _gathering(unshard: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(unshard)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        if _watch is None:
            return unshard(group, *args, **kwargs)
        _watch.recorder.group = _number(group)
        try:
            return unshard(group, *args, **kwargs)
        finally:
            _watch.recorder.group = -1

    return call


def _number(group: Any) -> int:
    return getattr(group, "fuzzshard_number", -1)


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
            _watch.note(-1, "post_backward")
        return reshard(*args)

    return call


def install() -> Callable[[], None]:
    """Wraps the hooks of torch; what it returns takes the wrappers off again.

    Hooks that this torch does not have are left out: oracles see none then, which the proofs of
    :mod:`fuzzshard.instruments` notice.
    """
    core = "torch.distributed.fsdp._fully_shard"
    wrapped = (
        (f"{core}._fsdp_param_group", "FSDPParamGroup", "__init__", _numbered),
        (f"{core}._fsdp_param_group", "FSDPParamGroup", "unshard", _gathering),
        (f"{core}._fsdp_param_group", "FSDPParamGroup", "post_forward", _noted_forward),
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


def record_into(recorder: Recorder | None, log: list[Hook]) -> None:
    """Give hooks to ``log`` from now on; without a recorder nothing is recorded."""
    global _watch
    _watch = None if recorder is None else _Watch(recorder, log)
