"""Options of FSDP1 beyond the flags of its constructor: initial values, communication hooks, full
parameters.

Sources are in torch/distributed/fsdp/fully_sharded_data_parallel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp as fsdp_api
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_WRAPPED_MODULE
from torch.distributed.algorithms._comm_hooks.default_hooks import (
    DefaultState,
    allreduce_hook,
    reduce_scatter_hook,
)
from torch.distributed.fsdp import FullyShardedDataParallel

from fuzzshard.case.options import FSDP1
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.written import called

_API = ("BackwardPrefetch", "CPUOffload", "MixedPrecision", "ShardingStrategy")


@torch.no_grad()
def scale(tensors: Iterable[torch.Tensor], factor: float) -> None:
    """Multiplies every tensor once; a power of two, so that nothing is rounded."""
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        tensor.mul_(factor)


def initializer(model: nn.Module, plain: nn.Module) -> Callable[[nn.Module], None]:
    """A ``param_init_fn`` that gives the modules of ``model``, on the meta device, the values of
    ``plain``.

    "the implementation should *only* initialize the parameters/buffers of the module, not those of
    its submodules".
    """
    paths = {
        module: ".".join(name for name in path.split(".") if name != _CHECKPOINT_WRAPPED_MODULE)
        for path, module in model.named_modules()
    }

    @torch.no_grad()
    def initialize(module: nn.Module) -> None:
        source = plain.get_submodule(paths[module])
        module.to_empty(device=next(plain.parameters()).device, recurse=False)
        for tensors in ("named_parameters", "named_buffers"):
            values = dict(getattr(source, tensors)(recurse=False))
            for name, tensor in getattr(module, tensors)(recurse=False):
                tensor.copy_(values[name])

    return initialize


def apply_twice_as_much(fsdp: FullyShardedDataParallel) -> None:
    """Doubles every parameter once, module by module.

    A module with two names is visited twice, and its parameters may be other tensors by then.
    """
    seen: list[torch.Tensor] = []
    visited: set[nn.Module] = set()

    def double(module: nn.Module) -> None:
        if module in visited:
            return
        visited.add(module)
        for parameter in module.parameters(recurse=False):
            if not any(parameter is other for other in seen):
                seen.append(parameter)
                scale([parameter], 2)

    fsdp.apply(double)


def arguments(spec: FSDP1, mesh: RankMesh, initialize: Any) -> dict[str, Any]:
    """The keyword arguments of the constructor."""
    ranks = "device_mesh=mesh" if spec.does("takes_mesh") else "process_group=group"
    names = {name: getattr(fsdp_api, name) for name in _API}
    names |= {"torch": torch, "initialize": initialize}
    names |= {"mesh": mesh.data_mesh, "group": mesh.group, "device": mesh.device}
    return called([ranks, "device_id=device", *spec.arguments()], **names)


def register_hook(
    fsdp: FullyShardedDataParallel, spec: FSDP1, mesh: RankMesh, *, shards: bool
) -> None:
    """Registers torch's hook or a user's own, if the case has one."""
    if spec.does("torch_hook"):
        hook: Any = reduce_scatter_hook if shards else allreduce_hook
        fsdp.register_comm_hook(DefaultState(mesh.group), hook)
    elif spec.does("own_hook"):
        fsdp.register_comm_hook(mesh.group, _average)


def _average(
    group: dist.ProcessGroup, gradient: torch.Tensor, shard: torch.Tensor | None = None
) -> None:
    """The sum over the ranks, into the ``shard`` where FSDP1 shards; sums of float16 overflow
    undivided.
    """
    divided_first = gradient.dtype == torch.float16
    if divided_first:
        gradient.div_(group.size())
    if shard is None:
        dist.all_reduce(gradient, group=group)
    else:
        dist.reduce_scatter_tensor(shard, gradient, group=group)
    if not divided_first:
        (gradient if shard is None else shard).div_(group.size())


def summon(
    fsdp: FullyShardedDataParallel, spec: FSDP1, sharded: Iterable[torch.Tensor], *, shards: bool
) -> None:
    """Changes full parameters such that nothing is changed afterwards, if the case does so.

    "the modification is persisted regardless of writeback" where FSDP1 does not shard.
    """
    if not spec.does("summons"):
        return
    with FullyShardedDataParallel.summon_full_params(fsdp, **called(spec.summoned())):
        if spec.does("doubles"):
            scale(fsdp.parameters(), 2)
        elif spec.does("zeroes") and shards:
            scale(fsdp.parameters(), 0)
    if spec.does("doubles"):
        scale(sharded, 0.5)
