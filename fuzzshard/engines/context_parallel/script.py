"""What scripts of context parallelism say."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from fuzzshard.analysis.dtypes import computed_dtypes
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.script import FullyShardScript
from fuzzshard.parts.statements import at
from fuzzshard.program.mesh import MeshNames

_STYLE = """
class ContextParallel(_ContextParallel):  # around it, rows are exchanged for positions
    def _apply(self, module, device_mesh):
        self.group, self.ranks = device_mesh.get_group(), device_mesh.size()
        module.register_forward_pre_hook(self.send)
        super()._apply(module, device_mesh)
        module.register_forward_hook(self.bring_back)
        return module

    def ordered(self, x, restore):
        if not _cp_options.enable_load_balance:
            return x
        balancer = _HeadTailLoadBalancer(x.shape[-2], self.ranks, x.device)
        return x.index_select(-2, balancer._generate_indices(restore)[0])

    def send(self, module, qkv):
        x = self.ordered(torch.stack(qkv, 1), False)
        self.mine = [len(x)] * self.ranks
        rows = torch.tensor(self.mine, device=x.device)
        self.rows = all_to_all_single(rows, None, None, self.group).tolist()
        x = torch.cat(x.chunk(self.ranks, -2))
        return all_to_all_single_autograd(x, self.rows, self.mine, self.group).unbind(1)

    def bring_back(self, module, qkv, x):
        x = all_to_all_single_autograd(x.contiguous(), self.mine, self.rows, self.group)
        return self.ordered(torch.cat(x.split(self.mine), -2), True)
"""
_RING = """
def ring_on_cpu(op, args, kwargs):  # as torch does it with kernels of CUDA
    group, mesh = args[0].device_mesh.get_group(), args[0].device_mesh
    args = [a.to_local() if isinstance(a, DTensor) else a for a in args]
    given = dict(zip([argument.name for argument in op._schema.arguments], args), **kwargs)
    if "grad_out" in given:
        given["grad_out_name"] = "grad_out"
        parts = _templated_ring_attention_backward(group, 2, op, **given)
    else:
        parts = _templated_ring_attention(group, 2, op, **given)
    return tuple(DTensor.from_local(t, mesh, [Shard(2)], run_check=False) for t in parts)
"""
_REGISTERED = [
    'if device == "cpu":  # torch has registered kernels of CUDA alone',
    "    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "    custom_ops[attend.default] = ring_on_cpu",
    "    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
    "    custom_ops[attend.default] = ring_on_cpu",
]

PRIVATE: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.tensor.experimental._attention": (
        *("_ContextParallel", "_HeadTailLoadBalancer", "_cp_options"),
        *("_disable_context_parallel_dispatcher", "_enable_context_parallel_dispatcher"),
        "set_rotate_method",
    ),
    "torch.distributed.tensor.experimental._context_parallel._attention": (
        *("_templated_ring_attention", "_templated_ring_attention_backward", "custom_ops"),
    ),
}
"""What torch may name otherwise one day."""


class ContextParallelScript(FullyShardScript):
    """Lets attention run over the shard axis, and wraps groups."""

    sources = "".join(
        f"from {module} import {', '.join(names)}\n" for module, names in PRIVATE.items()
    )
    sources += _STYLE + _RING

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = [*_REGISTERED, "_enable_context_parallel_dispatcher()"]
        lines += case.context_parallel.arguments()
        if "float64" in computed_dtypes(case):
            lines.append("_cp_options.convert_to_f32 = False")
        mesh = "mesh" if case.mesh.replicate is None else 'mesh["shard"]'
        kind = "_ContextParallel.AttentionType.SDPA"
        lines += [
            f"parallelize_module({at(model, path)}, {mesh}, ContextParallel(2, {kind}))"
            for path in inferred(case).inner("attention").values()
        ]
        return [*lines, *super().wrap_lines(case, model, variable, names)]


SCRIPT = ContextParallelScript()
