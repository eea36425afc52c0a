"""Streams, events and a caching allocator that exist in Python only, for tensors of the CPU.

``fully_shard`` asks torch for the streams of its device, as users do for their hooks. Given these
in place of the CPU's, which order nothing, it does on the CPU what it does on CUDA, and a
:class:`.recorder.Recorder` writes the same trace. Kernels still run at once, so values are right
whatever is missing.

The allocator has a pool of free blocks for each stream, and hands out the smallest that is large
enough, as CUDA's does. It does not split blocks or join them. A storage is allocated on the stream
on which an operator first uses it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from typing_extensions import override

from fuzzshard.instruments.streams.accesses import telling, tensors_of
from fuzzshard.instruments.streams.events import Allocate, Free, Record, Synchronize, Wait
from fuzzshard.instruments.streams.recorder import Device, Operator, Recorder

_ROUND = 512
"""Sizes of blocks are multiples of this, as of CUDA's allocator."""
_ASKS = tuple(
    f"torch.distributed.fsdp._fully_shard.{name}"
    for name in ("_fsdp_collectives", "_fsdp_param_group", "_fsdp_state")
)
"""The modules that ask for the streams of a device by ``_get_device_handle``."""


_recording: list[SimulatedDevice] = []
"""What is recorded now."""


def synchronize() -> None:
    """Let the host wait for all streams, if there are some, as ``torch.cuda.synchronize`` does."""
    for device in _recording:
        device.note(Synchronize())


class Event:
    """``torch.Event``."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.number = next(device.numbers)

    def record(self, stream: Stream | None = None) -> None:
        """Mark how far a stream has come."""
        self.device.note(Record(self.number, self.device.number(stream)))

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait."""
        self.device.note(Wait(self.number, self.device.number(stream)))

    def synchronize(self) -> None:
        """Let the host wait."""
        self.device.note(Synchronize(event=self.number))


class Stream:
    """``torch.Stream``."""

    device_index = device_type = 0

    def __init__(self, device: SimulatedDevice, number: int) -> None:
        self.device, self.stream_id = device, number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = event or Event(self.device)
        event.record(self)
        return event

    def wait_event(self, event: Event | torch.Event) -> None:
        """Wait for an event. One of torch is the user's, who has recorded it after a step."""
        if isinstance(event, Event):
            event.wait(self)
        else:
            self.wait_stream(Stream(self.device, self.device.current_stream()))

    def wait_stream(self, stream: Stream) -> None:
        """Wait for another stream."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait."""
        self.device.note(Synchronize(stream=self.stream_id))


class _Block(NamedTuple):
    """The memory of a storage."""

    storage: StorageWeakRef
    nbytes: int
    begin: int
    size: int
    stream: int


class SimulatedDevice(Device):
    """What a recorder asks; ``handle`` is what ``fully_shard`` asks, as if it were torch.cuda.

    Stream 0 is the default one.
    """

    key = torch._C.DispatchKey.CPU

    def __init__(self) -> None:
        super().__init__()
        self.streams = [0]
        self._end = _ROUND
        self._pools: dict[int, list[tuple[int, int]]] = {}
        """The free blocks of each stream, as (size, address)."""
        self._blocks: dict[int, _Block] = {}
        """What storages have, by their address in C++."""
        self.handle = SimpleNamespace(
            Stream=lambda priority=0: Stream(self, next(self.numbers)),
            Event=lambda: Event(self),
            current_stream=lambda: Stream(self, self.current_stream()),
            stream=self._on,
            synchronize=lambda: self.note(Synchronize()),
        )

    def number(self, stream: Stream | None) -> int:
        """Return the number of a stream, of the current one for None."""
        return self.current_stream() if stream is None else stream.stream_id

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        self.streams.append(stream.stream_id)
        try:
            yield
        finally:
            self.streams.pop()

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Give ``fully_shard`` these streams, and record what it does with them."""
        with contextlib.ExitStack() as stack:
            for name in _ASKS:
                module = importlib.import_module(name)
                stack.enter_context(
                    mock.patch.object(module, "_get_device_handle", return_value=self.handle)
                )
            stack.enter_context(mock.patch.object(torch.cpu, "Stream", self.handle.Stream))
            stack.enter_context(telling(dist.Work, "wait", self.asked))
            self.recorder = Recorder(self)
            _recording.append(self)
            stack.callback(self.forget)
            yield stack.enter_context(self.recorder)

    @override
    def forget(self) -> None:
        super().forget()
        _recording.remove(self)
        self._blocks.clear()

    # What the recorder asks:

    @override
    def current_stream(self) -> int:
        return self.streams[-1]

    @override
    def communicator(self, group: dist.ProcessGroup) -> str:
        return group.group_name

    @override
    def after_operator(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Gives what the operator made its memory."""
        for tensor in tensors_of(result):
            self.place(tensor)
        super().after_operator(operator, args, kwargs, result)

    @override
    def before_operator(self, operator: Operator) -> None:
        """Frees what nobody refers to any more, or has no memory now."""
        for key, block in list(self._blocks.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(block.storage.cdata)
            if storage is None or storage.nbytes() != block.nbytes:
                del self._blocks[key]
                self._pools.setdefault(block.stream, []).append((block.size, block.begin))
                self.note(Free(block.begin))

    @override
    def place(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if tensor.device.type != "cpu" or not storage.nbytes():
            return 0
        block = self._blocks.get(storage._cdata)
        if block is None or block.nbytes != storage.nbytes():
            block = self._allocate(storage)
        return block.begin + int(tensor.storage_offset()) * tensor.element_size()

    def _allocate(self, storage: torch.UntypedStorage) -> _Block:
        """Hand out the smallest free block that the current stream has, else a new one."""
        stream = self.current_stream()
        size = -(-storage.nbytes() // _ROUND) * _ROUND
        free = self._pools.setdefault(stream, [])
        fitting = min((block for block in free if block[0] >= size), default=None)
        if fitting is None:
            fitting = (size, self._end)
            self._end += size
        else:
            free.remove(fitting)
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        block = _Block(reference, storage.nbytes(), fitting[1], fitting[0], stream)
        self._blocks[storage._cdata] = block
        self.note(Allocate(block.begin, block.size, stream))
        return block
