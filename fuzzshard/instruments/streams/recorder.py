"""Writes the trace of a run: what operators access on which stream, between what orders them.

Operators are seen below autograd, by a dispatch mode that autograd's threads inherit. Tensor
subclasses are taken apart first. An operator that is not one of ATen is opened: what it calls is
seen in its place. Whatever orders streams comes from the device (:mod:`.cuda`, :mod:`.simulated`).

An operator accesses its arguments when it is called, and new results when it returns: what it
allocates and waits for comes between. A collective runs on the current stream, an asynchronous one
on a stream of its process group, for which somebody has to wait (``torch.distributed``,
"Synchronous and asynchronous collective operations").
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from fuzzshard.instruments.streams.accesses import (
    accesses,
    collective,
    group_of,
    label,
    touch,
    waited_tensors,
    work_of,
    writes_of,
)
from fuzzshard.instruments.streams.events import (
    DEVICE,
    HOST,
    Event,
    Launch,
    Record,
    RecordStream,
    Synchronize,
    Touch,
    Wait,
)

Operator = torch._ops.OpOverload[Any, Any]
Touched = list[tuple[Touch, int]]
"""What is accessed, each with the address of its storage in C++."""

_KERNELS = ("aten", "prims", "prim")
"""Namespaces of operators that are not opened."""
_PASS_ON = ("/distributed_c10d.py", "/_functional_collectives.py", "/c10d_logger.py", "/utils.py")
"""Files of ``torch.distributed`` that pass on what others ask for."""
_DEPTH = 60
"""Frames in which a line of ``torch.distributed`` is looked for."""


class Device:
    """What has streams and memory; by what it tells a :class:`Recorder`, they are ordered.

    Waits for asynchronous collectives are those that Python asks for: ``ProcessGroupNCCL2`` skips
    the wait for a work that the host has seen end. What C++ asks for nobody sees: its collectives
    count as waited for at once.
    """

    key: torch._C.DispatchKey
    """Where the kernels of its operators are."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.numbers = itertools.count(1)
        """Of events and streams that nobody else has named."""
        self._of_groups: dict[str, int] = {}
        """The streams of asynchronous collectives."""
        self._ends: dict[dist.Work, int] = {}
        """Events at the ends of those, by their works."""
        self._arriving: dict[int, int] = {}
        """The same of functional ones, by the addresses of what they touch."""

    def note(self, event: Event) -> None:
        """Tell the recorder, if there is one."""
        if self.recorder is not None:
            self.recorder.note(event)

    def forget(self) -> None:
        """Let go of everything: works hold tensors."""
        self.recorder = None
        self._ends.clear()
        self._arriving.clear()

    def current_stream(self) -> int:
        """Return the stream on which this thread launches."""
        raise NotImplementedError

    def place(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor in the memory of the device, 0 if it has none there."""
        raise NotImplementedError

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a stream copies from and to a tensor of the host by itself."""
        return tensor.is_pinned()

    def stream_number(self, stream: torch.Stream) -> int:
        """Return what a stream is called in a trace."""
        raise NotImplementedError

    def communicator(self, group: dist.ProcessGroup) -> str:
        """Name what runs the collectives of a group one after the other; empty if nothing does."""
        return ""

    def let_wait(self, stream: int, other: int) -> None:
        """Let a stream wait for all that another one has to do."""
        event = next(self.numbers)
        self.note(Record(event, other))
        self.note(Wait(event, stream))

    def before_operator(self, operator: Operator) -> None:
        """Hear that an operator is about to run."""

    def after_operator(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Hear that it has run; what it accesses is looked at next."""
        places = (t.untyped_storage().data_ptr() for t in waited_tensors(operator, args))
        self._waited(self._arriving.pop(place) for place in places if place in self._arriving)

    def before_collective(self, group: dist.ProcessGroup, is_async: bool) -> int:
        """Return the stream on which a collective runs, which waits for the current one."""
        current = self.current_stream()
        if not is_async:
            return current
        stream = self._of_groups.setdefault(group.group_name, next(self.numbers))
        self.let_wait(stream, current)
        return stream

    def after_collective(self, result: Any, touched: Sequence[torch.Tensor], stream: int) -> None:
        """Hear that it was called, and runs on ``stream``. It writes ``touched``; if it writes
        nothing, it reads them.
        """
        if stream == self.current_stream():
            return
        end = next(self.numbers)
        self.note(Record(end, stream))
        match caller():
            case "distributed_c10d.py":
                self._ends[work_of(result)] = end
            case "_ops.py" | "_functional_collectives.py":
                self._arriving |= {t.untyped_storage().data_ptr(): end for t in touched}
            case _:
                self._waited([end])

    def asked(self, work: dist.Work) -> None:
        """Let the current stream wait for a work; one that stands for several collectives, for
        all.
        """
        self._waited([self._ends.pop(work)] if work in self._ends else self._ends.values())

    def _waited(self, ends: Iterable[int]) -> None:
        for end in ends:
            self.note(Wait(end, self.current_stream()))


class _Slot:
    """The place of an operator in the log, which is known before what it accesses."""

    __slots__ = ("called",)

    def __init__(self, called: _Called | None = None) -> None:
        self.called = called

    def launch(self, names: Mapping[int, str]) -> Launch | None:
        """Return what was called; None if that touched no memory of the device."""
        if self.called is None:
            return None
        named = (_named(touched, names) for touched in (self.called.reads, self.called.writes))
        reads, writes = named
        event = self.called.event
        return msgspec.structs.replace(event, reads=reads, writes=writes)


class _Called(NamedTuple):
    """An operator that was called, and what it touched; these tensors may get names."""

    event: Launch
    reads: Touched
    writes: Touched


class _Thread(threading.local):
    """What a thread has called."""

    launches = 0
    collectives = 0


class Recorder(TorchDispatchMode):
    """Records while it is entered."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.op = -1
        """The op of the schedule that runs."""
        self.log: list[Any] = []
        """Events, places of operators, and marks of the device."""
        self._thread = _Thread()
        self._host: dict[int, tuple[StorageWeakRef, int]] = {}
        self._paused = False

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and the wrapper imports Dynamo, which takes seconds."""
        return False

    def trace(self, names: Mapping[int, str] | None = None) -> list[Event]:
        """Return what was recorded, with streams counted in the order in which they come.

        ``names`` are those of storages, by their address in C++.
        """
        numbers = {HOST: HOST, 0: 0}
        trace: list[Event] = []
        for entry in self.log:
            event = entry.launch(names or {}) if isinstance(entry, _Slot) else entry
            if event is None:
                continue
            if (stream := getattr(event, "stream", None)) is not None:
                number = numbers.setdefault(stream, len(numbers) - 1)
                if number != stream:
                    event = msgspec.structs.replace(event, stream=number)
            trace.append(event)
        return trace

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not see operators, nor for what the host waits: whoever looks at tensors is no part
        of the run. A stream that waits has waited: nobody will let it do so again.
        """
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    # What the device tells:

    def note(self, event: Event) -> None:
        """Add what orders streams."""
        if not (self._paused and isinstance(event, Synchronize)):
            self.log.append(event)

    def _add(self, event: Launch, reads: Touched, writes: Touched) -> None:
        self.log.append(self._filled(_Slot(), event, reads, writes))

    def _filled(self, slot: _Slot, event: Launch, reads: Touched, writes: Touched) -> _Slot:
        self._thread.launches += 1
        slot.called = _Called(msgspec.structs.replace(event, op=self.op), reads, writes)
        return slot

    # What the dispatcher tells:

    def __torch_dispatch__(
        self, operator: Operator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or FakeTensor in types:
            return operator(*args, **kwargs)
        if any(_has_dispatch(kind) for kind in types):
            return NotImplemented  # a subclass first makes operators on plain tensors of it
        if operator is torch.ops.aten.record_stream.default:
            begin = args[0].untyped_storage().data_ptr()
            self.note(RecordStream(begin, self.device.stream_number(args[1])))
            return operator(*args, **kwargs)
        if operator.namespace == "c10d":
            return self._collective(operator, args, kwargs)
        if operator.namespace in _KERNELS:
            return self._kernel(operator, args, kwargs)
        return self._open(operator, args, kwargs)

    def _kernel(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        stream, slot = self.device.current_stream(), _Slot()
        self.device.before_operator(operator)
        self.log.append(slot)
        result = operator(*args, **kwargs)
        self.device.after_operator(operator, args, kwargs, result)
        self._called(slot, stream, operator, args, kwargs, result)
        return result

    def _open(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """Call an operator and see what it calls.

        If that is nothing, it has its own kernels. It may have some beside what it calls, so its
        schema is believed, too, where it names what the operator writes.
        """
        thread, stream, slot = self._thread, self.device.current_stream(), _Slot()
        self.device.before_operator(operator)
        self.log.append(slot)
        before = thread.launches, thread.collectives
        with self:
            result = operator.redispatch(torch._C.DispatchKeySet(self.device.key), *args, **kwargs)
        self.device.after_operator(operator, args, kwargs, result)
        if (thread.launches, thread.collectives) == before or (
            thread.collectives == before[1] and writes_of(operator)
        ):
            self._called(slot, stream, operator, args, kwargs, result)
        return result

    def _called(
        self, slot: _Slot, stream: int, operator: Operator, args: Any, kwargs: Any, result: Any
    ) -> None:
        found = accesses(operator, args, kwargs, result)
        later = bool(argument(operator, args, kwargs, "non_blocking"))
        reads, host_reads = self._split(found.reads, later)
        writes, host_writes = self._split(found.writes, later)
        made, host_made = self._split(found.made, later)
        if not (reads or writes or made or host_reads or host_writes or host_made):
            return
        event = Launch(stream, str(operator), where=line())
        if reads or writes:
            self._filled(slot, event, reads, writes)
        if made:
            self._add(event, [], made)
        if host_reads or host_writes or host_made:
            of_host = msgspec.structs.replace(event, stream=HOST)
            self._add(of_host, host_reads, host_writes + host_made)

    def _collective(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        found = collective(operator, args, kwargs)
        group = group_of((*args, *kwargs.values()))
        self._thread.collectives += 1
        self.device.before_operator(operator)
        touched = [tensor for _, tensor in found.writes or found.reads]
        is_async = argument(operator, args, kwargs, "async_op") is not False
        stream = self.device.before_collective(
            group, is_async and any(map(self.device.place, touched))
        )
        slot = _Slot()
        self.log.append(slot)
        result = operator(*args, **kwargs)
        reads, _ = self._split(found.reads, later=True)
        writes, _ = self._split(found.writes, later=True)
        if reads or writes:
            name = str(operator)
            one_to_one = name.startswith(("c10d.send", "c10d.recv"))
            event = Launch(
                stream,
                name,
                where=line(),
                communicator="" if one_to_one else self.device.communicator(group),
                kept=stream != self.device.current_stream(),
            )
            self._filled(slot, event, reads, writes)
        self.device.after_collective(result, touched, stream)
        return result

    # What is accessed:

    def _split(
        self, named: Sequence[tuple[str, torch.Tensor]], later: bool
    ) -> tuple[Touched, Touched]:
        """Return what a stream touches, and what the host does. ``later``: a stream copies from
        and to pinned memory, and the host does not wait for it.
        """
        of_stream: Touched = []
        of_host: Touched = []
        for name, tensor in named:
            if _has_dispatch(type(tensor)) or not tensor.numel():
                continue
            if address := self.device.place(tensor):
                told = touch(tensor, address, DEVICE, label(name, tensor))
                of_stream.append((told, tensor.untyped_storage()._cdata))
            elif tensor.device.type == "cpu" and (later or self._host):
                copied = later and self.device.is_pinned(tensor)
                if memory := self._host_memory(tensor, copied):
                    begin = int(tensor.storage_offset()) * tensor.element_size()
                    told = touch(tensor, begin, memory, label(name, tensor))
                    of = of_stream if copied else of_host
                    of.append((told, tensor.untyped_storage()._cdata))
        return of_stream, of_host

    def _host_memory(self, tensor: torch.Tensor, copied: bool) -> int:
        """Return the number of a storage of the host; 0 of one that no stream has copied."""
        storage = tensor.untyped_storage()
        held = self._host.get(storage._cdata)
        if held is None or held[0].expired():  # type: ignore[no-untyped-call]
            if not copied:
                return 0
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            held = reference, len(self._host) + 1
            self._host[storage._cdata] = held
        return held[1]


def _has_dispatch(kind: type) -> bool:
    """Return whether a class of tensors makes operators on other tensors of those on its own."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def argument(operator: Operator, args: Any, kwargs: Any, name: str) -> Any:
    """Return what an operator was given for an argument; its default, if nothing."""
    for place, each in enumerate(operator._schema.arguments):
        if each.name == name:
            return args[place] if place < len(args) else kwargs.get(name, each.default_value)
    return None


def _named(touched: Touched, names: Mapping[int, str]) -> tuple[Touch, ...]:
    return tuple(
        msgspec.structs.replace(each, tensor=f"{names[storage]} ({each.tensor})")
        if storage in names
        else each
        for each, storage in touched
    )


def caller() -> str:
    """Return the file of the function that has called a collective; that is not Python code which
    waits for it if C++ has.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]


def line() -> str:
    """Return the innermost line of ``torch.distributed`` that is being executed, else of whoever
    calls operators.

    Locals of frames are not looked at: that would keep tensors alive.
    """
    frame: FrameType | None = sys._getframe(1)
    first = ""
    for _ in range(_DEPTH):
        if frame is None:
            break
        kind, name = _kind(frame.f_code)
        if kind == "distributed":
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        if kind == "user" and not first:
            first = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return first or "autograd"


@functools.cache
def _kind(code: CodeType) -> tuple[str, str]:
    """Return what a function is of, and the name of its file below the folder that has torch."""
    file = code.co_filename.replace("\\", "/")
    short = file.removeprefix(_ROOT)
    if short.startswith("torch/distributed/") and not short.endswith(_PASS_ON):
        return "distributed", short
    if short.startswith("torch/") or file.startswith(_HERE):
        return "torch", short
    return "user", short


_HERE = __file__.rpartition("/")[0]
_ROOT = torch.__file__.replace("\\", "/").removesuffix("torch/__init__.py")
