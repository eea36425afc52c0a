"""The ranks an engine works on: one flat process group and one device mesh, reused across cases.

On NCCL a communicator costs more than a case, so groups of the same ranks are made once per world:
:func:`prepare_groups` runs on *every* rank of the world (making a group is collective), and
``DeviceMesh`` is given the same groups again whenever torch builds a mesh, also inside ``fully_shard``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fuzzshard.case.case import Case, Mesh

_device_mesh: Any = importlib.import_module("torch.distributed.device_mesh")
_groups: dict[tuple[int, ...], Any] = {}
_meshes: dict[Mesh, DeviceMesh] = {}


@dataclasses.dataclass(frozen=True)
class RankMesh:
    """The mesh of one case as seen from one rank."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup
    device_mesh: DeviceMesh


def _cached_new_group(make: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        key = tuple(ranks) if ranks is not None else tuple(range(dist.get_world_size()))
        if key not in _groups:
            _groups[key] = make(list(key), *args, **kwargs)
        return _groups[key]

    return new_group


def install_group_cache() -> None:
    """Makes ``DeviceMesh`` reuse groups; once per rank process, after ``init_process_group``."""
    _groups[tuple(range(dist.get_world_size()))] = dist.group.WORLD
    _device_mesh.new_group = _cached_new_group(_device_mesh.new_group)


def _rank_lists(mesh: Mesh, shard_factors: set[int]) -> list[list[int]]:
    """All groups of ranks that a mesh and the smaller meshes of its int reshards are made of."""
    ranks = torch.arange(mesh.size).view(mesh.replicate or 1, mesh.shard)
    found = [ranks.flatten().tolist(), *ranks.tolist(), *ranks.t().tolist()]
    for factor in sorted(shard_factors):
        for row in ranks:
            smaller = row.view(-1, factor)
            found += [*smaller.tolist(), *smaller.t().tolist()]
    return found


def prepare_groups(case: Case) -> None:
    """Makes every process group that ``case`` will need. All ranks of the world call this together."""
    factors = {
        g.reshard_after_forward
        for g in case.wrap
        if isinstance(g.reshard_after_forward, int) and not isinstance(g.reshard_after_forward, bool)
    }
    for ranks in _rank_lists(case.mesh, factors):
        _device_mesh.new_group(ranks)


def rank_mesh(case: Case, device: torch.device) -> RankMesh:
    """The mesh of ``case``; only for the ranks inside it, after :func:`prepare_groups`."""
    mesh = case.mesh
    if mesh not in _meshes:
        ranks = torch.arange(mesh.size)
        _meshes[mesh] = (
            DeviceMesh(device.type, ranks, mesh_dim_names=("shard",))
            if mesh.replicate is None
            else DeviceMesh(
                device.type, ranks.view(mesh.replicate, mesh.shard), mesh_dim_names=("replicate", "shard")
            )
        )
    group = _groups[tuple(range(mesh.size))]
    return RankMesh(dist.get_rank(), mesh.size, device, group, _meshes[mesh])
