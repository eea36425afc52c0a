"""What CUDA calls back is recorded, with the functions of torch that need a driver put aside."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.cuda._gpu_trace as gpu_trace
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from fuzzshard.instruments.streams import cuda
from fuzzshard.instruments.streams.clocks import races
from fuzzshard.instruments.streams.cuda import CudaDevice
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
    """Tensors of the CPU stand for those of a device; torch's callbacks are called by hand."""

    key = torch._C.DispatchKey.CPU

    def __init__(self) -> None:
        super().__init__(torch.device("cuda", 0))
        self.stream = MAIN
        self.history: list[dict[str, Any]] = []
        self.mark_now = ""

    def current_stream(self) -> int:
        return self.stream

    def place(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr()

    def wait_stream(self, stream: int, other: int) -> None:
        gpu_trace.EventRecordCallbacks.fire_callbacks(5, other)
        gpu_trace.EventWaitCallbacks.fire_callbacks(5, stream)

    def entry(self, action: str, begin: int) -> None:
        told = {"addr": begin, "size": 512, "stream": MAIN, "user_metadata": self.mark_now}
        self.history.append({"action": action, **told})

    def malloc(self, begin: int, completed: int = 0) -> None:
        if completed:
            self.entry("free_completed", completed)
        self.entry("alloc", begin)
        gpu_trace.MemoryAllocationCallbacks.fire_callbacks(begin)

    def free(self, begin: int, held: bool) -> None:
        gpu_trace.MemoryDeallocationCallbacks.fire_callbacks(begin)
        self.entry("free_requested", begin)
        if not held:
            self.entry("free_completed", begin)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()

    def set_mark(text: str) -> None:
        made.mark_now = text

    def snapshot() -> dict[str, Any]:
        return {"device_traces": [made.history]}

    monkeypatch.setattr(torch._C, "_cuda_setMemoryMetadata", set_mark, raising=False)
    monkeypatch.setattr(torch._C, "_activate_gpu_trace", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    yield made
    assert cuda._active == []


def test_what_orders_streams_is_recorded(driver: Driver) -> None:
    with driver.recording() as recorder:
        driver.wait_stream(SIDE, MAIN)
        gpu_trace.EventSynchronizationCallbacks.fire_callbacks(5)
        gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(SIDE)
        gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    assert recorder.trace() == [
        Record(5, MAIN),
        Wait(5, 1),
        Synchronize(event=5),
        Synchronize(stream=1),
        Synchronize(),
    ]
    gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    assert len(recorder.trace()) == 5  # nobody listens any more


def test_blocks_are_known_by_their_history(driver: Driver) -> None:
    with driver.recording() as recorder:
        driver.malloc(BLOCK)
        driver.free(BLOCK, held=False)
        driver.malloc(BLOCK)
    allocated, freed, again = recorder.trace()
    assert isinstance(allocated, Allocate)
    assert (allocated.size, allocated.stream, again.begin) == (512, MAIN, BLOCK)
    assert isinstance(freed, Free)
    assert freed.held  # the next allocation came under the same mark


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


def test_a_block_that_an_operator_needs_for_itself_is_written_to(driver: Driver) -> None:
    tensor = torch.ones(2)

    class Needing:
        """An operator that allocates and frees a block."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.ops.aten.add.Tensor, name)

        def __str__(self) -> str:
            return "needing"

        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            driver.malloc(BLOCK)
            driver.free(BLOCK, held=False)
            return tensor

    with driver.recording() as recorder:
        recorder._kernel(Needing(), (tensor, tensor), {})
    allocated, written, freed = recorder.trace()
    assert (type(allocated), type(freed)) == (Allocate, Free)
    assert isinstance(written, Launch)
    assert [(t.begin, t.end) for t in written.writes] == [(BLOCK, BLOCK + 1)]


def test_streams_that_do_not_wait_race(driver: Driver) -> None:
    def used(waits: bool) -> list[Event]:
        tensor = torch.ones(4)
        with driver.recording() as recorder:
            tensor.add_(1)
            if waits:
                driver.wait_stream(SIDE, MAIN)
            driver.stream = SIDE
            tensor.add_(1)
            driver.stream = MAIN
        driver.history.clear()
        return recorder.trace()

    assert races(used(waits=True)) == []
    assert races(used(waits=False))


def test_the_host_of_somebody_else_orders_nothing(driver: Driver) -> None:
    with driver.recording() as recorder, recorder.paused():
        gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
        driver.wait_stream(SIDE, MAIN)
    assert recorder.trace() == [Record(5, MAIN), Wait(5, 1)]


def test_garbage_is_not_collected_meanwhile(driver: Driver) -> None:
    with driver.recording():
        assert not gc.isenabled()
    assert gc.isenabled()


class Skipping(Driver):
    """Its collectives run on a stream of their own, and nobody says that another waits for it."""

    def before_collective(self, group: dist.ProcessGroup, is_async: bool) -> None:
        super().before_collective(group, is_async)
        self.wait_stream(SIDE, MAIN)


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    monkeypatch.setattr(cuda, "_SKIPS_WAITS", dist.ProcessGroupGloo)
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
        (lambda tensor: functional.wait_tensor(_functionally(tensor)), False),
        (_in_cpp, False),
    ],
)
def test_waits_that_nccl_skips_count(
    driver: Driver, use: Callable[[torch.Tensor], object], raced: bool
) -> None:
    driver.__class__ = Skipping
    tensor = torch.ones(4)
    with driver.recording() as recorder:
        kept = use(tensor)
        tensor.add_(1)
    del kept
    assert bool(races(recorder.trace())) is raced
