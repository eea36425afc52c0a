"""What a module inside a model is called with: the inputs on which it can be trained alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map

from fuzzshard.subject.functions import SubjectError


class Inputs(NamedTuple):
    """The arguments of one call, of which no tensor has a graph."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class _Recorded(BaseException):
    """The module was reached; models may catch exceptions, so it is none of these."""


def recorded_inputs(model: nn.Module, name: str, forward: Callable[[], object]) -> Inputs:
    """Return the inputs of the first call of the module ``name`` in ``forward``, which ends there.

    Tensors that required a gradient are leaves that require one: engines act on such inputs.
    Raises :class:`SubjectError` for a module that is not called.
    """
    seen: list[Inputs] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    def record(_module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        seen.append(tree_map(leaf, Inputs(arguments, keywords)))
        raise _Recorded

    handle = model.get_submodule(name).register_forward_pre_hook(record, with_kwargs=True)
    try:
        forward()
    except _Recorded:
        return seen[0]
    finally:
        handle.remove()
    raise SubjectError("build", f"gives a model that does not call {name}")
