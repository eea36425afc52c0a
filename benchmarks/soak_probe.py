"""What only a rank can say of itself, written to a pipe on SIGUSR2; preloaded by ``soak.py``."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PIPES = "FUZZSHARD_SOAK_PIPES"
"""The environment variable that names the folder of the pipes, one for each rank."""


def apply() -> None:
    """Called once the rank has joined its world."""
    pipe = Path(os.environ[PIPES]) / f"rank{dist.get_rank()}"

    def tell(*_: Any) -> None:
        with pipe.open("w") as file:
            json.dump(count(), file)

    signal.signal(signal.SIGUSR2, tell)


def count() -> dict[str, int]:
    """Numbers of what must not become more with every case; garbage is collected first.

    A rank freezes what is alive between two cases, which ``gc.get_objects`` leaves out.
    """
    gc.collect()
    gc.unfreeze()
    objects = gc.get_objects()
    gc.freeze()
    return {
        "objects": len(objects),
        "tensors": sum(issubclass(type(o), torch.Tensor) for o in objects),
        "groups": len(dist.distributed_c10d._world.pg_map),
        "modules": len(sys.modules),
    }
