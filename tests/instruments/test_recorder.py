"""What operators access is recorded, and on which stream, without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from fuzzshard.instruments.streams import proof
from fuzzshard.instruments.streams.clocks import races
from fuzzshard.instruments.streams.events import (
    HOST,
    Event,
    Launch,
    Record,
    Synchronize,
    Wait,
)
from fuzzshard.instruments.streams.recorder import Recorder
from fuzzshard.instruments.streams.simulated import SimulatedDevice, Stream


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Rank 0 of two, whose collectives do nothing."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A rank by itself, with works that a fake one has not."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@contextlib.contextmanager
def recording(device: SimulatedDevice | None = None) -> Iterator[list[Event]]:
    """The list has the trace once the context is left."""
    trace: list[Event] = []
    with (device or SimulatedDevice()).recording() as recorder:
        yield trace
    trace += recorder.trace()


def launches(trace: list[Event]) -> list[Launch]:
    return [event for event in trace if isinstance(event, Launch)]


def seen(call: Callable[[], object], device: SimulatedDevice | None = None) -> dict[str, str]:
    """Return the arguments that operators read, and those that they write."""
    with recording(device) as trace:
        call()
    touched = {"reads": [], "writes": []}
    for launch in launches(trace):
        for how, names in touched.items():
            names += [each.tensor.partition(":")[0] for each in getattr(launch, how)]
    return {how: " ".join(names) for how, names in touched.items()}


X, Y = torch.ones(4, 4), torch.ones(4, 4)
BF = torch.ones(4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("call", "reads", "writes"),
    [
        (lambda: X + Y, "self other", "result"),
        (lambda: X.add_(Y), "other", "self"),
        (lambda: torch.add(X, Y, out=torch.empty(4, 4)), "self other", "out"),
        (lambda: X.to(torch.float64), "self", "result"),
        (lambda: X.copy_(Y), "src", "self"),
        (lambda: X[0:2].add_(X[2:4]), "other", "self"),
        (lambda: X.sum().item(), "self self", "result"),
        (lambda: torch.equal(X, Y), "self other", ""),
        (lambda: torch._foreach_add_([X, X], [Y, Y]), "other other", "self self"),
        (lambda: torch._foreach_mul([X, Y], 2.0), "self self", "result result"),
        (lambda: torch.split(X, 2), "", ""),
        (lambda: X.t().view(-1, 2, 2) if X.t().is_contiguous() else X.t(), "", ""),
        (lambda: torch.ops.aten._unsafe_view(X, [16]), "", ""),
        (lambda: X.detach().unsqueeze_(0), "", ""),
        (lambda: torch.empty_like(X), "", ""),
        (lambda: torch.empty(4).resize_(2), "", ""),
        (lambda: X.new_zeros(3), "", "result"),
        (lambda: torch.zeros_like(X), "", "result"),
        (lambda: torch.zeros(4), "", "result"),
        (lambda: torch.empty(0) + 1, "", ""),
    ],
)
def test_operators_access_what_their_schema_says(
    call: Callable[[], object], reads: str, writes: str
) -> None:
    assert seen(call) == {"reads": reads, "writes": writes}


def test_a_fused_optimizer_writes_parameters_and_states() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = torch.optim.Adam([parameter], fused=True)
    written = seen(optimizer.step)["writes"].split()
    assert {"self", "exp_avgs", "exp_avg_sqs"} <= set(written)


def test_what_operators_of_python_call_is_seen_in_their_place() -> None:
    import torch.distributed.fsdp

    output = torch.empty(8)

    def copy_in() -> None:
        torch.ops.fsdp.all_gather_copy_in([torch.ones(4)], output, [4], 4, 1)

    with recording() as trace:
        copy_in()
    copy = launches(trace)[-1]
    assert copy.name == "aten._foreach_copy_.default"
    assert [touch.end - touch.begin for touch in copy.writes] == [16]  # not the whole output
    if hasattr(torch.ops.fsdp, "record_grad_output_stream"):  # of torch 2.15
        told = seen(lambda: torch.ops.fsdp.record_grad_output_stream(X, 0, 0, 0))
        assert told == {"reads": "", "writes": ""}


def test_tensors_with_gaps_say_so() -> None:
    with recording() as trace:
        X[:, 0].add_(1)
        X.t().add_(1)
        torch.ones(1).expand(4) + 1
    column, whole, expanded = launches(trace)[0], launches(trace)[1], launches(trace)[-2]
    (touch,) = column.writes
    assert (touch.width, touch.steps, touch.end - touch.begin) == (4, ((4, 16),), 52)
    assert [(t.steps, t.end - t.begin) for t in whole.writes] == [((), 64)]
    assert [(t.steps, t.end - t.begin) for t in expanded.reads] == [((), 4)]


def test_backward_is_seen() -> None:
    weight = torch.ones(3, requires_grad=True)
    with recording() as trace:
        (weight * weight).sum().backward()
    read = [launch.name for launch in launches(trace) if launch.reads]
    assert read.count("aten.mul.Tensor") == 3  # of which two in backward


def test_lines_of_torch_distributed_are_named_and_else_those_of_the_caller() -> None:
    with recording() as trace:
        X + Y
    assert " in test_lines_of_torch" in launches(trace)[0].where
    assert "test_recorder.py:" in launches(trace)[0].where


def test_who_only_looks_is_not_seen() -> None:
    device = SimulatedDevice()
    with device.recording() as recorder, recorder.paused():
        X + Y
    assert launches(recorder.trace()) == []


def test_names_stand_before_arguments() -> None:
    with SimulatedDevice().recording() as recorder:
        X + Y
    named = recorder.trace({X.untyped_storage()._cdata: "a.weight"})
    assert launches(named)[0].reads[0].tensor == "a.weight (self: float32[4, 4])"


# Collectives:


def collectives(call: Callable[[], object]) -> list[Launch]:
    with recording() as trace:
        call()
    return [launch for launch in launches(trace) if launch.name.startswith("c10d")]


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("call", "reads", "writes"),
    [
        (lambda: dist.all_reduce(X), 1, 1),
        (lambda: dist.broadcast(X, 0), 1, 0),
        (lambda: dist.broadcast(X, 1), 0, 1),
        (lambda: dist.reduce(X, 0), 1, 1),
        (lambda: dist.reduce(X, 1), 1, 0),
        (lambda: dist.all_gather_into_tensor(torch.empty(8, 4), X), 1, 1),
        (lambda: dist.reduce_scatter_tensor(torch.empty(2, 4), X), 1, 1),
        (lambda: dist.all_gather([Y, torch.empty(4, 4)], X), 1, 2),
        (lambda: dist.send(X, 1), 1, 0),
        (lambda: dist.recv(X, 1), 0, 1),
        (lambda: functional.wait_tensor(functional.all_reduce(X, "sum", dist.group.WORLD)), 1, 1),
    ],
)
def test_collectives_access_what_their_arguments_are_named_for(
    call: Callable[[], object], reads: int, writes: int
) -> None:
    (launch,) = collectives(call)
    assert (len(launch.reads), len(launch.writes)) == (reads, writes)


@pytest.mark.usefixtures("two_ranks")
def test_a_barrier_accesses_nothing() -> None:
    assert collectives(dist.barrier) == []


@pytest.mark.usefixtures("two_ranks")
def test_an_asynchronous_collective_has_a_stream_of_its_own() -> None:
    (now,) = collectives(lambda: dist.all_reduce(X))
    (later,) = collectives(lambda: dist.all_reduce(X, async_op=True).wait())
    assert (now.stream, now.kept) == (0, False)
    assert (later.stream, later.kept) == (1, True)


@pytest.mark.usefixtures("two_ranks")
def test_a_functional_collective_is_over_where_its_result_is_used() -> None:
    with recording() as trace:
        functional.all_reduce(X, "sum", dist.group.WORLD) + 1
    assert races(trace) == []
    unwaited = [event for event in trace if not (isinstance(event, Wait) and event.stream == 0)]
    assert len(races(unwaited)) == 1


# Memory of the host:


class Offloading(SimulatedDevice):
    """Tensors of float64 are on the host, and pinned."""

    def place(self, tensor: torch.Tensor) -> int:
        return 0 if tensor.dtype == torch.float64 else super().place(tensor)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return True


def offloaded(synchronize: bool, *, blocks: bool = False) -> list[Event]:
    device = Offloading()
    pinned = torch.zeros(4, dtype=torch.float64)
    with recording(device) as trace:
        pinned.copy_(torch.ones(4), non_blocking=not blocks)
        if synchronize:
            device.note(Synchronize(stream=0))
        pinned.add_(1)
    return trace


def test_the_host_must_wait_for_copies_that_do_not_block() -> None:
    (race,) = races(offloaded(synchronize=False))
    assert (race.earlier.stream, race.later.stream) == (0, HOST)
    assert races(offloaded(synchronize=True)) == []
    assert races(offloaded(synchronize=False, blocks=True)) == []


def test_a_tensor_of_the_host_is_known_by_its_storage() -> None:
    """Another one at the same address is another one."""
    device = Offloading()
    with recording(device) as trace:
        for _ in range(3):
            pinned = torch.zeros(4, dtype=torch.float64)
            pinned.copy_(torch.ones(4), non_blocking=True)
            del pinned
        torch.zeros(4, dtype=torch.float64).add_(1)
    assert races(trace) == []


# The instrument:


@pytest.mark.usefixtures("one_rank")
def test_the_instrument_proves_itself() -> None:
    assert proof.misread(torch.device("cpu")) == ""


def blind(recorder: Recorder, *args: Any) -> None:
    """See no operators."""


def no_waits(note: Callable[..., None]) -> Callable[..., None]:
    def but_waits(recorder: Recorder, event: Event) -> None:
        if not isinstance(event, Wait):
            note(recorder, event)

    return but_waits


def every_record(note: Callable[..., None]) -> Callable[..., None]:
    def and_more(recorder: Recorder, event: Event) -> None:
        note(recorder, event)
        if isinstance(event, Record):
            note(recorder, Synchronize())

    return and_more


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("_called", blind, "does not see two streams that do not wait"),
        ("note", no_waits(Recorder.note), "sees a race in two streams that wait"),
        ("note", every_record(Recorder.note), "does not see an asynchronous collective"),
        ("_collective", Recorder._open, "does not see an asynchronous collective"),
    ],
)
def test_an_instrument_that_reads_wrong_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any], says: str
) -> None:
    monkeypatch.setattr(Recorder, name, wrong)
    assert says in proof.misread(torch.device("cpu"))


def test_streams_of_one_number_are_equal() -> None:
    device = SimulatedDevice()
    assert Stream(device, 1) == Stream(device, 1) != Stream(device, 2)
