"""Finds accesses without order in a trace, by vector clocks.

The host and every stream have a clock: how far each of them has come, for all that this one knows.
What the host launches comes after all that the host knows. An access is an epoch of its stream; it
is ordered before another one if the clock of that one has reached the epoch. What the host does
counts as one thread, in the order in which it was recorded, whichever thread of it did that: this
adds order between threads and so no false alarm.

As in FastTrack (Flanagan and Freund, PLDI 2009), not all earlier accesses of a byte are kept, but
those that no later one stands for: a write stands for all that is ordered before it, a read for
such reads. Whatever has a race with an access that was dropped has one with what stands for it, so
every access that has a race with an earlier one is reported with such an access.

Memory is known by its address alone, so what the allocator hands out again is what it was before:
that a block was freed orders nothing between streams.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Self, TypeVar

from fuzzshard.instruments.streams.events import (
    DEVICE,
    HOST,
    Allocate,
    Event,
    Free,
    Launch,
    Record,
    RecordStream,
    Synchronize,
    Touch,
    Wait,
)

Clock = dict[int, int]


class Access(NamedTuple):
    """One access: the number of its event in the trace, its epoch, and what it touches."""

    stream: int
    epoch: int
    write: bool
    place: int
    touch: Touch
    event: Launch | Allocate | Free


class Race(NamedTuple):
    """Two accesses of which neither waits for the other, one of them a write.

    ``bytes`` are the pieces of memory that they share. ``reused`` says that the allocator handed
    this memory out between the two.
    """

    earlier: Access
    later: Access
    bytes: list[tuple[int, int]]
    reused: bool


Kept = TypeVar("Kept")


class _Piece(Generic[Kept]):
    """The bytes [begin, end), of which all is the same."""

    __slots__ = ("begin", "end", "held")

    def __init__(self, begin: int, end: int, held: list[Kept]) -> None:
        self.begin, self.end, self.held = begin, end, held


class _Memory(Generic[Kept]):
    """What is known of each byte of one memory: disjoint pieces in ascending order."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.pieces: list[_Piece[Kept]] = []

    def cut(self, begin: int, end: int) -> tuple[int, int]:
        """Return the place of the pieces that make up [begin, end), which are made so."""
        first = self._cut_at(begin)
        at = begin
        place = first
        while at < end:
            if place == len(self.pieces) or self.begins[place] > at:  # nothing is known here
                until = end if place == len(self.pieces) else min(end, self.begins[place])
                self.begins.insert(place, at)
                self.pieces.insert(place, _Piece(at, until, []))
            elif self.pieces[place].end > end:
                self._cut_at(end)
            at = self.pieces[place].end
            place += 1
        return first, place

    def _cut_at(self, address: int) -> int:
        """Cut the piece that has ``address`` within, and return the place of what follows it."""
        place = bisect_right(self.begins, address) - 1
        if place < 0:
            return 0
        piece = self.pieces[place]
        if piece.begin == address:
            return place
        if piece.end > address:
            self.begins.insert(place + 1, address)
            self.pieces.insert(place + 1, _Piece(address, piece.end, list(piece.held)))
            piece.end = address
        return place + 1

    def join(self, first: int, last: int, held: list[Kept]) -> None:
        """Make one piece of those at [first, last)."""
        piece = _Piece(self.begins[first], self.pieces[last - 1].end, held)
        self.begins[first:last] = [piece.begin]
        self.pieces[first:last] = [piece]

    def within(self, begin: int, end: int) -> Iterator[_Piece[Kept]]:
        """Yield the pieces that have bytes of [begin, end)."""
        for place in range(max(bisect_right(self.begins, begin) - 1, 0), len(self.pieces)):
            piece = self.pieces[place]
            if piece.begin >= end:
                return
            if piece.end > begin:
                yield piece


class _Block(NamedTuple):
    """What the allocator handed out last: by which event, for which stream, and how far that had
    come when the block was freed.
    """

    stream: int
    place: int
    freed: Access | None = None


