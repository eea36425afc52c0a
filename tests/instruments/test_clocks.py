"""Vector clocks over streams: planted orders, planted gaps, and every trace by brute force."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzshard.instruments.streams import events
from fuzzshard.instruments.streams.clocks import Detector, races
from fuzzshard.instruments.streams.events import (
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

MAIN, SIDE, GROUP = 0, 1, 2
A, B = Touch(0, 8), Touch(8, 16)
PINNED = Touch(0, 8, memory=1)


def reads(stream: int, *touches: Touch, name: str = "read", **more: object) -> Launch:
    return Launch(stream, name, reads=touches, **more)


def writes(stream: int, *touches: Touch, name: str = "write", **more: object) -> Launch:
    return Launch(stream, name, writes=touches, **more)


def waits_for(stream: int, other: int, event: int = 7) -> list[Event]:
    """``stream.wait_stream(other)``."""
    return [Record(event, other), Wait(event, stream)]


def found(*trace: Event | list[Event]) -> list[tuple[str, str]]:
    """Return the names of the two accesses of each race."""
    flat = [e for each in trace for e in (each if isinstance(each, list) else [each])]
    return [(race.earlier.event.name, race.later.event.name) for race in races(flat)]


ONE = [("write", "read")]


def test_a_stream_is_in_order() -> None:
    assert found(writes(MAIN, A), reads(MAIN, A), writes(MAIN, A)) == []


def test_two_streams_are_not() -> None:
    assert found(writes(MAIN, A), reads(SIDE, A)) == ONE
    assert found(reads(MAIN, A), writes(SIDE, A)) == [("read", "write")]
    assert found(writes(MAIN, A), writes(SIDE, A)) == [("write", "write")]


def test_reads_never_race() -> None:
    assert found(reads(MAIN, A), reads(SIDE, A)) == []


def test_other_bytes_never_race() -> None:
    assert found(writes(MAIN, A), reads(SIDE, B)) == []


def test_a_stream_that_waits_comes_after() -> None:
    assert found(writes(MAIN, A), waits_for(SIDE, MAIN), reads(SIDE, A)) == []


def test_waiting_the_other_way_round_orders_nothing() -> None:
    assert found(writes(MAIN, A), waits_for(MAIN, SIDE), reads(SIDE, A)) == ONE


def test_an_event_knows_what_came_before_it_was_recorded() -> None:
    late = [Record(7, MAIN), writes(MAIN, A), Wait(7, SIDE)]
    assert found(late, reads(SIDE, A)) == ONE


def test_an_event_is_waited_for_as_it_was_recorded_last() -> None:
    trace = [Record(7, MAIN), writes(MAIN, A), Record(7, MAIN), Wait(7, SIDE), reads(SIDE, A)]
    assert found(trace) == []


def test_a_read_does_not_stand_for_a_write() -> None:
    trace = [writes(MAIN, A), *waits_for(SIDE, MAIN), reads(SIDE, A)]
    assert found(trace, reads(GROUP, A)) == ONE


def test_all_readers_of_a_piece_are_known_after_it_was_cut() -> None:
    both = [reads(MAIN, A, name="ordered"), reads(SIDE, A, name="not")]
    assert found(both, reads(GROUP, Touch(0, 4)), writes(MAIN, Touch(4, 8))) == [("not", "write")]


def test_an_event_that_nobody_recorded_orders_nothing() -> None:
    assert found(writes(MAIN, A), Wait(7, SIDE), reads(SIDE, A)) == ONE


def test_order_goes_through_a_third_stream() -> None:
    through = [*waits_for(GROUP, MAIN), *waits_for(SIDE, GROUP, 8)]
    assert found(writes(MAIN, A), through, reads(SIDE, A)) == []


@pytest.mark.parametrize(
    "wait", [Synchronize(), Synchronize(stream=MAIN), Synchronize(event=7)], ids=repr
)
def test_what_the_host_has_waited_for_comes_before_all_that_it_launches(wait: Event) -> None:
    assert found(writes(MAIN, A), Record(7, MAIN), wait, reads(SIDE, A)) == []


def test_the_host_has_waited_for_one_stream_only() -> None:
    assert found(writes(MAIN, A), Synchronize(stream=SIDE), reads(SIDE, A)) == ONE


def test_a_copy_that_does_not_block_is_not_there_yet() -> None:
    copied = writes(MAIN, PINNED, name="copy")
    assert found(copied, reads(HOST, PINNED)) == [("copy", "read")]
    assert found(copied, Record(7, MAIN), Synchronize(event=7), reads(HOST, PINNED)) == []


def test_the_host_may_not_write_what_is_still_being_copied() -> None:
    copied = reads(MAIN, PINNED, name="copy")
    assert found(writes(HOST, PINNED), copied) == []
    assert found(copied, writes(HOST, PINNED)) == [("copy", "write")]


def asynchronous(kept: bool = True) -> list[Event]:
    """``dist.all_reduce(a, async_op=True)``; waiting for its work is waiting for event 9."""
    kernel = Launch(GROUP, "all_reduce", reads=(A,), writes=(A,), kept=kept)
    return [*waits_for(GROUP, MAIN), kernel, Record(9, GROUP)]


def test_a_collective_begins_after_the_current_stream() -> None:
    assert found(writes(MAIN, A), asynchronous()) == []
    assert found(writes(SIDE, A), asynchronous()) == [("write", "all_reduce")]


def test_a_collective_is_done_where_its_work_was_waited_for() -> None:
    assert found(asynchronous(), reads(MAIN, A)) == [("all_reduce", "read")]
    assert found(asynchronous(), Wait(9, MAIN), reads(MAIN, A)) == []
    assert found(asynchronous(), Wait(9, MAIN), reads(SIDE, A)) == [("all_reduce", "read")]


def test_collectives_of_one_communicator_run_one_after_the_other() -> None:
    def one(stream: int, communicator: str) -> Launch:
        return Launch(stream, "reduce", writes=(A,), communicator=communicator)

    trace = [one(MAIN, "0"), one(SIDE, "0")]
    assert found(trace) == []
    assert found(one(MAIN, "0"), writes(MAIN, A), one(SIDE, "0")) == [("write", "reduce")]
    assert found(one(MAIN, "0"), one(SIDE, "1")) == [("reduce", "reduce")]
    assert len(races(trace, ordered_communicators=False)) == 1


BLOCK = [Allocate(0, 512, MAIN)]
AGAIN = [Allocate(0, 512, MAIN), writes(MAIN, A, name="next")]
"""The block is handed out for the stream that it belongs to, and written to."""


def test_memory_that_another_stream_still_reads_is_not_handed_out_again() -> None:
    used = [*BLOCK, writes(MAIN, A), *waits_for(SIDE, MAIN), reads(SIDE, A)]
    assert found(used, Free(0), AGAIN) == [("read", "next")]
    assert found(used, waits_for(MAIN, SIDE, 8), Free(0), AGAIN) == []


def test_a_race_on_reused_memory_says_so() -> None:
    used = [*BLOCK, reads(SIDE, A), Free(0), *AGAIN]
    assert [race.reused for race in races(used)] == [True]
    assert [race.reused for race in races([*BLOCK, reads(SIDE, A), writes(MAIN, A)])] == [False]


def test_the_allocator_waits_for_a_recorded_stream() -> None:
    used = [*BLOCK, reads(SIDE, A), RecordStream(0, SIDE)]
    assert found(used, Free(0), AGAIN) == []


def test_what_a_recorded_stream_does_after_the_block_was_freed_is_not_waited_for() -> None:
    used = [*BLOCK, RecordStream(0, SIDE), Free(0), reads(SIDE, A)]
    assert found(used, AGAIN) == [("read", "next")]


def test_the_stream_of_a_block_need_not_be_recorded() -> None:
    assert found(BLOCK, reads(SIDE, A), RecordStream(0, MAIN), Free(0), AGAIN) == [
        ("read", "next")
    ]


def test_the_allocator_waits_for_all_streams_of_a_held_block() -> None:
    assert found(BLOCK, reads(SIDE, A), Free(0, held=True), AGAIN) == []


def test_a_held_block_older_than_the_trace_is_waited_for() -> None:
    assert found(reads(SIDE, A), Free(0, size=512, held=True), AGAIN) == []


def test_a_collective_that_nobody_waits_for_keeps_its_memory() -> None:
    assert found(BLOCK, asynchronous(), Free(0), AGAIN) == []
    assert found(BLOCK, asynchronous(kept=False), Free(0), AGAIN) == [("all_reduce", "next")]


def test_a_collective_that_another_stream_waits_for_keeps_it_no_longer() -> None:
    waited = [*asynchronous(), Wait(9, SIDE)]
    assert found(BLOCK, waited, Free(0), AGAIN) == [("all_reduce", "next")]


def handed_over(*between: Event) -> list[tuple[str, str]]:
    trace = [Allocate(0, 512, MAIN), writes(MAIN, A), Free(0), *between, Allocate(0, 512, SIDE)]
    return [(type(r.earlier.event).__name__, type(r.later.event).__name__) for r in races(trace)]


def test_a_block_of_one_stream_that_another_gets_is_an_access_of_both() -> None:
    assert handed_over() == [("Free", "Allocate"), ("Launch", "Allocate")]
    assert handed_over(Synchronize()) == []
    assert handed_over(*waits_for(SIDE, MAIN)) == []


COLUMN = Touch(0, 60, width=4, steps=((8, 8),))
"""The first of two columns of eight rows of four bytes."""
OTHER = Touch(4, 64, width=4, steps=((8, 8),))


def test_columns_of_one_matrix_share_no_bytes() -> None:
    assert found(writes(MAIN, COLUMN), writes(SIDE, OTHER)) == []
    assert found(writes(MAIN, COLUMN), writes(SIDE, COLUMN)) == [("write", "write")]
    assert found(writes(MAIN, COLUMN), writes(SIDE, Touch(8, 12))) == [("write", "write")]
    assert found(writes(MAIN, COLUMN), writes(SIDE, Touch(12, 16))) == []


def test_a_column_stands_for_no_other_bytes() -> None:
    whole = writes(MAIN, Touch(0, 64), name="whole")
    trace = [whole, *waits_for(SIDE, MAIN), writes(SIDE, COLUMN, name="column")]
    assert found(trace, reads(GROUP, OTHER)) == [("whole", "read")]
    after = [*trace, *waits_for(GROUP, MAIN, 8)]
    assert found(after, reads(GROUP, OTHER)) == []
    assert found(after, reads(GROUP, COLUMN)) == [("column", "read")]


def test_a_race_names_the_bytes_that_the_two_share() -> None:
    (race,) = races([writes(MAIN, Touch(0, 8)), reads(SIDE, Touch(4, 12))])
    assert race.bytes == [(4, 8)]


def test_a_trace_is_json() -> None:
    trace = [*BLOCK, *asynchronous(), Synchronize(), writes(HOST, PINNED), Free(0, held=True)]
    assert events.read(events.write(trace)) == trace


# Every trace:

STREAMS = (HOST, 0, 1, 2)
ranges = st.tuples(st.integers(0, 3), st.integers(1, 3)).map(lambda r: Touch(r[0], r[0] + r[1]))
one_byte = st.integers(0, 1).map(lambda begin: Touch(begin, begin + 1))
streams = st.sampled_from(STREAMS)
devices = st.sampled_from(STREAMS[1:])
marks = st.sampled_from((10, 11))
communicators = st.sampled_from(("", "", "0"))


def launches(touches: st.SearchStrategy[Touch]) -> st.SearchStrategy[list[Event]]:
    """One kernel, of few accesses."""
    few = st.lists(touches, max_size=2).map(tuple)
    return st.builds(Launch, streams, st.just("kernel"), few, few, communicator=communicators).map(
        lambda launch: [launch]
    )


orders = st.one_of(
    st.builds(waits_for, devices, devices),
    st.builds(waits_for, devices, devices),
    st.builds(lambda *each: [Record(*each)], marks, devices),
    st.builds(lambda *each: [Wait(*each)], marks, devices),
    st.builds(lambda mark: [Synchronize(event=mark)], marks),
    st.builds(lambda stream: [Synchronize(stream=stream)], devices),
    st.just([Synchronize()]),
)


def traces(touches: st.SearchStrategy[Touch], most: int) -> st.SearchStrategy[list[Event]]:
    """Launches, two of three, and what orders them."""
    kernels = launches(touches)
    parts = st.lists(st.one_of(kernels, kernels, orders), max_size=most)
    return parts.map(lambda lists: [event for each in lists for event in each])


any_trace = st.one_of(traces(ranges, 12), traces(one_byte, 8), traces(st.just(A), 8))


def before(trace: list[Event]) -> nx.DiGraph:
    """Return which launches come before which, as the transitive closure of single steps.

    A step is a pair of neighbours in a stream, of what the host does one after the other, or of
    a record and a wait. Nothing in this is a clock.
    """
    graph = nx.DiGraph()
    last: dict[object, int] = {}

    def after(index: int, *whom: object) -> None:
        graph.add_node(index)
        graph.add_edges_from((last[w], index) for w in whom if w in last)

    for index, event in enumerate(trace):
        match event:
            case Launch(stream=stream, communicator=communicator):
                after(index, "host", stream, ("communicator", communicator))
                last[stream] = index
                if stream == HOST:
                    last["host"] = index
                if communicator:
                    last["communicator", communicator] = index
            case Record(event=mark, stream=stream):
                after(index, "host", stream)
                last["event", mark] = last[stream] = index
            case Wait(event=mark, stream=stream):
                after(index, "host", stream, ("event", mark))
                last[stream] = index
            case Synchronize(event=mark, stream=stream):
                waited = [("event", mark)] if mark is not None else [stream]
                whom = waited if mark is not None or stream is not None else STREAMS
                after(index, "host", *whom)
                last["host"] = last[HOST] = index
    return nx.transitive_closure_dag(graph)


def touched(event: Launch) -> dict[int, bool]:
    """Return the bytes that a kernel accesses, and whether it writes them."""
    bytes_of = {b: False for touch in event.reads for b in range(touch.begin, touch.end)}
    return bytes_of | {b: True for touch in event.writes for b in range(touch.begin, touch.end)}


def brute_force(trace: list[Event]) -> set[tuple[int, int, int]]:
    """Return every race: a byte, and its two accesses."""
    order = before(trace)
    accesses = {i: touched(event) for i, event in enumerate(trace) if isinstance(event, Launch)}
    return {
        (byte, a, b)
        for a, b in itertools.combinations(accesses, 2)
        if not order.has_edge(a, b)
        for byte in accesses[a].keys() & accesses[b].keys()
        if accesses[a][byte] or accesses[b][byte]
    }


def reported(trace: list[Event]) -> set[tuple[int, int, int]]:
    return {
        (byte, race.earlier.place, race.later.place)
        for race in Detector().read(trace).races
        for begin, end in race.bytes
        for byte in range(begin, end)
    }


@settings(max_examples=1500, deadline=None)
@given(any_trace)
def test_clocks_find_what_brute_force_finds(trace: list[Event]) -> None:
    """Nothing else is reported, and every access that races with an earlier one is."""
    due, told = brute_force(trace), reported(trace)
    assert told <= due
    assert {(byte, b) for byte, _, b in due} == {(byte, b) for byte, _, b in told}


def linear_extensions(order: nx.DiGraph, nodes: list[int]) -> set[tuple[int, int]]:
    """Return the pairs that come in either order in some run that the order allows."""
    seen = set()
    below = order.subgraph(nodes)
    for run in nx.all_topological_sorts(below):
        seen |= set(itertools.combinations(run, 2))
    return {(a, b) for a, b in seen if (b, a) in seen}


@settings(max_examples=150, deadline=None)
@given(traces(one_byte, 6))
def test_a_race_is_a_pair_that_some_run_does_the_other_way_round(trace: list[Event]) -> None:
    order = before(trace)
    kernels = [i for i, event in enumerate(trace) if isinstance(event, Launch)]
    swapped = linear_extensions(order, kernels)
    for race in Detector().read(trace).races:
        assert (race.earlier.place, race.later.place) in swapped
    assert {(a, b) for _, a, b in brute_force(trace)} <= swapped


@settings(max_examples=300, deadline=None)
@given(traces(ranges, 10))
def test_columns_are_found_as_their_cells_are(trace: list[Event]) -> None:
    """A tensor with gaps races as its runs do, each for itself."""
    gaps, cells = [], []
    for event in trace:
        if isinstance(event, Launch):
            wide = [tuple(map(gapped, ts)) for ts in (event.reads, event.writes)]
            runs = [tuple(Touch(*r) for t in ts for r in t.runs()) for ts in wide]
            more = {"communicator": event.communicator}
            gaps.append(Launch(event.stream, event.name, *wide, **more))
            cells.append(Launch(event.stream, event.name, *runs, **more))
        else:
            gaps.append(event)
            cells.append(event)
    assert {b for _, _, b in reported(gaps)} == {b for _, _, b in brute_force(cells)}
    assert {(a, b) for _, a, b in reported(gaps)} <= {(a, b) for _, a, b in brute_force(cells)}


def gapped(touch: Touch) -> Touch:
    """Make a tensor with gaps of one that begins at an even address and has several bytes."""
    count = touch.end - touch.begin
    if touch.begin % 2 or count == 1:
        return touch
    return Touch(touch.begin, touch.begin + 2 * count - 1, width=1, steps=((count, 2),))
