"""The import block of a script: what its text names, sorted as ruff sorts."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fuzzshard.parts.engines import ENGINES
from fuzzshard.program.engine_script import engine_script

_STANDARD = (
    *(
        "import collections",
        "import contextlib",
        "import copy",
        "import dataclasses",
        "import functools",
        "import gc",
        "import importlib",
        "import os",
        "import re",
        "import sys",
        "import tempfile",
        "import time",
    ),
    *("import warnings", "import weakref", "from datetime import timedelta"),
)

_TORCH = (
    "import torch",
    "import torch.distributed as dist",
    "import torch.distributed.checkpoint as dcp",
    "from torch import nn",
    "from torch.distributed._composable.checkpoint_activation import checkpoint",
    "from torch.distributed._composable.replicate import replicate",
    "from torch.distributed.algorithms._comm_hooks import default_hooks",
    "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper",
    "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook",
    "from torch.distributed.device_mesh import init_device_mesh",
    "from torch.nn.parallel import DistributedDataParallel",
    "from torch.utils.checkpoint import checkpoint as checkpointed",
)

_SEVERAL = {
    "torch.distributed.checkpoint.state_dict": (
        *("StateDictOptions", "get_model_state_dict", "get_optimizer_state_dict"),
        *("set_model_state_dict", "set_optimizer_state_dict"),
    ),
    "torch.distributed.tensor": ("DTensor", "Replicate", "Shard", "distribute_tensor"),
    "torch.optim.swa_utils": ("AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn"),
    "torch.utils._pytree": ("tree_leaves", "tree_map_only"),
    "torch.distributed.tensor.parallel": (
        *("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "parallelize_module"),
    ),
}
"""Modules of which a script may import several names."""


def import_block(body: str) -> str:
    """The imports for ``body``, which names everything as the tables here import it."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    return "\n".join([*_used_lines(_STANDARD, used), "", *sorted(_torch_lines(used), key=_order)])


def every_import() -> str:
    """Imports of all modules of torch that statements may name, as far as there are such."""
    modules = [*_SEVERAL, *(m for engine in ENGINES for m in engine_script(engine).imports)]
    lines = [*_TORCH, "from contextlib import suppress"]
    lines += [f"with suppress(ModuleNotFoundError):\n    import {m}" for m in modules]
    return "\n".join(lines)


def _used_lines(lines: Iterable[str], used: set[str]) -> list[str]:
    """Those of ``lines`` that import something used: the last word of each is the name it
    binds.
    """
    return [line for line in lines if line.rpartition(" ")[2] in used]


def _torch_lines(used: set[str]) -> Iterator[str]:
    yield from _used_lines(_TORCH, used)
    several = {module: set(names) for module, names in _SEVERAL.items()}
    for module, names in (item for e in ENGINES for item in engine_script(e).imports.items()):
        several.setdefault(module, set()).update(names)
    for module, bound in several.items():
        if found := sorted(used & bound):
            line = f"from {module} import {', '.join(found)}"
            if len(line) <= 110:
                yield line
            else:
                yield "\n".join(
                    [f"from {module} import (", *(f"    {name}," for name in found), ")"]
                )


def _order(line: str) -> tuple[bool, str]:
    """Imports of modules first, then by module."""
    words = line.split()
    return words[0] == "from", words[1]
