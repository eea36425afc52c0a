"""Which collectives a rank has joined, from torch's flight recorder.

It sees every collective of a backend, also those that DDP's reducer and functional collectives
start in C++, in a ring of the last ``TORCH_FR_BUFFER_SIZE`` (set for every rank,
:mod:`fuzzshard.world.processes`). The recorder of NCCL and that of the other backends are two
(``torch/csrc/distributed/c10d/init.cpp``).
"""

from __future__ import annotations

import json
from typing import Any

import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from fuzzshard.contracts import NCCL_RECORDS_LIKE_OTHERS
from fuzzshard.training import collectives
from fuzzshard.world.messages import Joined, Position

LATEST = 64
"""Collectives that a rank tells of: more than any op of a schedule has outstanding."""


def position() -> Position:
    """Return where this rank is; for another thread than the one that trains, which may be waiting
    for ever.
    """
    text = dump()
    entries = json.loads(text).get("entries", []) if text else []
    ranks = _ranks_by_name()
    joined = tuple(_joined(entry, ranks) for entry in entries[-LATEST:] if not entry["is_p2p"])
    return Position(op=collectives.current_op(), joined=joined, recording=text)


def dump() -> str:
    """Return the recording of this process as JSON, of NCCL if it is there; empty where this
    version has none for the backend.
    """
    if "nccl" not in dist.get_backend():
        return _read("_dump_fr_trace_json")
    if NCCL_RECORDS_LIKE_OTHERS.holds():
        return _read("_dump_fr_trace_json", backend="nccl2")
    return _read("_dump_nccl_trace_json")


def _read(recorder: str, **options: str) -> str:
    write = getattr(c10d, recorder, None)
    return "" if write is None else write(**options).decode()  # bytes, though of JSON


def _joined(entry: dict[str, Any], ranks: dict[str, tuple[int, ...]]) -> Joined:
    name, _ = entry["process_group"]
    return Joined(
        ranks=ranks.get(name, ()),
        number=entry["collective_seq_id"],
        kind=entry["profiling_name"].partition(":")[2].strip("_").removesuffix("_base"),
        sizes=f"{entry['input_sizes']} -> {entry['output_sizes']}",
        done=entry["retired"] or entry["state"] == "completed",
    )


def _ranks_by_name() -> dict[str, tuple[int, ...]]:
    """Return the global ranks of every process group of this rank."""
    world = dist.distributed_c10d._world
    return {
        name: tuple(sorted(world.pg_group_ranks[group])) for group, name in world.pg_names.items()
    }
