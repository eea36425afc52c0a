"""What happened to streams and memory in one run, in the order in which the host did it.

A trace is a list of :data:`Event`, which a recorder or a test writes. Streams, events and
addresses are numbers that mean nothing else. What runs asynchronously has no event of its own: a
collective with ``async_op=True`` is a :class:`Record` on the current stream, a :class:`Wait` and a
:class:`Launch` on the stream of the process group, and a :class:`Record` there, for which
``Work.wait()`` is a :class:`Wait`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

HOST = -1
"""The stream of what the host itself does: it reads and writes pinned memory."""

DEVICE = 0
"""The memory of the device. Storages of the host have numbers of their own."""


class Touch(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The bytes [begin, end) of one memory, or some of them.

    ``steps`` are of a tensor with gaps: it has runs of ``width`` bytes, at ``begin`` plus any sum
    of multiples of the strides, one below the count of each, as (count, stride).
    """

    begin: int
    end: int
    memory: int = DEVICE
    width: int = 0
    steps: tuple[tuple[int, int], ...] = ()
    tensor: str = ""

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield its runs of bytes, [begin, end), in ascending order."""
        if not self.steps:
            yield self.begin, self.end
            return
        starts = [self.begin]
        for count, stride in self.steps:
            starts = [start + i * stride for start in starts for i in range(count)]
        yield from ((start, start + self.width) for start in sorted(starts))


class _Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="kind"):
    """One thing that happened."""


class Launch(_Event, frozen=True, tag="launch"):
    """A kernel on a stream, or what the host does itself (:data:`HOST`).

    ``where`` is the line that issued it, ``op`` the op of the schedule that ran. Kernels of one
    ``communicator`` run one after the other. A ``kept`` one keeps its memory from the allocator
    until somebody has waited for it, or has seen its end.
    """

    stream: int
    name: str
    reads: tuple[Touch, ...] = ()
    writes: tuple[Touch, ...] = ()
    where: str = ""
    op: int = -1
    communicator: str = ""
    kept: bool = False


class Record(_Event, frozen=True, tag="record"):
    """``event.record(stream)``."""

    event: int
    stream: int


class Wait(_Event, frozen=True, tag="wait"):
    """``stream.wait_event(event)``: of the event as it was recorded last."""

    event: int
    stream: int


class Synchronize(_Event, frozen=True, tag="synchronize"):
    """The host waits for an event or a stream; for the whole device if neither is given."""

    event: int | None = None
    stream: int | None = None


class Allocate(_Event, frozen=True, tag="allocate"):
    """The caching allocator hands out a block of memory of the device, for use on ``stream``."""

    begin: int
    size: int
    stream: int
    where: str = ""


class Free(_Event, frozen=True, tag="free"):
    """A block goes back to the allocator; ``size`` is that of one which is older than the trace.

    The allocator has waited for whatever accessed a ``held`` one before it hands it out again.
    """

    begin: int
    size: int = 0
    held: bool = False
    where: str = ""


class RecordStream(_Event, frozen=True, tag="record_stream"):
    """``tensor.record_stream(stream)``: the block is held until what the stream has to do when it
    is freed is done.
    """

    begin: int
    stream: int


Event = Launch | Record | Wait | Synchronize | Allocate | Free | RecordStream


def read(text: bytes | str) -> list[Event]:
    """Return the trace that has this JSON text."""
    return msgspec.json.decode(text, type=list[Event])


def write(trace: list[Event]) -> bytes:
    """Return a trace as JSON."""
    return msgspec.json.encode(trace)
