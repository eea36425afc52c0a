"""What orders CUDA's streams, and what its caching allocator does.

Events and synchronisations come from the callbacks of ``torch.cuda._gpu_trace``, which
``torch.cuda._sanitizer`` uses too: whatever records an event or waits for one by torch's C++
classes calls them, autograd and NCCL's process groups included. What they say of memory is an
address. The rest is in the memory history (``torch.cuda.memory._record_memory_history``): sizes
and streams of blocks, and whether a block was free at once or held until streams had used it,
which somebody had recorded on it (``record_stream``, of which C++ calls one that nobody else
sees).

A block that is free at once is requested and completed within one call. A held one is completed
within a later allocation. So both have a mark, which changes with every operator and callback
(``_set_memory_metadata``). Where an allocation follows under the same mark the two cannot be told
apart, and the block counts as held, which orders more.

A stream does not wait for a collective of ``ProcessGroupNCCL2`` (what the name nccl stands for
since 2.15) that the host has seen end: ``WorkNCCL::synchronizeInternal``. Small ones nearly always
have. So these waits are noted when Python asks for them. What C++ asks for nobody sees: its
collectives count as waited for at once.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.cuda._gpu_trace as gpu_trace
import torch.distributed as dist
from typing_extensions import override

from fuzzshard.instruments.streams.accesses import waited_tensors, work_of, works_telling
from fuzzshard.instruments.streams.events import (
    Allocate,
    Event,
    Free,
    Record,
    Synchronize,
    Wait,
)
from fuzzshard.instruments.streams.recorder import Device, Operator, Recorder, caller

_replace = msgspec.structs.replace
_WAITS = ("wait", "synchronize", "get_future")
"""Methods of works that let the current stream wait. One of several collectives lets it wait for
all of them.
"""
_SKIPS_WAITS: Any = getattr(dist, "ProcessGroupNCCL2", ())


class CudaDevice(Device):
    """The one that ``device`` is; one process records one at a time."""

    key = torch._C.DispatchKey.CUDA

    def __init__(self, device: torch.device) -> None:
        self.index = torch.cuda.current_device() if device.index is None else device.index
        self._marks = itertools.count(1)
        self._skips_waits = False
        """Whether the collective that runs is one for which streams may not wait."""
        self._ends: dict[dist.Work, int] = {}
        """Events of our own at the ends of such ones, by their works."""
        self._arriving: dict[int, int] = {}
        """The same of functional ones, by the addresses of what they touch."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record what happens on the device; what was launched before is done then.

        Garbage is not collected: it could be in a function without builtins, such as the
        constructor of a named tuple, from where torch cannot call its callbacks.
        """
        _listen()
        torch.cuda.synchronize(self.index)
        recorder = Recorder(self)
        torch.cuda.memory._record_memory_history("all", context=None, clear_history=True)
        _active[:] = [(self, recorder)]
        collects = gc.isenabled()
        gc.disable()
        try:
            with recorder, works_telling(_WAITS, self._asked):
                yield recorder
            torch.cuda.synchronize(self.index)
        finally:
            if collects:
                gc.enable()
            _active.clear()
            self._ends.clear()
            self._arriving.clear()
            history = torch.cuda.memory._snapshot()["device_traces"][self.index]
            torch.cuda.memory._record_memory_history(None)
            torch._C._cuda_setMemoryMetadata("")
        recorder.log = placed(recorder.log, history)

    def mark(self) -> None:
        """Let what the allocator does next on this thread have another mark than before."""
        torch._C._cuda_setMemoryMetadata(str(next(self._marks)))

    @override
    def current_stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self.index)

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
    def before_operator(self) -> None:
        self.mark()

    # Waits that may be skipped:

    def _asked(self, work: dist.Work) -> None:
        """Note that a work was asked to let the current stream wait."""
        self._waited([self._ends.pop(work)] if work in self._ends else self._ends.values())

    @override
    def before_collective(self, group: dist.ProcessGroup, is_async: bool) -> None:
        backend = group._get_backend(torch.device("cuda", self.index))
        self._skips_waits = isinstance(backend, _SKIPS_WAITS)

    @override
    def after_collective(self, result: Any, touched: Sequence[torch.Tensor], stream: int) -> None:
        if self._skips_waits and stream != self.current_stream():
            end = -next(self._marks)
            _note(Record(end, stream))
            match caller():
                case "distributed_c10d.py":
                    self._ends[work_of(result)] = end
                case "_ops.py" | "_functional_collectives.py":
                    self._arriving |= {t.untyped_storage().data_ptr(): end for t in touched}
                case _:
                    self._waited([end])

    @override
    def after_operator(self, operator: Operator, args: Any, result: Any) -> None:
        places = [t.untyped_storage().data_ptr() for t in waited_tensors(operator, args)]
        self._waited(self._arriving[place] for place in places if place in self._arriving)

    def _waited(self, ends: Iterable[int]) -> None:
        """Note that the current stream waits for these events."""
        for end in ends:
            _note(Wait(end, self.current_stream()))


_active: list[tuple[CudaDevice, Recorder]] = []
"""Who listens now."""


def _tell(tell: Callable[[CudaDevice, Recorder], None]) -> None:
    """Tell whoever listens. What a callback raises torch writes to a log and forgets."""
    for device, recorder in _active:
        try:
            tell(device, recorder)
        except Exception as error:
            recorder.failure = recorder.failure or error


def _note(event: Event) -> None:
    _tell(lambda _, recorder: recorder.note(event))


def _of_block(tell: Callable[[Recorder, int], None]) -> Callable[..., None]:
    """Return a callback that tells of a block; what the allocator does next has another mark."""

    def note(device: CudaDevice, recorder: Recorder, begin: int) -> None:
        tell(recorder, begin)
        device.mark()

    return lambda begin, *_: _tell(functools.partial(note, begin=begin))


@functools.cache
def _listen() -> None:
    """Have torch call the functions above, from now on for as long as the process lives."""
    torch._C._activate_gpu_trace()
    gpu_trace.register_callback_for_event_record(lambda event, s, *_: _note(Record(event, s)))
    gpu_trace.register_callback_for_event_wait(lambda event, s, *_: _note(Wait(event, s)))
    gpu_trace.register_callback_for_event_synchronization(
        lambda event, *_: _note(Synchronize(event=event))
    )
    gpu_trace.register_callback_for_stream_synchronization(
        lambda stream, *_: _note(Synchronize(stream=stream))
    )
    gpu_trace.register_callback_for_device_synchronization(lambda *_: _note(Synchronize()))
    gpu_trace.register_callback_for_memory_allocation(_of_block(Recorder.allocated))
    gpu_trace.register_callback_for_memory_deallocation(_of_block(Recorder.freed))


def placed(log: Sequence[Any], history: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return ``log`` with what the memory history of the device says of its blocks.

    Memory that went back to the driver in between (``cudaFree``) has been waited for by the whole
    device; a part of an expandable segment that was unmapped, by its stream. Raises
    :class:`LookupError` where the two do not tell of the same blocks.
    """
    done = list(log)
    waiting: dict[tuple[type, int], collections.deque[int]] = collections.defaultdict(
        collections.deque
    )
    for place, entry in enumerate(log):
        if isinstance(entry, (Allocate, Free)):
            waiting[type(entry), entry.begin].append(place)
    requested: dict[int, tuple[int, str]] = {}
    completed: list[tuple[int, str]] = []
    returned: list[Event] = []
    before: dict[int, list[Event]] = {}

    unseen = ""

    def next_place(kind: type, begin: int, mark: str) -> int | None:
        """Return the place of a block in the log. What other threads do before and after nobody
        has seen; in between that is an error.
        """
        nonlocal unseen
        if not waiting[kind, begin]:
            unseen = unseen or (f"nobody saw a block at {begin} ({kind.__name__})" if mark else "")
            return None
        if unseen:
            raise LookupError(unseen)
        return waiting[kind, begin].popleft()

    for entry in history:
        action, begin, mark = entry["action"], entry.get("addr", 0), entry.get("user_metadata", "")
        if entry.get("internal_metadata"):
            continue
        if action == "alloc":
            if (at := next_place(Allocate, begin, mark)) is None:
                continue
            done[at] = _replace(done[at], size=entry["size"], stream=entry["stream"])
            before[at], returned = returned, []
            for freed in (freed for freed, its_mark in completed if its_mark == mark):
                done[freed] = _replace(done[freed], held=True)
            completed.clear()
        elif action == "free_requested":
            if (at := next_place(Free, begin, mark)) is None:
                continue
            done[at] = _replace(done[at], size=entry["size"])
            requested[begin] = at, mark
        elif action == "free_completed" and begin in requested:
            at, its_mark = requested.pop(begin)
            if its_mark == mark:
                completed.append((at, mark))
            else:
                done[at] = _replace(done[at], held=True)
        elif action == "segment_free":
            returned.append(Synchronize())
        elif action == "segment_unmap":
            returned.append(Synchronize(stream=entry["stream"]))
    if missing := [key for key, places in waiting.items() if places]:
        raise LookupError(f"the memory history lacks {len(missing)} blocks")
    for place, _ in requested.values():
        done[place] = _replace(done[place], held=True)
    return [event for place, entry in enumerate(done) for event in (*before.get(place, ()), entry)]
