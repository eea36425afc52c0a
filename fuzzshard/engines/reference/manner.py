"""What documents let an engine do otherwise than a plain module, done to the reference.

Each is a prediction: the reference trains in the same manner, so that whatever follows from it has
to have the same values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fuzzshard.engines.nested import map_tensors
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.options.optimizer import Optimizer

COUNT = "num_batches_tracked"
"""The buffer in which a batch norm counts batches."""

Counts = Mapping[tuple[int, str], int]
"""What a batch norm has counted after a backward, by the op and the name of the buffer."""


@dataclasses.dataclass(frozen=True)
class Manner:
    """How the reference trains (:func:`fuzzshard.oracles.allowed.manner_here` says why).

    ``joins_inputs``: the inputs of modules whose groups have parameters pass through one autograd
    function. ``makes_zeros``: that function gets zeros for undefined gradients. ``filled``: the
    parameters that have a gradient after a backward, of zeros where it brings none, by the index
    of the op. ``counts``: a batch norm counts a recomputed batch only up to these. ``made``: the
    parameters that the optimizer makes a state of before an op. ``averages_again``: a backward
    averages all that ``.grad`` holds. ``in_half``: the parameters whose gradients are averaged in
    half precision, and in which. ``apart``: the gradients that a backward averages after those
    that waited for it, and not with them.
    """

    joins_inputs: bool = False
    makes_zeros: bool = False
    filled: frozenset[tuple[int, str]] = frozenset()
    counts: Counts = dataclasses.field(default_factory=dict)
    made: frozenset[tuple[int, str]] = frozenset()
    averages_again: bool = False
    in_half: Mapping[str, Dtype] = dataclasses.field(default_factory=dict)
    apart: frozenset[tuple[int, str]] = frozenset()


PLAIN = Manner()
"""As a plain module trains."""


class _Joined(torch.autograd.Function):
    """Returns its inputs. A backward through one of them runs through all."""

    @staticmethod
    def forward(makes_zeros: bool, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return inputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return None, *gradients


def join_inputs(
    makes_zeros: bool, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass what requires a gradient through one function; a hook before a forward.

    A recomputation does not (``_pre_forward`` in torch/distributed/fsdp/_fully_shard/
    _fsdp_state.py).
    """
    inputs: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        inputs.extend([tensor] if tensor.requires_grad else [])
        return tensor

    map_tensors(collect, (args, kwargs))
    if not inputs or not torch.is_grad_enabled() or _in_backward():
        return args, kwargs
    joined = iter(_Joined.apply(makes_zeros, *inputs))
    args, kwargs = map_tensors(lambda t: next(joined) if t.requires_grad else t, (args, kwargs))
    return args, kwargs


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class Recomputed:
    """The buffers that batch norms had before each recomputation of a backward."""

    def __init__(self, norms: Mapping[str, nn.Module], counts: Counts) -> None:
        self._norms, self._counts = norms, counts
        self._before: dict[str, list[dict[str, torch.Tensor]]] = {path: [] for path in norms}
        for path, norm in norms.items():
            norm.register_forward_pre_hook(lambda norm, args, path=path: self._keep(path, norm))

    def _keep(self, path: str, norm: nn.Module) -> None:
        if _in_backward() and norm.training:
            kept = {name: buffer.clone() for name, buffer in norm.named_buffers()}
            self._before[path].append(kept)

    def take_back(self, index: int) -> None:
        """Forget what was counted beyond what is due after the backward at ``index``."""
        for path, before in self._before.items():
            due = self._counts.get((index, f"{path}.{COUNT}"))
            beyond = (kept for kept in before if due is not None and int(kept[COUNT]) >= due)
            for name, value in next(beyond, {}).items():
                self._norms[path].get_buffer(name).data.copy_(value)
            before.clear()


def make_states(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], spec: Optimizer
) -> None:
    """Make the states that ``optimizer`` has before the first step of ``parameters``, where it
    holds them and has none yet.
    """
    wanted = {*parameters}
    for group in optimizer.param_groups:
        for parameter in wanted.intersection(group["params"]):
            if optimizer.state.get(parameter):
                continue
            stepped = nn.Parameter(parameter.detach().clone())
            stepped.grad = torch.zeros_like(stepped)
            make: Callable[..., torch.optim.Optimizer] = type(optimizer)
            other = make([{**group, "params": [stepped]}])
            other.step()
            states = other.state[stepped]
            for name, state in states.items():
                initial = spec.initially(name)
                if isinstance(state, torch.Tensor):
                    state.fill_(group["lr"] if initial is None else initial)
            optimizer.state[parameter] = states
