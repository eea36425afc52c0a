"""What scripts of ``fully_shard`` with ``dp_mesh_dims`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.engines.fully_shard.script import FullyShardScript
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import place_of

if TYPE_CHECKING:
    from fuzzshard.case.case import Case, WrapGroup


class SPMDScript(FullyShardScript):
    """Makes everything that the model has DTensors on the mesh, and wraps groups."""

    imports = """
from torch.distributed.fsdp import DataParallelMeshDims
"""
    sources = {
        "dtensor": """
def dtensor(x):  # which every rank of the mesh has whole
    return DTensor.from_local(x, mesh)
"""
    }
    computes_with_dtensors = True

    @override
    def argument(self, variable: str) -> str:
        return f"dtensor({variable})"

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = [f"distribute_module({model}, mesh)"]
        for tie in case.ties:
            place = place_of(case, model, tie.parameter)
            lines.append(f"{place} = {place_of(case, model, tie.source)}")
        return [*lines, *super().wrap_lines(case, model, variable, names)]

    @override
    def arguments(self, case: Case, group: WrapGroup) -> list[str]:
        dims = ", ".join(case.spmd.dims(MeshNames(case).data))
        mesh, *others = super().arguments(case, group)
        return [mesh, f"dp_mesh_dims=DataParallelMeshDims({dims})", *others]


SCRIPT = SPMDScript()
