"""Calling a module the way its case says, and the tensors of what it returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from fuzzshard.case.graph import Block
from fuzzshard.case.groups import moves_inputs
from fuzzshard.engines.base import Engine
from fuzzshard.model.expressions import input_class, is_checkpointed_at_call
from fuzzshard.parts.leaf import Leaf


def call(engine: Engine, target: str, module: Callable[..., Any], args: list[torch.Tensor]) -> Any:
    """Calls what ``engine`` made of the module ``target`` with ``args``, in the form that it takes
    them.
    """
    leaf = engine.facts.modules[target]
    if is_checkpointed_at_call(engine.case, target) and engine.checkpoints_module(target):
        module = functools.partial(checkpoint, module, use_reentrant=False)
    inputs = engine.case.inputs
    if inputs.on_host and not moves_inputs(engine.case, engine.name, target):
        args = [tensor.to(engine.mesh.device) for tensor in args]
    if isinstance(leaf, Leaf) and leaf.features_second(inputs.seq):
        return module(args[0].transpose(1, 2)).transpose(1, 2)
    if not isinstance(leaf, Block):
        return module(*args)
    match leaf.passing:
        case "positional":
            return module(*args)
        case "keyword":
            return module(**dict(zip(leaf.inputs, args, strict=True)))
        case "tuple":
            return module(tuple(args))
        case "dict":
            return module(dict(zip(leaf.inputs, args, strict=True)))
        case "dataclass":
            return module(engine.generated(input_class(target))(*args))


def flatten(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, in order: one, or the parts of a tuple, a dict or a dataclass.

    Of a DTensor the whole tensor is meant.
    """
    if isinstance(output, DTensor):
        return [output.full_tensor()]
    if isinstance(output, torch.Tensor):
        return [output]
    if dataclasses.is_dataclass(output):
        parts = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        parts = list(output.values() if isinstance(output, dict) else output)
    return [tensor for part in parts for tensor in flatten(part)]
