"""Trains each case in fresh processes, as torch's own multi-process tests do; used by
throughput.py.

Reads a JSON array of cases on stdin and prints the seconds that each took as a JSON array. Every
case gets new processes by the spawn method, which import torch and join a process group before
they train.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.engines.mesh import install_group_cache, prepare_groups, rank_mesh
from fuzzshard.world.experiment import Experiment


def train(rank: int, encoded: bytes, store: str, world_size: int, device_type: str) -> None:
    """One rank: join, train the reference and every engine, leave."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device_type == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
    )
    install_group_cache()
    case = codec.decode(encoded)
    prepare_groups(case)
    if rank < case.mesh.size:
        Experiment(case, rank_mesh(case, device), lambda engine: None).run_bare()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--world-size", type=int, default=2, help="processes for each case")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where ranks run")
    args = parser.parse_args()
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(
            msgspec.json.decode(sys.stdin.buffer.read(), type=list[Case])
        ):
            began = time.perf_counter()
            store = str(Path(folder) / f"store{number}")
            mp.spawn(  # type: ignore[attr-defined,no-untyped-call]
                train,
                args=(codec.encode(case), store, args.world_size, args.device),
                nprocs=args.world_size,
            )
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
