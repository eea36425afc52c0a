"""Tensors inside the structures that modules take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to every tensor in it.

    Looks into tuples, named tuples, lists, dicts and dataclasses, however deep; the rest stays as
    it is.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: map_tensors(function, getattr(value, f.name))
            for f in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, part) for part in value))
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(function, part) for part in value)
    return value
