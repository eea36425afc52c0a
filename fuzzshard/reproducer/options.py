"""Options of engines as arguments of the calls of a script."""

from __future__ import annotations

from fuzzshard.case.case import WrapGroup
from fuzzshard.case.options import DDP, FSDP1, Precision, TensorParallel

_STRATEGIES = {
    "full_shard": "FULL_SHARD",
    "shard_grad_op": "SHARD_GRAD_OP",
    "no_shard": "NO_SHARD",
    "hybrid_shard": "HYBRID_SHARD",
    "hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
}
_SHARD_DIMS = {
    "last": "Shard(-1)",
    "largest": "Shard(d) if (d := p.shape.index(max(p.shape))) else None",
}
_STYLES = {
    "colwise": "ColwiseParallel",
    "rowwise": "RowwiseParallel",
    "sequence": "SequenceParallel",
}
_LAYOUTS = {"replicate": "Replicate()", "sequence": "Shard(1)"}


def group_arguments(group: WrapGroup) -> list[str]:
    """The keyword arguments of a ``fully_shard`` call that are not about the mesh."""
    arguments = []
    if group.reshard_after_forward is not None:
        arguments.append(f"reshard_after_forward={group.reshard_after_forward}")
    if group.precision is not None:
        arguments.append(f"mp_policy=MixedPrecisionPolicy({_policy(group.precision)})")
    if group.offload is not None:
        pinned = "" if group.offload == "pinned" else "pin_memory=False"
        arguments.append(f"offload_policy=CPUOffloadPolicy({pinned})")
    if group.shard_dim != "first":
        arguments.append(f"shard_placement_fn=lambda p: {_SHARD_DIMS[group.shard_dim]}")
    return arguments


def _policy(precision: Precision) -> str:
    dtypes = {name: getattr(precision, name) for name in ("param", "reduce", "output")}
    named = [f"{name}_dtype=torch.{dtype}" for name, dtype in dtypes.items() if dtype]
    if not precision.cast_inputs:
        named.append("cast_forward_inputs=False")
    if precision.keep:
        named.append("param_dtype_override_fn=lambda p: p.dtype if p.dim() == 1 else None")
    return ", ".join(named)


_BUCKETS = {
    "few_each": "bucket_cap_mb=2e-4",
    "one_each": "bucket_cap_mb=1e-6",
    "listed": "bucket_cap_mb_list=[1e-4, 2e-5, 3e-4]",
}
_BUFFERS = {
    "local": "broadcast_buffers=False",
    "forward_local": "forward_sync_buffers=False",
    "broadcast": "broadcast_buffers=True",
    "forward_broadcast": "forward_sync_buffers=True",
}
_JOIN = {
    "initial": "",
    "effective": "divide_by_initial_world_size=False",
    "throwing": "throw_on_early_termination=True",
    "off": "enable=False",
}
_FLAGS = (
    *("find_unused_parameters", "static_graph", "gradient_as_bucket_view"),
    *("skip_all_reduce_unused_params", "batched_grad_copy", "lazy_bucket_allocation"),
)


def ddp_arguments(spec: DDP, *, has_buffers: bool) -> list[str]:
    """The keyword arguments of ``DistributedDataParallel`` that differ from its defaults."""
    arguments = [f"{name}=True" for name in _FLAGS if getattr(spec, name)]
    arguments += [_BUCKETS[spec.buckets]] if spec.buckets != "default" else []
    arguments += [_BUFFERS[spec.buffers]] if has_buffers or spec.buffers != "local" else []
    return arguments + (["init_sync=False"] if spec.initial == "unsynced" else [])


def ddp_hook_lines(spec: DDP, module: str, group: str) -> list[str]:
    """Registers the communication hook on ``module``, if there is one."""
    if spec.hook is None:
        return []
    if spec.hook == "allreduce":
        return [f"{module}.register_comm_hook({group}, allreduce_hook)"]
    return [
        "def average_hook(group, bucket):",
        "    summed = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()",
        "    return summed.then(lambda summed: summed.value()[0] / dist.get_world_size(group))",
        f"{module}.register_comm_hook({group}, average_hook)",
    ]


def ddp_method_lines(spec: DDP, ddp: str) -> list[str]:
    """What is set on ``ddp`` once it is constructed; nobody leaves the join context."""
    lines = (
        [f"{ddp}.require_manual_backward_finalization = True"] if spec.manual_finalization else []
    )
    return lines + (
        [f"{ddp}.join({_JOIN[spec.join]}).__enter__()"] if spec.join is not None else []
    )


