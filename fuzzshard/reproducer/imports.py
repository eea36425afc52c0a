"""The import block of a script: what is used, sorted as ruff sorts."""

from __future__ import annotations

from collections.abc import Set

from fuzzshard.case.case import Case
from fuzzshard.reproducer.aim import Aim

_IMPORTS = {
    "os": "import os",
    "timedelta": "from datetime import timedelta",
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
    "nn": "from torch import nn",
    "checkpoint": "from torch.distributed._composable.checkpoint_activation import checkpoint",
    "checkpoint_wrapper": (
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper"
    ),
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "fsdp": "from torch.distributed.fsdp import {}",
    "DTensor": "from torch.distributed.tensor import DTensor",
    "ddp": "from torch.nn.parallel import DistributedDataParallel",
}


def import_block(case: Case, aim: Aim, uses: Set[str]) -> str:
    """The imports for a script on ``case``; ``uses`` are the helpers and classes that its body names."""
    names = {"os", "torch", "dist", "nn"}
    names |= {"timedelta"} if aim.kind == "desync" else set()
    for checkpoint in case.checkpoints:
        names.add("checkpoint_wrapper" if checkpoint.implementation == "wrapper" else "checkpoint")
    fsdp = {"FSDPModule"} & uses
    if aim.engine == "ddp":
        names.add("ddp")
    else:
        if case.wrap:
            names.add("init_device_mesh")
            fsdp |= {"fully_shard"}
        if uses & {"snapshot", "describe", "parameter_groups", "DTensor"}:
            names.add("DTensor")
    names |= {"fsdp"} if fsdp else set()
    lines = [line.format(", ".join(sorted(fsdp))) for key, line in _IMPORTS.items() if key in names]
    first = lines.index(_IMPORTS["torch"])
    return "\n".join([*lines[:first], "", *lines[first:]])
