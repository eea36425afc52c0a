"""What orders CUDA's streams, and what its caching allocator does.

No callbacks of torch are used: those of ``torch.cuda._gpu_trace`` cannot be turned off, and lose
a Python exception that is on its way while memory is freed. Instead:

- Events, streams and synchronisations are methods of Python classes (``torch.cuda.Event``), which
  tell of their calls. A ``torch.Event`` is none; who waits for one waits for all streams.
- Autograd runs the backward of an operator on the stream of its forward, and lets streams wait for
  each other where they differ (CUDA semantics, "Stream semantics of backward passes"). So a stream
  that Python has not chosen waits for the one before.
- An operator whose result depends on data, or that copies between host and device and not with
  ``non_blocking``, lets the host wait for its stream.
- What the allocator does is in the memory history (``torch.cuda.memory._record_memory_history``):
  blocks, their streams, and whether one was free at once or held until streams had used it, which
  somebody had recorded on it (``record_stream``, of which C++ calls one that nobody else sees).

A mark (``_set_memory_metadata``), which changes with all that the log gets, says what in the
history came after what in the log. A block that is free at once is requested and completed within
one call; a held one is completed within a later allocation. Where an allocation follows under the
same mark the two cannot be told apart, and the block counts as held, which orders more.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from typing_extensions import override

from fuzzshard.instruments.streams.accesses import telling, tensors_of
from fuzzshard.instruments.streams.events import (
    Allocate,
    Event,
    Free,
    Launch,
    Record,
    Synchronize,
    Touch,
    Wait,
)
from fuzzshard.instruments.streams.recorder import Device, Operator, Recorder, argument, line

_WAITS = ("wait", "synchronize", "get_future")
"""Methods of works that let the current stream wait."""
_marks = itertools.count(1)
"""Never the same again: other threads keep those of the last recording."""


class Mark(NamedTuple):
    """A place in the log; ``operator`` runs then, if there is one."""

    name: str
    thread: int = 0
    operator: str = ""
    where: str = ""


class CudaDevice(Device):
    """The one that ``device`` is; one process records one at a time."""

    key = torch._C.DispatchKey.CUDA

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self._stream = 0
        """The one on which the host has launched last, or which it has chosen since."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record what happens on the device; what was launched before is done then."""
        torch.cuda.synchronize(self.index)
        self._stream = torch._C._cuda_getCurrentRawStream(self.index)
        self.recorder = recorder = Recorder(self)
        self._mark()
        torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
        try:
            with contextlib.ExitStack() as stack:
                for each in self._patches():
                    stack.enter_context(each)
                with recorder:
                    yield recorder
            torch.cuda.synchronize(self.index)
        finally:
            self.forget()
            history = torch.cuda.memory._snapshot()["device_traces"][self.index]
            torch.cuda.memory._record_memory_history(None)
            torch._C._cuda_setMemoryMetadata("")
        recorder.log = placed(recorder.log, history)

    def _patches(self) -> Iterator[Any]:
        """Yield contexts in which what orders streams tells of it."""
        events, streams = torch.cuda.Event, torch.cuda.Stream
        for name in _WAITS:
            yield telling(dist.Work, name, self.asked)
        yield telling(events, "record", self._recorded)
        yield telling(events, "wait", self._waited_for)
        yield telling(events, "synchronize", lambda e: self.note(Synchronize(event=id(e))))
        yield telling(streams, "wait_event", self._waits_for)
        yield telling(
            streams, "synchronize", lambda s: self.note(Synchronize(stream=self._number(s)))
        )
        for name in ("_cuda_synchronize", "_accelerator_synchronizeDevice"):
            yield telling(torch._C, name, lambda *_: self.note(Synchronize()))
        for name in ("_cuda_setStream", "_accelerator_setStream"):
            yield telling(torch._C, name, self._chosen)

    def _recorded(self, event: torch.cuda.Event, stream: torch.Stream | None = None) -> None:
        self.note(Record(id(event), self._number(stream)))

    def _waited_for(self, event: torch.cuda.Event, stream: torch.Stream | None = None) -> None:
        self.note(Wait(id(event), self._number(stream)))

    def _waits_for(self, stream: torch.cuda.Stream, event: torch.Event) -> None:
        if not isinstance(event, torch.cuda.Event) and self.recorder is not None:
            log = self.recorder.log
            for other in {self._stream, *(e.stream for e in log if isinstance(e, Record))}:
                self.let_wait(self._number(stream), other)

    def _chosen(self, *_: Any, **__: Any) -> None:
        self._stream = torch._C._cuda_getCurrentRawStream(self.index)

    def _number(self, stream: torch.Stream | None) -> int:
        if isinstance(stream, torch.cuda.Stream):
            return int(stream.cuda_stream)
        return self.current_stream() if stream is None else self.stream_number(stream)

    @override
    def note(self, event: Event) -> None:
        super().note(event)
        self._mark()

    def _mark(self, operator: str = "", where: str = "") -> None:
        """Let what the allocator does next on this thread have another mark than before."""
        name = str(next(_marks))
        torch._C._cuda_setMemoryMetadata(name)
        if self.recorder is not None:
            self.recorder.log.append(Mark(name, threading.get_ident(), operator, where))

    @override
    def current_stream(self) -> int:
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        if stream != self._stream:
            last, self._stream = self._stream, stream
            self.let_wait(stream, last)
        return stream

    @override
    def place(self, tensor: torch.Tensor) -> int:
        if not tensor.is_cuda or not tensor.untyped_storage().data_ptr():
            return 0
        return tensor.data_ptr()

    @override
    def stream_number(self, stream: torch.Stream) -> int:
        known = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            stream_id=stream.stream_id,
            device_index=stream.device_index,
            device_type=stream.device_type,
        )
        return int(known.cuda_stream)

    @override
    def communicator(self, group: dist.ProcessGroup) -> str:
        backend = group._get_backend(torch.device("cuda", self.index)).name()
        return group.group_name if backend.lower().startswith("nccl") else ""

    @override
    def before_operator(self, operator: Operator) -> None:
        self._mark(str(operator), line())

    @override
    def after_operator(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        self._mark()
        super().after_operator(operator, args, kwargs, result)
        if _waits(operator, args, kwargs, result):
            self.note(Synchronize(stream=self.current_stream()))


def _waits(operator: Operator, args: Any, kwargs: Any, result: Any) -> bool:
    """Return whether the host waits for an operator."""
    tags, name = operator.tags, operator.__name__
    if name.startswith("index"):  # by numbers, or by what of a mask is true
        masks = tensors_of(argument(operator, args, kwargs, "indices"))
        return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return True
    if "copy" not in name or argument(operator, args, kwargs, "non_blocking"):
        return False
    return len({t.is_cuda for t in tensors_of([args, kwargs, result])}) > 1


def placed(log: Sequence[Any], history: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return ``log`` with what the memory history of the device says in place of its marks: as
    late as the next mark of the same thread, and in the order that the history has. What an
    operator allocates and frees itself it has written to.

    Memory that went back to the driver (``cudaFree``) has been waited for by the whole device; a
    part of an expandable segment that was unmapped, by its stream. Raises :class:`LookupError`
    where the history is in another order than the log.
    """
    marks = {entry.name: place for place, entry in enumerate(log) if isinstance(entry, Mark)}
    latest: dict[str, int] = {}
    following: dict[int, int] = {}
    for name, place in reversed(marks.items()):
        thread = log[place].thread
        latest[name] = following.get(thread, len(log))
        following[thread] = place
    events = _events(history, {name: log[place] for name, place in marks.items()})
    before: dict[int, list[Event]] = {}
    limit = len(log)
    for mark, event in reversed(events):
        limit = min(limit, latest.get(mark, limit))
        if limit <= marks.get(mark, -1):
            raise LookupError(f"the memory history has {event} too early")
        before.setdefault(limit, []).insert(0, event)
    return [
        event
        for place, entry in enumerate([*log, None])
        for event in (*before.get(place, ()), entry)
        if event is not None and not isinstance(event, Mark)
    ]


def _events(
    history: Sequence[Mapping[str, Any]], marks: Mapping[str, Mark]
) -> list[tuple[str, Event]]:
    """Return what the history says, each with its mark."""
    done: list[tuple[str, Event]] = []
    allocated: dict[int, str] = {}
    requested: dict[int, int] = {}
    completed: list[int] = []
    """The places of frees that may have been completed by an allocation that follows."""

    def hold(place: int) -> None:
        mark, free = done[place]
        done[place] = mark, msgspec.structs.replace(free, held=True)

    for entry in history:
        action, begin, mark = entry["action"], entry.get("addr", 0), entry.get("user_metadata", "")
        of = marks.get(mark, Mark(mark))
        if entry.get("internal_metadata"):
            continue
        if action == "alloc":
            for place in completed:
                if done[place][0] == mark:
                    hold(place)
            completed.clear()
            allocated[begin] = mark
            done.append((mark, Allocate(begin, entry["size"], entry["stream"], of.where)))
        elif action == "free_requested":
            if of.operator and allocated.get(begin) == mark:
                workspace = Touch(begin, begin + entry["size"], tensor="workspace")
                launch = Launch(entry["stream"], of.operator, (), (workspace,), of.where)
                done.append((mark, launch))
            requested[begin] = len(done)
            done.append((mark, Free(begin, entry["size"])))
        elif action == "free_completed" and begin in requested:
            place = requested.pop(begin)
            if done[place][0] != mark:
                hold(place)
            elif not isinstance(done[place - 1][1], Launch):
                completed.append(place)
        elif action == "segment_free":
            done.append((mark, Synchronize()))
        elif action == "segment_unmap":
            done.append((mark, Synchronize(stream=entry["stream"])))
    for place in requested.values():
        hold(place)
    return done
