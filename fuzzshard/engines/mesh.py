"""The ranks an engine works on: one flat process group and one device mesh, reused across cases.

On NCCL a communicator costs more than a case, so groups of the same ranks are made once per world:
:func:`prepare_groups` runs on *every* rank of the world (making a group is collective), and
``DeviceMesh`` is given the same groups again whenever torch builds a mesh, also inside
``fully_shard``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

from fuzzshard.analysis.communication import some
from fuzzshard.analysis.schedule_state import first
from fuzzshard.case.case import Case, Mesh
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.run import execute

_device_mesh: Any = importlib.import_module("torch.distributed.device_mesh")
_groups: dict[tuple[Any, ...], Any] = {}
_scatter_groups: dict[tuple[int, ...], Any] = {}
_saving_groups: dict[tuple[int, ...], Any] = {}
_meshes: dict[Mesh, tuple[DeviceMesh, DeviceMesh]] = {}
"""The mesh of all axes, and of data-parallel ones."""
_address = ""


@dataclasses.dataclass(frozen=True)
class RankMesh:
    """The mesh of one case as seen from one rank.

    ``rank``, ``size`` and ``group`` are those of the data-parallel ranks of this slice,
    ``data_mesh`` is what ``fully_shard`` gets, ``whole`` the mesh of all axes. ``everyone`` is the
    group of all ranks of the case, ``global_rank`` this rank's place in it. ``saving`` is another
    group of them, for asynchronous saves, if the case has some.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup
    data_mesh: DeviceMesh
    whole: DeviceMesh
    everyone: dist.ProcessGroup
    global_rank: int
    saving: dist.ProcessGroup | None = None

    @contextlib.contextmanager
    def as_world(self) -> Iterator[None]:
        """Make the ranks of the case all that there are, for functions that take no group."""
        every = dist.group.WORLD
        dist.group.WORLD = self.everyone
        try:
            yield
        finally:
            dist.group.WORLD = every


@contextlib.contextmanager
def one_gloo_device() -> Iterator[None]:
    """Lets the gloo groups that are made within share one device, and its thread.

    By default each group makes a device, whose thread wakes up a hundred times a second as long
    as the group lives (``Loop::run`` in gloo/transport/tcp/loop.cc), here as long as the world.
    """
    kind: Any = distributed_c10d.ProcessGroupGloo
    plain = kind.__init__

    def init(self: Any, store: Any, rank: int, size: int, **given: Any) -> None:
        options = kind._Options()
        options._devices = [_gloo_device()]
        options._timeout = given.pop("timeout")
        for name, value in given.items():
            setattr(options, name, value)
        plain(self, store, rank, size, options)

    kind.__init__ = init
    try:
        yield
    finally:
        kind.__init__ = plain


@functools.cache
def _gloo_device() -> Any:
    kind: Any = distributed_c10d.ProcessGroupGloo
    return kind.create_device(hostname=_address) if _address else kind.create_default_device()


def talk_from(address: str) -> None:
    """Makes gloo groups listen at this address of the machine; before the first one is made."""
    global _address
    _address = address


def _key(ranks: Iterable[int]) -> tuple[Any, ...]:
    """Return a name for a group of ranks as they are numbered in the world of the moment."""
    return dist.group.WORLD, *ranks


def _in_order(ranks: list[int], given: Mapping[str, Any]) -> list[int]:
    """Return the ranks of a group that ``new_group`` makes of these."""
    return sorted(ranks) if given.get("sort_ranks", True) else ranks


