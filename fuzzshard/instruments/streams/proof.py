"""Proves on the device at hand that orders, and missing ones, are seen."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from fuzzshard.instruments.streams.clocks import races
from fuzzshard.instruments.streams.cuda import CudaDevice
from fuzzshard.instruments.streams.recorder import Recorder
from fuzzshard.instruments.streams.simulated import SimulatedDevice

_SIZE = 1 << 14
"""Elements of a tensor: blocks of another size than others have."""


class _Bench:
    """Tensors on a device, and its streams by the names that ``torch.cuda`` has for them."""

    def __init__(self, device: torch.device, streams: Any) -> None:
        self.device, self.streams = device, streams
        self.side = streams.Stream()

    def made(self) -> torch.Tensor:
        return torch.ones(_SIZE, device=self.device)

    def freed_while_read(self, told: Callable[[torch.Tensor], None] = lambda tensor: None) -> bool:
        """Free a tensor that another stream reads, and write to what is allocated next; return
        whether that is the same memory.
        """
        old = self.made()
        self.side.wait_stream(self.streams.current_stream())
        with self.streams.stream(self.side):
            old.add(1)
        told(old)
        address = old.data_ptr()
        del old
        if self.device.type == "cuda":  # a held block is handed out once its stream is done
            time.sleep(0.05)
        return self.made().data_ptr() == address or self.device.type == "cpu"


def _unordered(bench: _Bench) -> bool:
    tensor = bench.made()
    with bench.streams.stream(bench.side):
        tensor.add_(1)
    tensor.add_(1)
    return True


def _ordered(bench: _Bench) -> bool:
    tensor = bench.made()
    bench.side.wait_stream(bench.streams.current_stream())
    with bench.streams.stream(bench.side):
        tensor.add_(1)
    bench.streams.current_stream().wait_stream(bench.side)
    tensor.add_(1)
    return True


def _unordered_in_backward(bench: _Bench) -> bool:
    weight = bench.made().requires_grad_()
    result = (weight * weight).sum()
    bench.side.wait_stream(bench.streams.current_stream())
    with bench.streams.stream(bench.side):
        weight.data.add_(1)  # backward reads it
    result.backward()  # type: ignore[no-untyped-call]
    return True


def _ordered_by_autograd(bench: _Bench) -> bool:
    weight = bench.made().requires_grad_()
    bench.side.wait_stream(bench.streams.current_stream())
    if bench.device.type == "cuda":  # which has streams of its own
        with bench.streams.stream(bench.side):
            result = (weight * weight).sum()
        result.backward()  # type: ignore[no-untyped-call]
        weight.data.add_(1)
    return True


def _copied(bench: _Bench, later: bool = False) -> bool:
    if bench.device.type == "cuda":
        tensor, copy = bench.made(), torch.empty(_SIZE, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        if not later:
            tensor.sum().item()
        copy.add_(1)
    return bench.device.type == "cuda"


def _recorded(bench: _Bench) -> bool:
    if bench.device.type == "cuda":
        return bench.freed_while_read(lambda tensor: tensor.record_stream(bench.side))
    return True


def _unfinished(bench: _Bench) -> bool:
    tensor = bench.made()
    work = dist.all_reduce(tensor, async_op=True)
    tensor.add_(1)
    work.wait()
    return True


def _finished(bench: _Bench) -> bool:
    tensor = bench.made()
    dist.all_reduce(tensor, async_op=True).wait()
    tensor.add_(1)
    dist.all_reduce(tensor)
    tensor.add_(1)
    return True


def _ended(bench: _Bench) -> bool:
    tensor = bench.made()
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        time.sleep(1e-4)
    work.wait()
    tensor.add_(1)
    group: Any = dist.group.WORLD
    functional.all_reduce(tensor, "sum", group).add_(1)
    return True


_CASES: tuple[tuple[Callable[[_Bench], bool], bool, str], ...] = (
    (_unordered, True, "two streams that do not wait"),
    (_ordered, False, "two streams that wait"),
    (_unordered_in_backward, True, "a backward that another stream does not wait for"),
    (_ordered_by_autograd, False, "a backward on another stream"),
    (functools.partial(_copied, later=True), True, "a copy that the host does not wait for"),
    (_copied, False, "a number that the host waits for"),
    (_Bench.freed_while_read, True, "memory that is handed out while another stream reads it"),
    (_recorded, False, "memory that record_stream keeps"),
    (_unfinished, True, "an asynchronous collective that is not waited for"),
    (_finished, False, "collectives that are waited for"),
    (_ended, False, "collectives that have ended when they are waited for"),
)
"""What runs, returning whether it could show anything; whether it is a race; and what it is."""


def misread(device: torch.device) -> str:
    """Return what is not seen, or seen where nothing is; empty if all is right. A collective call
    of all ranks.
    """
    wrong = ""
    for run, is_race, what in _CASES:
        try:
            with _recording(device) as (recorder, streams):
                could = run(_Bench(device, streams))
            found = bool(races(recorder.trace()))
        except Exception as error:
            return wrong or f"raised {type(error).__name__}: {error}"
        if could and found is not is_race:
            wrong = wrong or f"{'does not see' if is_race else 'sees a race in'} {what}"
    return wrong


@contextlib.contextmanager
def _recording(device: torch.device) -> Iterator[tuple[Recorder, Any]]:
    if device.type == "cuda":
        with CudaDevice(device).recording() as recorder:
            yield recorder, torch.cuda
        return
    simulated = SimulatedDevice()
    with simulated.recording() as recorder:
        yield recorder, simulated.handle
