"""Whether the streams of a tiny model can be watched on this machine, and what that costs.

python benchmarks/races_probe.py --keep FILE [--ranks 2] [--device cpu]

Needs no world: a process for each rank trains a model of a few layers in several ways, and prints
what the proof of the instrument reads, how many events of each kind there are, races on the torch
at hand (none are expected) with the communicator's own order and without, and how many times as
long a step takes. --keep gets the traces of rank 0 as JSON; with --read these are searched again,
on any machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)

from fuzzshard.instruments.streams import events, proof
from fuzzshard.instruments.streams.clocks import races
from fuzzshard.instruments.streams.cuda import CudaDevice
from fuzzshard.instruments.streams.simulated import SimulatedDevice

STEPS = 3
Traces = dict[str, list[events.Event]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--keep", type=Path, help="file that gets the traces")
    parser.add_argument("--read", type=Path, help="search the traces of such a file, and stop")
    parser.add_argument("--only", default="", help="ways, separated by commas")
    args = parser.parse_args()
    if args.read:
        for name, trace in msgspec.json.decode(args.read.read_bytes(), type=Traces).items():
            print(name, describe(trace))
        return 0
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    mp.spawn(rank_main, args=(args, port), nprocs=args.ranks)
    return 0


def rank_main(rank: int, args: Any, port: int) -> None:
    """Run every way on one rank; rank 0 prints."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    device = torch.device(args.device, rank if args.device == "cuda" else 0)
    if args.device == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", rank=rank, world_size=args.ranks, device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    say = print if rank == 0 else lambda *_, **__: None
    say(f"torch {torch.__version__}, {device}, {args.ranks} ranks")
    say(f"proof: {proof.misread(device) or 'right'}", flush=True)
    only = set(filter(None, args.only.split(",")))
    traces: Traces = {}
    for name, make in WAYS.items():
        if not only or name in only:
            try:
                traces[name] = run_way(name, make, device, args, say)
                if rank == 0 and args.keep:  # at once, in case a later way hangs
                    args.keep.write_bytes(msgspec.json.encode(traces))
            except Exception:
                say(f"{name}: raised\n{traceback.format_exc(limit=-6)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if args.device == "cuda":
        sys.stdout.flush()
        os._exit(0)  # NCCL may wait for ranks that have raised


def run_way(
    name: str, make: Callable[..., Any], device: Any, args: Any, say: Any
) -> list[events.Event]:
    """Train plainly, then watched, then plainly again; return what was recorded."""
    seconds: dict[str, float] = {}
    trace: list[events.Event] = []
    for how in ("warm", "plain", "watched", "after"):
        torch.manual_seed(0)
        with watched(device, how == "watched") as recorder:
            step = make(device, args.ranks)
            step()
            synchronize(device)
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            synchronize(device)
            seconds[how] = time.perf_counter() - began
        if recorder is not None:
            trace = recorder.trace()
    factor = seconds["watched"] / seconds["plain"]
    after = seconds["after"] / seconds["plain"]
    say(
        f"{name}: {describe(trace)}; {factor:.1f} times as long, {after:.2f} afterwards",
        flush=True,
    )
    return trace


@contextlib.contextmanager
def watched(device: Any, on: bool) -> Any:
    """The recorder of a device, or None."""
    if not on:
        yield None
    elif device.type == "cuda":
        with CudaDevice(device).recording() as recorder:
            yield recorder
    else:
        with SimulatedDevice().recording() as recorder:
            yield recorder


def synchronize(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe(trace: list[events.Event]) -> str:
    """Say what a trace has, and its races."""
    kinds = Counter(type(event).__name__ for event in trace)
    streams = {event.stream for event in trace if isinstance(event, events.Launch)}
    began = time.process_time()
    found = races(trace)
    seconds = time.process_time() - began
    text = [
        f"{len(trace)} events ({', '.join(f'{n} {k}' for k, n in sorted(kinds.items()))}) on "
        f"{len(streams)} streams, {len(trace) / max(seconds, 1e-6):.0f} events/s, "
        f"{sum(getattr(e, 'held', False) for e in trace)} held, "
        f"{sum(getattr(e, 'kept', False) for e in trace)} kept",
        f"{len(found)} races, {len(races(trace, ordered_communicators=False))} without the order "
        "of communicators",
    ]
    seen = set()
    for race in found:
        sides = [
            f"{type(a.event).__name__ if not hasattr(a.event, 'name') else a.event.name} "
            f"{'writes' if a.write else 'reads'} {a.touch.tensor} on {a.stream} ({a.event.where})"
            for a in (race.earlier, race.later)
        ]
        if len(seen) < 12 and tuple(sides) not in seen:
            seen.add(tuple(sides))
            text.append(f"\n   {' || '.join(sides)}{' REUSED' * race.reused}")
    return "; ".join(text)


# Ways to train: functions that return a step.


def layers(device: Any, number: int = 3) -> Any:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(number))).to(
        device
    )


def sharded(
    device: Any, ranks: int, *, hybrid: bool = False, half: bool = False, **more: Any
) -> Callable[[], None]:
    """``fully_shard`` on each layer and on the root."""
    sizes, names = ((ranks, 1), ("replicate", "shard")) if hybrid else ((ranks,), ("shard",))
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    options: dict[str, Any] = {"mesh": mesh}
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if more.get("offload"):
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    model = layers(device)
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if more.get("unshard_async"):
        for module in model.modules():
            if hasattr(module, "_set_unshard_async_op"):
                module._set_unshard_async_op(True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not more.get("offload"))
    inputs = torch.randn(8, 64, device=device)

    def step() -> None:
        for index in range(2 if more.get("accumulate") else 1):
            if more.get("accumulate"):
                model.set_requires_all_reduce(index == 1)
                model.set_is_last_backward(index == 1)
            model(inputs).sum().backward()
        if more.get("clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()

    return step


def replicated(device: Any, ranks: int) -> Callable[[], None]:
    """DistributedDataParallel with small buckets."""
    ids = [device.index] if device.type == "cuda" else None
    model = torch.nn.parallel.DistributedDataParallel(
        layers(device), device_ids=ids, bucket_cap_mb=1e-3
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(8, 64, device=device)

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def first_generation(device: Any, ranks: int) -> Callable[[], None]:
    """FullyShardedDataParallel."""
    model = layers(device)
    for index, layer in enumerate(model):
        model[index] = FullyShardedDataParallel(layer, device_id=device)
    model = FullyShardedDataParallel(model, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(8, 64, device=device)

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def way(**options: Any) -> Callable[[Any, int], Callable[[], None]]:
    return lambda device, ranks: sharded(device, ranks, **options)


WAYS: dict[str, Callable[[Any, int], Callable[[], None]]] = {
    "fully_shard": way(),
    "bfloat16": way(half=True),
    "accumulate": way(accumulate=True),
    "hybrid": way(hybrid=True, half=True, accumulate=True),
    "unshard_async": way(unshard_async=True),
    "clip": way(clip=True),
    "offload": way(offload=True),
    "ddp": replicated,
    "fsdp1": first_generation,
}


if __name__ == "__main__":
    sys.exit(main())
