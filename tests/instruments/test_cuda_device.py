"""What orders CUDA's streams is recorded, with a driver that exists in Python only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from fuzzshard.instruments.streams.clocks import races
from fuzzshard.instruments.streams.cuda import CudaDevice, _waits
from fuzzshard.instruments.streams.events import (
    Allocate,
    Event,
    Free,
    Launch,
    Record,
    Synchronize,
    Wait,
)

BLOCK, MAIN, SIDE = 1 << 20, 0, 77


class Driver(CudaDevice):
    """Tensors of the CPU stand for those of a device, whose allocator is called by hand."""

    key = torch._C.DispatchKey.CPU

    def __init__(self) -> None:
        super().__init__(torch.device("cuda", 0))
        self.stream = MAIN
        self.history: list[dict[str, Any]] = []
        self.mark_now = ""

    def place(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr()

    def communicator(self, group: dist.ProcessGroup) -> str:
        return group.group_name

    def entry(self, action: str, begin: int) -> None:
        told = {"addr": begin, "size": 512, "stream": MAIN, "user_metadata": self.mark_now}
        self.history.append({"action": action, **told})

    def malloc(self, begin: int, completed: int = 0) -> None:
        if completed:
            self.entry("free_completed", completed)
        self.entry("alloc", begin)

    def free(self, begin: int, held: bool) -> None:
        self.entry("free_requested", begin)
        if not held:
            self.entry("free_completed", begin)


class FakeEvent:
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...


class FakeStream:
    def __init__(self, number: int) -> None:
        self.cuda_stream = number

    def wait_event(self, event: FakeEvent) -> None:
        if isinstance(event, FakeEvent):
            event.wait(self)

    def wait_stream(self, stream: FakeStream) -> None:
        event = FakeEvent()
        event.record(stream)
        self.wait_event(event)

    def synchronize(self) -> None: ...


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()

    def set_mark(text: str) -> None:
        made.mark_now = text

    def choose(*, stream_id: int) -> None:
        made.stream = stream_id

    functions = {
        "_cuda_setMemoryMetadata": set_mark,
        "_cuda_getCurrentRawStream": lambda index: made.stream,
        "_cuda_setStream": choose,
        "_cuda_synchronize": lambda: None,
        "_accelerator_setStream": lambda stream: None,
        "_accelerator_synchronizeDevice": lambda index: None,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device=None: torch._C._cuda_synchronize()
    )
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [made.history]})
    yield made
    assert made.recorder is None


def test_what_orders_streams_is_recorded(driver: Driver) -> None:
    side, event = FakeStream(SIDE), FakeEvent()
    with driver.recording() as recorder:
        event.record()
        side.wait_event(event)
        event.wait(stream=None)
        event.synchronize()
        side.synchronize()
        torch.cuda.synchronize()
    number = id(event)
    assert recorder.trace() == [
        Record(number, MAIN),
        Wait(number, 1),
        Wait(number, MAIN),
        Synchronize(event=number),
        Synchronize(stream=1),
        Synchronize(),
    ]
    event.record()
    assert len(recorder.trace()) == 6  # nobody listens any more


def test_whoever_waits_for_an_event_that_tells_nothing_waits_for_all(driver: Driver) -> None:
    with driver.recording() as recorder:
        FakeEvent().record(FakeStream(SIDE))
        FakeStream(88).wait_event(object())  # type: ignore[arg-type]
    _, *events = recorder.trace()
    recorded = {event.stream for event in events if isinstance(event, Record)}
    assert recorded == {MAIN, 1}
    assert {event.stream for event in events if isinstance(event, Wait)} == {2}


def test_a_block_that_is_handed_out_twice_under_one_mark_is_held(driver: Driver) -> None:
    with driver.recording() as recorder:
        driver.malloc(BLOCK)
        driver.free(BLOCK, held=False)
        driver.malloc(BLOCK)
    allocated, freed, again = recorder.trace()
    assert isinstance(allocated, Allocate)
    assert (allocated.size, allocated.stream, again.begin) == (512, MAIN, BLOCK)
    assert isinstance(freed, Free)
    assert freed.held


@pytest.mark.parametrize("held", [True, False])
def test_a_held_block_is_told_from_one_that_is_free_at_once(driver: Driver, held: bool) -> None:
    other = torch.ones(2)
    with driver.recording() as recorder:
        driver.malloc(BLOCK)
        driver.free(BLOCK, held=held)
        other + 1  # another mark
        driver.malloc(BLOCK, completed=BLOCK if held else 0)
    (freed,) = (event for event in recorder.trace() if isinstance(event, Free))
    assert freed.held is held


def test_streams_that_do_not_wait_race(driver: Driver) -> None:
    def used(waits: bool, chosen: bool = True) -> list[Event]:
        tensor = torch.ones(4)
        with driver.recording() as recorder:
            tensor.add_(1)
            if waits:
                FakeStream(SIDE).wait_stream(FakeStream(MAIN))
            if chosen:
                torch._C._cuda_setStream(stream_id=SIDE)
            driver.stream = SIDE
            tensor.add_(1)
            driver.stream = MAIN
        return recorder.trace()

    assert races(used(waits=True)) == []
    assert races(used(waits=False))
    assert races(used(waits=False, chosen=False)) == []  # autograd has let it wait


def test_the_host_of_somebody_else_orders_nothing(driver: Driver) -> None:
    event = FakeEvent()
    with driver.recording() as recorder, recorder.paused():
        torch.cuda.synchronize()
        event.record()
    assert recorder.trace() == [Record(id(event), MAIN)]


def test_the_host_waits_for_what_depends_on_data() -> None:
    aten, tensor = torch.ops.aten, torch.ones(2)
    assert _waits(aten._local_scalar_dense.default, (tensor,), {}, 1.0)
    assert _waits(aten.index.Tensor, (tensor, [tensor > 0]), {}, tensor)
    assert not _waits(aten.index.Tensor, (tensor, [tensor.long()]), {}, tensor)
    assert not _waits(aten.copy_.default, (tensor, tensor), {}, tensor)


def test_an_exception_that_is_on_its_way_is_not_lost(driver: Driver) -> None:
    """Torch cannot call anything of ours while memory is freed."""
    with pytest.raises(KeyError, match="own"), driver.recording():
        raise KeyError("own")


@pytest.fixture
def gloo() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def _reduced(tensor: torch.Tensor) -> dist.Work:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work


def _functionally(tensor: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce_inplace(tensor, "sum", dist.group.WORLD)


def _in_cpp(tensor: torch.Tensor) -> None:
    dist._broadcast_coalesced(dist.group.WORLD, [tensor], 1 << 20, 0)


@pytest.mark.usefixtures("gloo")
@pytest.mark.parametrize(
    ("use", "raced"),
    [
        (lambda tensor: _reduced(tensor), True),
        (lambda tensor: _reduced(torch.ones(4)).wait(), False),
        (lambda tensor: _reduced(tensor).wait(), False),
        (lambda tensor: _reduced(tensor).get_future(), False),
        (lambda tensor: dist.all_reduce(tensor), False),
        (lambda tensor: functional.wait_tensor(_functionally(tensor)), False),
        (_in_cpp, False),
    ],
)
def test_asynchronous_collectives_are_waited_for(
    driver: Driver, use: Callable[[torch.Tensor], object], raced: bool
) -> None:
    tensor = torch.ones(4)
    with driver.recording() as recorder:
        kept = use(tensor)
        tensor.add_(1)
    del kept
    trace = recorder.trace()
    assert any(isinstance(event, Launch) and event.communicator for event in trace)
    assert bool(races(trace)) is raced