class Detector:
    """Reads a trace, event by event. ``races`` are those so far, in order of their later access.

    ``ordered_communicators``: NCCL runs the kernels of one communicator one after the other, on
    whichever streams they are (NVIDIA/nccl issue 592: "Safe, but the operations will be
    serialized").
    """

    def __init__(self, *, ordered_communicators: bool = True) -> None:
        self.ordered_communicators = ordered_communicators
        self._clocks: dict[int, Clock] = {}
        self._host: Clock = {}
        self._news = 0
        """Changes with all that the host gets to know."""
        self._told: dict[int, int] = {}
        """The news that each stream has."""
        self._events: dict[int, Clock] = {}
        self._communicators: dict[str, Clock] = {}
        self._memories: dict[int, _Memory[Access]] = {}
        self._blocks: _Memory[_Block] = _Memory()
        self._recorded: dict[int, set[int]] = {}
        self._kept: dict[int, Clock] = {}
        self._held: list[tuple[int, int, Clock]] = []
        self._found: dict[tuple[int, int], Race] = {}
        self._at = -1
        self._readers: dict[type, Callable[[Any], None]] = {
            Launch: self._launch,
            Record: self._record,
            Wait: self._wait,
            Synchronize: self._synchronize,
            Allocate: self._allocate,
            Free: self._free,
            RecordStream: self._record_stream,
        }

    def read(self, trace: Iterable[Event]) -> Self:
        """Take the next events of the trace into account."""
        for event in trace:
            self._at += 1
            self._readers[type(event)](event)
        return self

    @property
    def races(self) -> list[Race]:
        """Every pair, once."""
        return list(self._found.values())

    def _clock(self, stream: int) -> Clock:
        """Return what a stream knows of all, once it has what the host launches on it now."""
        if stream == HOST:
            return self._host
        clock = self._clocks.setdefault(stream, {})
        if self._told.get(stream) != self._news:
            _join(clock, self._host)
            self._told[stream] = self._news
        return clock

    def _launch(self, event: Launch) -> None:
        stream = event.stream
        clock = self._clock(stream)
        ordered = event.communicator if self.ordered_communicators else ""
        if ordered:
            _join(clock, self._communicators.get(ordered, {}))
        clock[stream] = epoch = clock.get(stream, 0) + 1
        if ordered:
            self._communicators[ordered] = dict(clock)
        if event.kept:
            self._kept[self._at] = dict(clock)
        if stream == HOST:
            self._news += 1
        for touches, write in ((event.reads, False), (event.writes, True)):
            for touch in touches:
                if touch.begin < touch.end:
                    self._access(Access(stream, epoch, write, self._at, touch, event), clock)

    def _access(self, access: Access, clock: Clock) -> None:
        touch, write = access.touch, access.write
        memory = self._memories.get(touch.memory)
        if memory is None:
            memory = self._memories[touch.memory] = _Memory()
        first, last = memory.cut(touch.begin, touch.end)
        alone = write and not touch.steps
        for piece in memory.pieces[first:last]:
            kept = []
            for other in piece.held:
                if other.epoch <= clock.get(other.stream, 0):
                    if not _stands_for(access, other):
                        kept.append(other)
                    continue
                if (write or other.write) and other.place != access.place:
                    self._meet(other, access, piece)
                kept.append(other)
            alone = alone and not kept
            kept.append(access)
            piece.held = kept
        if alone and last - first > 1:
            memory.join(first, last, [access])

    def _meet(self, earlier: Access, later: Access, piece: _Piece[Access]) -> None:
        """Report a race if the two share bytes of a piece that both have in their hulls."""
        begin, end = piece.begin, piece.end
        if earlier.touch.steps or later.touch.steps:
            shared = _shared(earlier.touch, later.touch, begin, end)
            if shared is None:
                return
            begin, end = shared
        key = (earlier.place, later.place)
        if key not in self._found:
            reused = later.touch.memory == DEVICE and any(
                block.place > earlier.place
                for part in self._blocks.within(begin, end)
                for block in part.held
            )
            self._found[key] = Race(earlier, later, [], reused)
        self._found[key].bytes.append((begin, end))

    def _record(self, event: Record) -> None:
        self._events[event.event] = dict(self._clock(event.stream))

    def _wait(self, event: Wait) -> None:
        _join(self._clock(event.stream), self._events.get(event.event, {}))

    def _synchronize(self, event: Synchronize) -> None:
        if event.event is not None:
            self._learn(self._events.get(event.event, {}))
        elif event.stream is not None:
            self._learn(self._clock(event.stream))
        else:
            for clock in self._clocks.values():
                self._learn(clock)
            self._forget()

    def _learn(self, clock: Clock) -> None:
        """Tell the host, and by it whatever is launched from now on."""
        _join(self._host, clock)
        self._news += 1

    def _forget(self) -> None:
        """Drop all accesses: what comes next is ordered after every one of them."""
        self._memories.clear()
        self._held.clear()
        self._kept.clear()

    def _allocate(self, event: Allocate) -> None:
        end = event.begin + event.size
        waited = [held for held in self._held if held[0] < end and held[1] > event.begin]
        for held in waited:
            self._held.remove(held)
            self._learn(held[2])
        clock = self._clock(event.stream)
        others = [
            block.freed
            for piece in self._blocks.within(event.begin, end)
            for block in piece.held
            if block.stream != event.stream and block.freed is not None
        ]
        if others:
            self._handed_over(event, others, clock)
        first, last = self._blocks.cut(event.begin, end)
        self._blocks.join(first, last, [_Block(event.stream, self._at)])
        self._recorded.pop(event.begin, None)

    def _handed_over(self, event: Allocate, freed: list[Access], clock: Clock) -> None:
        """A block of one stream is handed out for another one: an access of both of them."""
        touch = Touch(event.begin, event.begin + event.size)
        clock[event.stream] = epoch = clock.get(event.stream, 0) + 1
        access = Access(event.stream, epoch, True, self._at, touch, event)
        for other in freed:
            if other.epoch > clock.get(other.stream, 0):
                begin = max(other.touch.begin, touch.begin)
                self._meet(other, access, _Piece(begin, min(other.touch.end, touch.end), []))
        self._access(access, clock)

    def _free(self, event: Free) -> None:
        piece = next(self._blocks.within(event.begin, event.begin + 1), None)
        block = piece.held[-1] if piece is not None else None
        if piece is None or block is None or piece.begin != event.begin or block.freed:
            if not event.size:
                return
            piece, block = _Piece(event.begin, event.begin + event.size, []), None
        begin, end = piece.begin, piece.end
        streams = self._recorded.pop(event.begin, set())
        for access in self._accesses(begin, end):
            if event.held:
                streams.add(access.stream)
            elif access.place in self._kept and not self._somebody_knows(access):
                # it is freed, so its keeper has seen the end of what nobody has waited for
                self._learn(self._kept[access.place])
        if streams:
            clock: Clock = {}
            for stream in streams - {HOST}:
                _join(clock, self._clock(stream))
            self._held.append((begin, end, clock))
        if block is not None:
            epoch = self._clock(block.stream).get(block.stream, 0)
            touch = Touch(begin, end)
            freed = Access(block.stream, epoch, True, self._at, touch, event)
            piece.held = [block._replace(freed=freed)]

    def _accesses(self, begin: int, end: int) -> list[Access]:
        memory = self._memories.get(DEVICE)
        if memory is None:
            return []
        return [access for piece in memory.within(begin, end) for access in piece.held]

    def _somebody_knows(self, access: Access) -> bool:
        """Return whether something has waited for an access."""
        others = (clock for stream, clock in self._clocks.items() if stream != access.stream)
        return any(clock.get(access.stream, 0) >= access.epoch for clock in (self._host, *others))

    def _record_stream(self, event: RecordStream) -> None:
        for piece in self._blocks.within(event.begin, event.begin + 1):
            if piece.held[-1].stream != event.stream:  # of its own stream it need not be told
                self._recorded.setdefault(piece.begin, set()).add(event.stream)