def fsdp1_arguments(spec: FSDP1) -> list[str]:
    """The keyword arguments of ``FullyShardedDataParallel`` that differ from its defaults."""
    arguments = []
    if spec.strategy != "full_shard":
        arguments.append(f"sharding_strategy=ShardingStrategy.{_STRATEGIES[spec.strategy]}")
    if spec.offload:
        arguments.append("cpu_offload=CPUOffload(offload_params=True)")
    if spec.backward_prefetch != "pre":
        prefetch = "BackwardPrefetch.BACKWARD_POST" if spec.backward_prefetch else None
        arguments.append(f"backward_prefetch={prefetch}")
    if spec.forward_prefetch:
        arguments.append("forward_prefetch=True")
    if spec.precision is not None:
        arguments.append(f"mixed_precision=MixedPrecision({_fsdp1_policy(spec.precision)})")
    if not spec.limit_all_gathers:
        arguments.append("limit_all_gathers=False")
    if spec.use_orig_params:
        arguments.append("use_orig_params=True")
    if spec.initial == "first_rank":
        arguments.append("sync_module_states=True")
    return arguments


_SUMMON = {
    "written": "",
    "discarded": ", writeback=False",
    "on_host": ", writeback=False, offload_to_cpu=True",
    "first_rank": ", writeback=False, rank0_only=True",
    "gradients": ", with_grads=True",
    "root": ", recurse=False",
}


def fsdp1_hook_lines(spec: FSDP1, fsdp: str, group: str, *, shards: bool) -> list[str]:
    """Registers the communication hook on ``fsdp``, if there is one."""
    if spec.hook is None:
        return []
    if spec.hook == "torch":
        name = "reduce_scatter_hook" if shards else "allreduce_hook"
        return [
            f"{fsdp}.register_comm_hook(default_hooks.DefaultState({group}), default_hooks.{name})"
        ]
    reduced = (
        "dist.reduce_scatter_tensor(shard, grad, group=group)"
        if shards
        else "dist.all_reduce(grad, group=group)"
    )
    one = "shard" if shards else "grad"
    policy = spec.precision
    first = policy is not None and (policy.reduce or policy.param) == "float16"
    lines = ["grad /= group.size()", reduced] if first else [reduced, f"{one} /= group.size()"]
    return [
        f"def average_hook(group, grad{', shard' if shards else ''}):",
        *(f"    {line}" for line in lines),
        f"{fsdp}.register_comm_hook({group}, average_hook)",
    ]


def fsdp1_summon_lines(spec: FSDP1, fsdp: str, *, shards: bool) -> list[str]:
    """What happens to the full parameters after a step."""
    if spec.summon is None:
        return []
    call = f"FullyShardedDataParallel.summon_full_params({fsdp}{_SUMMON[spec.summon]})"
    factor = {"written": 2, "discarded": 0}.get(spec.summon)
    if factor is None or (factor == 0 and not shards):
        return [f"with {call}:", "    pass"]
    lines = [
        f"with {call}, torch.no_grad():",
        f"    torch._foreach_mul_(list({fsdp}.parameters()), {factor})",
    ]
    if factor == 2:
        lines += [
            "with torch.no_grad():",
            f"    torch._foreach_mul_(list({fsdp}.parameters()), 0.5)",
        ]
    return lines


def _fsdp1_policy(precision: Precision) -> str:
    named = {"param": precision.param, "reduce": precision.reduce, "buffer": precision.param}
    arguments = [f"{name}_dtype=torch.{dtype}" for name, dtype in named.items() if dtype]
    return ", ".join(
        [*arguments, *([] if precision.cast_inputs else ["cast_root_forward_inputs=False"])]
    )


def parallel_style(plan: TensorParallel) -> str:
    """The style of one module in the plan of ``parallelize_module``."""
    arguments = []
    if plan.input != "default":
        arguments.append(f"input_layouts={_LAYOUTS[plan.input]}")
    if plan.output != "default":
        arguments.append(f"output_layouts={_LAYOUTS[plan.output]}")
    if plan.style != "sequence" and not plan.local_output:
        arguments.append("use_local_output=False")
    if plan.style == "sequence" and plan.local_output:
        arguments.append("use_local_output=True")
    return f"{_STYLES[plan.style]}({', '.join(arguments)})"
