"""The import block of a script: what its text names, sorted as ruff sorts."""

from __future__ import annotations

import ast
import functools
from collections.abc import Set

from fuzzshard.program.helpers import sources

_IMPORTS = """
import collections, contextlib, contextvars, copy, dataclasses, functools, gc, importlib, os, re
import sys, tempfile, threading, time, traceback, warnings, weakref
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel import PrepareModuleInput, PrepareModuleInputOutput
from torch.distributed.tensor.parallel import PrepareModuleOutput
from torch.distributed.tensor.parallel import SequenceParallel, loss_parallel
from torch.distributed.tensor.parallel import parallelize_module
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint as checkpointed
"""


def import_block(body: str) -> str:
    """Import for ``body``, which names everything as it is imported here."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    standard, torch = dict[_Key, list[str]](), dict[_Key, list[str]]()
    for name in sorted(used & _bound().keys()):
        (is_from, module), text = _bound()[name]
        block = torch if module.startswith("torch") else standard
        block.setdefault((is_from, module), []).append(text)
    lines = [_line(*item) for item in sorted(standard.items())]
    return "\n".join([*lines, "", *(_line(*item) for item in sorted(torch.items()))])


def importable() -> Set[str]:
    """Return the names that :func:`import_block` knows."""
    return _bound().keys()


def every_import() -> str:
    """Import all that statements may name, as far as torch has it."""
    lines = ["from contextlib import suppress"]
    for key, text in _bound().values():
        lines += ["with suppress(ImportError):", f"    {_line(key, [text])}"]
    return "\n".join(lines)


_Key = tuple[bool, str]
"""Whether names are imported from a module, and which: in this order they are sorted."""


@functools.cache
def _bound() -> dict[str, tuple[_Key, str]]:
    """Return what is imported, by the name that it gets."""
    lines = [_IMPORTS, *sources()]
    return {
        alias.asname or alias.name: (
            (True, node.module or "") if isinstance(node, ast.ImportFrom) else (False, alias.name),
            ast.unparse(alias),
        )
        for node in ast.parse("\n".join(lines)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _line(key: _Key, texts: list[str]) -> str:
    if not key[0]:
        return f"import {texts[0]}"
    line = f"from {key[1]} import {', '.join(texts)}"
    if len(line) <= 110:
        return line
    return "\n".join([f"from {key[1]} import (", *(f"    {text}," for text in texts), ")"])
