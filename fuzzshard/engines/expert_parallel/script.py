"""What scripts of expert parallelism say."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.analysis.experts import beside_others, has_experts, of_experts
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.engines.fully_shard.script import FullyShardScript
from fuzzshard.parts.ops.set_divide_factor import dividing, factors
from fuzzshard.parts.statements import at
from fuzzshard.program.mesh import MeshNames

_STYLE = """
class ExpertParallel(ParallelStyle):  # a rank has some experts, and gets the rows of all ranks
    def _apply(self, module, device_mesh):
        self.group, self.ranks = device_mesh.get_group(), device_mesh.size()
        return distribute_module(module, device_mesh, self.shard, self.send, self.bring_back)

    def shard(self, name, module, device_mesh):
        whole = module.weight
        sharded = distribute_tensor(whole.detach(), device_mesh, [Shard(0)])
        module.weight = nn.Parameter(sharded, requires_grad=whole.requires_grad)

    def send(self, module, args, device_mesh):
        rows, counts = args
        going = torch.tensor(counts, device=rows.device)
        coming = all_to_all_single(going, None, None, self.group).view(self.ranks, -1)
        self.sent = going.view(self.ranks, -1).sum(1).tolist()
        self.got = coming.sum(1).tolist()
        rows = all_to_all_single_autograd(rows, self.got, self.sent, self.group)
        expert = torch.arange(coming.shape[1], device=rows.device).repeat(self.ranks)
        self.order = expert.repeat_interleave(coming.flatten()).argsort(stable=True)
        return rows[self.order], coming.sum(0).tolist()

    def bring_back(self, module, out, device_mesh):
        out = out[self.order.argsort()]
        return all_to_all_single_autograd(out, self.sent, self.got, self.group)
"""


class ExpertParallelScript(FullyShardScript):
    """Shards experts over the shard axis, and gives their groups the other axis.

    A group that manages others beside experts has a mesh for each: "This allows different
    parameters to be sharded across different process groups, enabling use cases like Mixture of
    Experts where expert params use a different mesh than regular params" (``fully_shard``).
    """

    sources = """
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import distribute_module
from torch.distributed.tensor.parallel import ParallelStyle
"""
    sources += _STYLE

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = [
            f'parallelize_module({at(model, path)}, mesh["shard"], ExpertParallel())'
            for path in inferred(case).inner("experts").values()
        ]
        if mixed := [fqn for group in case.wrap for fqn in beside_others(case, group)]:
            lines += [
                f"experts = {{{', '.join(at(model, fqn) for fqn in mixed)}}}",
                'of_experts = FSDPMeshInfo(mesh["replicate"], shard_mesh_dim=0)',
                "placed = ShardPlacementResult(Shard(0), of_experts)",
            ]
        return [*lines, *super().wrap_lines(case, model, variable, names)]

    @override
    def arguments(self, case: Case, group: WrapGroup) -> list[str]:
        told = super().arguments(case, group)
        if not beside_others(case, group):
            return told
        begin = "shard_placement_fn=lambda p: "
        others = [each.removeprefix(begin) for each in told if each.startswith(begin)] or ["None"]
        told = [each for each in told if not each.startswith(begin)]
        return [*told, f"{begin}placed if p in experts else {others[0]}"]

    @override
    def mesh_of(self, case: Case, group: WrapGroup) -> str:
        return 'mesh["replicate"]' if of_experts(case, group) else "mesh"

    @override
    def group_lines(self, case: Case, group: WrapGroup, module: str) -> list[str]:
        """Divide by all data ranks: gradients are sums over the shard axis when they come, as rows
        of all its ranks went through the experts.
        """
        if not has_experts(case, group):
            return []
        ranks = (each.mesh.replicate or 1 for each in case.on_meshes)
        return dividing(module, case.mesh.data_size, ranks, factors(case.schedule))


SCRIPT = ExpertParallelScript()
