"""The mesh of a script, and what a rank is in it: statements, and the expressions that other code
uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.graph import has_alias
from fuzzshard.parts.engines import specs


def _text(values: Iterable[object]) -> str:
    return str(tuple(values)).replace("'", '"')


def _parts(sizes: Mapping[str, int], axis: str, of: tuple[int, int]) -> dict[str, int]:
    """Return the same with two axes in place of one, which are flattened to it."""
    parts = dict[str, int]()
    for name, size in sizes.items():
        parts |= dict(zip(("outer", "cp"), of, strict=True)) if name == axis else {name: size}
    return parts


class MeshNames:
    """The variables and expressions that stand for the mesh of a case;
    :mod:`fuzzshard.engines.mesh`.

    ``flat`` meshes have data-parallel axes only: the world is the data-parallel group then, and a
    script says nothing about groups. The world of a rank may be larger than its mesh, which then
    is ``within`` it.
    """

    def __init__(self, case: Case, *, within: bool = False) -> None:
        mesh = case.mesh
        flat = mesh.tensor is None and mesh.pipeline is None
        self._mesh = mesh
        in_order = mesh.made not in ("transposed", "reversed")
        self.flat, self.within = flat and in_order and not within, within
        shard = "shard" if flat or mesh.replicate is not None else "dp"
        names = {"pipeline": "pp", "replicate": "replicate", "shard": shard, "tensor": "tp"}
        self.sizes = {names[axis]: size for axis, size in mesh.axes.items()}
        self.data = tuple(axis for axis in ("replicate", "shard", "dp") if axis in self.sizes)
        names_dims = any(spec.names_dims for spec in specs(case.engines))
        # fully_shard lets a module below a wrapped one be wrapped outside of it once more, on axes
        # that have names, where the axis has one rank
        shards_twice = mesh.shard == 1 and has_alias(case.model)
        self.named = len(self.sizes) > 1 or names_dims or shards_twice or not self.flat

    @property
    def variable(self) -> str:
        """The mesh of all ranks."""
        return "mesh" if self.flat else "world_mesh"

    def make(self) -> str:
        """Return the statement that makes the mesh of all ranks; it joins the process group."""
        return f"{self.variable} = {self.expression()}"

    def expression(self) -> str:
        """Return the call that makes it."""
        shape, names = _text(self.sizes.values()), _text(self.sizes)
        named = f", mesh_dim_names={names}"
        size = math.prod(self.sizes.values())
        match self._mesh.made:
            case "flattened":
                axis = self.data[-1]
                parts = _parts(self.sizes, axis, self._mesh.flattened)
                given = f"{_text(parts.values())}, mesh_dim_names={_text(parts)}"
                return f'flattened(init_device_mesh(device, {given}), "{axis}", {names})'
            case "unflattened":
                world = f'init_device_mesh(device, ({size},), mesh_dim_names=("world",))'
                return f"{world}._unflatten(0, {shape}, {names})"
            case "from_groups":
                return f"of_groups(init_device_mesh(device, {shape}{named}))"
            case "transposed":
                columns = _text([*self.sizes.values()][::-1])
                turned = f"view{columns}.permute{_text([*range(len(self.sizes))][::-1])}"
                return f"DeviceMesh(device, torch.arange({size}).{turned}{named})"
            case "reversed":
                turned = f"torch.arange({size}).flip(0).view{shape}"
                return f"DeviceMesh(device, {turned}{named}, preserve_rank_order=True)"
        return f"init_device_mesh(device, {shape}{named if self.named else ''})"

    def slices(self) -> list[str]:
        """Return statements for the data-parallel mesh, the rank's number there, and its group."""
        if self.flat:
            return ["rank = dist.get_rank()"]
        axes = ", ".join(f'"{axis}"' for axis in self.data)
        lines = [f"mesh = world_mesh[{axes}]"]
        if len(self.data) == 1:
            return [*lines, "rank = mesh.get_local_rank()", "group = mesh.get_group()"]
        return [
            *lines,
            f'rank = mesh.get_local_rank("replicate") * {self.sizes["shard"]} + '
            'mesh.get_local_rank("shard")',
            'group = mesh._flatten("data").get_group()',
        ]

    @property
    def group(self) -> str:
        """The process group of the data-parallel ranks."""
        return "dist.group.WORLD" if self.flat else "group"

    @property
    def group_argument(self) -> str:
        """What collectives over the data-parallel ranks are given."""
        return "" if self.flat else ", group=group"

    @property
    def process_group(self) -> str:
        """The keyword argument by which an engine gets the data-parallel ranks, where it has
        to.
        """
        return "" if self.flat else "process_group=group"

    @property
    def data_size(self) -> str:
        """The number of data-parallel ranks."""
        return "dist.get_world_size()" if self.flat else "group.size()"
