"""What scripts of ``fully_shard`` with ``dp_mesh_dims`` say."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.tensor_parallel import layouts_of, tensor_dims
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.options import TensorParallel
from fuzzshard.engines.fully_shard.script import FullyShardScript
from fuzzshard.parts.statements import at, call_lines
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import place_of
from fuzzshard.program.wrapping import placement


def _mesh(case: Case) -> str:
    """Return the mesh of all DTensors: of all axes with tensor parallelism, else the data-parallel
    one, which a program slices anew where it builds its model again.
    """
    return "mesh" if case.mesh.tensor is None else MeshNames(case).variable


def _placements(case: Case, data: str, tensor: str = "Replicate()") -> str:
    """Return a list of placements: one for the data-parallel axes, another for the
    tensor-parallel one.
    """
    names = MeshNames(case)
    along = dict.fromkeys(names.data, data) | {"tp": tensor}
    axes = names.data if case.mesh.tensor is None else names.sizes
    return f"[{', '.join(along.get(axis) or 'Replicate()' for axis in axes)}]"


def _plan_lines(case: Case, plan: TensorParallel, module: str) -> list[str]:
    """Lay the argument of a planned module as it wants to have it, and its result as the plan
    says.
    """
    mesh, found = _mesh(case), inferred(case)
    takes, gives = layouts_of(plan, found, case.inputs.seq)
    by_rows = "ids" in found.leaves[plan.module].takes
    wanted = {"colwise": None, "rowwise": None if by_rows else -1, "sequence": takes}
    along, after = placement(wanted.get(plan.style, plan.dim)), placement(gives)
    told = [f"{module}, {mesh}", f"input_fn=laying({along})", f"output_fn=laying({after})"]
    lines = call_lines("distribute_module", told)
    if plan.local_map:
        lines.insert(0, f"map_locally({module}, {mesh}, {_placements(case, _rows(case), along)})")
    return lines


def _rows(case: Case) -> str:
    """Return how a batch lies along the data-parallel axes."""
    return "Shard(0)" if case.spmd.inputs == "sharded" else "Replicate()"


class SPMDScript(FullyShardScript):
    """Makes everything that the model has DTensors on one mesh, and wraps groups."""

    sources = """
from torch.distributed.fsdp import DataParallelMeshDims

def distribute(module, name, mesh, placements):
    p = getattr(module, name)
    t = distribute_tensor(p.detach(), mesh, placements, src_data_rank=None)
    setattr(module, name, nn.Parameter(t, p.requires_grad))

def laying(placement):  # what is given, or given back, that way along the last axis of the mesh
    def hook(module, value, mesh):
        t = value[0] if isinstance(value, tuple) else value
        return t.redistribute(placements=[*t.placements[:-1], placement])
    return hook

def own_rows(t, placements):  # of the rows of all ranks
    return t.redistribute(placements=placements).to_local() if isinstance(t, DTensor) else t
"""

    @override
    def argument(self, case: Case, variable: str) -> str:
        placed = "" if case.spmd.inputs == "replicated" else f", {_placements(case, _rows(case))}"
        return f"DTensor.from_local({variable}, {_mesh(case)}{placed})"

    @override
    def whole(self, case: Case, output: str) -> str:
        if case.spmd.inputs == "replicated":
            return super().whole(case, output)
        return f"own_rows({output}, {_placements(case, _rows(case))})"

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = []
        for fqn, dim in tensor_dims(case, inferred(case)).items():
            if dim is not None:
                module, _, name = place_of(case, model, fqn).rpartition(".")
                placed = _placements(case, "Replicate()", placement(dim))
                lines.append(f'distribute({module}, "{name}", {_mesh(case)}, {placed})')
        for plan in case.tensor_parallel:
            if plan.is_of_leaf:
                lines += _plan_lines(case, plan, at(model, plan.module))
        lines.append(f"distribute_module({model}, {_mesh(case)})")
        for tie in case.ties:
            place = place_of(case, model, tie.parameter)
            lines.append(f"{place} = {place_of(case, model, tie.source)}")
        return [*lines, *super().wrap_lines(case, model, variable, names)]

    @override
    def mesh_of(self, case: Case, group: WrapGroup) -> str:
        return _mesh(case)

    @override
    def arguments(self, case: Case, group: WrapGroup) -> list[str]:
        dims = ", ".join(case.spmd.dims(MeshNames(case).data))
        mesh, *others = super().arguments(case, group)
        return [mesh, f"dp_mesh_dims=DataParallelMeshDims({dims})", *others]


SCRIPT = SPMDScript()