def _cached_new_group(make: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        ranks = [*range(dist.get_world_size())] if ranks is None else ranks
        ranks = _in_order(ranks, kwargs)
        if (key := _key(ranks)) not in _groups:
            with one_gloo_device():
                _groups[key] = make(ranks, *args, **kwargs)
        return _groups[key]

    return new_group


def _with_scatter_groups(make: Callable[..., Any]) -> Callable[..., Any]:
    """Answers ``set_separate_reduce_scatter_group`` with a group that is there.

    Every group that it made would live as long as the world. And it makes them with
    ``use_local_synchronization``: the name of such a group counts the groups of the rank that
    makes it (``_hash_ranks_to_str`` in torch/distributed/distributed_c10d.py), so ranks of which
    some were idle in an earlier case would wait for each other under different names.
    """

    def new_group(ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("group_desc") == _SCATTERS and ranks is not None:
            return _scatter_groups[tuple(_in_order(ranks, kwargs))]
        return make(ranks, *args, **kwargs)

    return new_group


_SCATTERS = "fsdp_reduce_scatter"
"""What ``set_separate_reduce_scatter_group`` calls the group that it makes."""


def _cached_split_group(*, split_ranks: list[list[int]], **_: Any) -> Any:
    """Answers with the group of this rank, which :func:`prepare_groups` has made.

    Where NCCL has made its communicator already, ``DeviceMesh`` splits it. All ranks of the world
    take part in a split, and those that idle in a case do not. Meshes of the user's own are not
    prepared: all ranks are there then, and make the groups.
    """
    mine = next((ranks for ranks in split_ranks if dist.get_rank() in ranks), None)
    if mine is None:
        return dist.GroupMember.NON_GROUP_MEMBER
    if _key(mine) not in _groups:
        for ranks in split_ranks:
            _device_mesh.new_group(ranks)
    return _groups[_key(mine)]


def install_group_cache() -> None:
    """Makes ``DeviceMesh`` reuse groups; once per rank process, after ``init_process_group``."""
    _groups[_key(range(dist.get_world_size()))] = dist.group.WORLD
    _device_mesh.new_group = _cached_new_group(_device_mesh.new_group)
    _device_mesh.split_group = _cached_split_group
    dist.new_group = _with_scatter_groups(dist.new_group)


HAS_RANK_ORDER = "preserve_rank_order" in inspect.signature(DeviceMesh).parameters
"""Whether a mesh may have process groups whose ranks are in another order than in the world."""


def ranks_of(mesh: Mesh) -> torch.Tensor:
    """Return the ranks of the world that are those of ``mesh``, in order: the first ones."""
    return torch.arange(mesh.size)


def _layout(mesh: Mesh) -> torch.Tensor:
    """Return the ranks as they lie along (pp, replicate, shard, tp)."""
    axes = (mesh.pipeline or 1, mesh.replicate or 1, mesh.shard, mesh.tensor or 1)
    return torch.tensor(mesh.ranks).view(axes)


def _rank_lists(mesh: Mesh, shard_factors: set[int]) -> list[list[int]]:
    """Return all groups of ranks that a mesh, its slices and the smaller meshes of int reshards
    are made of.
    """
    ranks = _layout(mesh)
    found = [ranks.flatten().tolist(), ranks_of(mesh).tolist()]
    for axis in range(ranks.ndim):
        found += ranks.movedim(axis, -1).flatten(0, -2).tolist()
    found += ranks.movedim(-1, 1).flatten(2).flatten(0, 1).tolist()
    inner = mesh.flattened[1:] if mesh.made == "flattened" else ()
    for factor in sorted({*shard_factors, *inner}):
        for row in ranks.movedim(-1, 0).flatten(0, -2):
            smaller = row.view(-1, factor)
            found += [*smaller.tolist(), *smaller.t().tolist()]
    return found


def prepare_groups(case: Case) -> None:
    """Makes every process group that ``case`` will need. All ranks of the world call this
    together.
    """
    for each in case.on_meshes:
        _prepare_mesh(each)


def _prepare_mesh(case: Case) -> None:
    after = {group.after_forward(case.mesh.shard).ranks for group in case.wrap}
    orders: list[dict[str, bool]] = [{}]
    if case.mesh.made == "reversed" and HAS_RANK_ORDER:
        orders.append({"sort_ranks": False})
    for ranks in _rank_lists(case.mesh, after - {case.mesh.shard}):
        for order in orders:
            _device_mesh.new_group(ranks, **order)
    everyone = ranks_of(case.mesh).tolist()
    if first(case, lambda at: at.saving) < len(case.schedule):
        _prepare(_saving_groups, everyone, backend="gloo")
    if some(case, "own_group"):
        for ranks in _layout(case.mesh).movedim(2, -1).flatten(0, -2).tolist():
            for order in orders:
                _prepare(_scatter_groups, _in_order(ranks, order), **order)


def _prepare(groups: dict[tuple[int, ...], Any], ranks: list[int], **given: Any) -> None:
    """Makes a group of ``ranks`` that ``groups`` keep from now on."""
    if tuple(ranks) not in groups:
        with one_gloo_device():
            groups[tuple(ranks)] = dist.new_group(ranks, **given)


def rank_mesh(case: Case, device: torch.device, *, anew: bool = False) -> RankMesh:
    """Return the mesh of ``case``; only for the ranks inside it, after :func:`prepare_groups`.

    ``anew`` slices it again, as a program does where it builds its model again.
    """
    if case.mesh.made == "reversed" and not HAS_RANK_ORDER:  # no engine runs it
        case = replace(case, mesh=replace(case.mesh, made="plainly"))
    mesh = case.mesh
    names = MeshNames(case, within=True)
    if mesh not in _meshes:
        made = execute([names.make(), names.slices()[0]], {"device": device.type})
        _meshes[mesh] = made["world_mesh"], made["mesh"]
    whole, data_mesh = _meshes[mesh]
    if anew and not MeshNames(case).flat:
        data_mesh = execute([names.slices()[0]], {"world_mesh": whole})["mesh"]
    members = tuple(data_mesh.mesh.flatten().tolist())
    everyone = ranks_of(mesh).tolist()
    return RankMesh(
        rank=members.index(dist.get_rank()),
        size=len(members),
        device=device,
        group=_groups[_key(members if mesh.made == "reversed" else sorted(members))],
        data_mesh=data_mesh,
        whole=whole,
        everyone=_groups[_key(everyone)],
        global_rank=everyone.index(dist.get_rank()),
        saving=_saving_groups.get(tuple(everyone)),
    )