def _join(clock: Clock, other: Clock) -> None:
    for stream, epoch in other.items():
        if clock.get(stream, 0) < epoch:
            clock[stream] = epoch


def _stands_for(access: Access, other: Access) -> bool:
    """Return whether ``other``, which is ordered before ``access``, need not be known any more."""
    if access.touch.steps:  # has not all of the bytes
        ours = (access.stream, access.write, access.touch)
        return ours == (other.stream, other.write, other.touch)
    return access.write or not other.write


MOST_RUNS = 1 << 20
"""Tensors with more gaps are not looked into: they count as if they shared nothing."""


def _shared(a: Touch, b: Touch, begin: int, end: int) -> tuple[int, int] | None:
    """Return the first bytes of [begin, end) that both have."""
    if max(math.prod(count for count, _ in touch.steps) for touch in (a, b)) > MOST_RUNS:
        return None
    ours, theirs = a.runs(), b.runs()
    one, two = next(ours, None), next(theirs, None)
    while one is not None and two is not None:
        low, high = max(one[0], two[0], begin), min(one[1], two[1], end)
        if low < high:
            return low, high
        if one[1] <= two[1]:
            one = next(ours, None)
        else:
            two = next(theirs, None)
    return None


def races(trace: Iterable[Event], *, ordered_communicators: bool = True) -> list[Race]:
    """Return the accesses of a whole trace that have no order."""
    return Detector(ordered_communicators=ordered_communicators).read(trace).races
