"""Options of engines as arguments of the calls of a script."""

from __future__ import annotations

from fuzzshard.case.case import WrapGroup
from fuzzshard.case.options import FSDP1, Precision, TensorParallel

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
_STYLES = {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel", "sequence": "SequenceParallel"}
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
    return arguments


def _fsdp1_policy(precision: Precision) -> str:
    named = {"param": precision.param, "reduce": precision.reduce, "buffer": precision.param}
    arguments = [f"{name}_dtype=torch.{dtype}" for name, dtype in named.items() if dtype]
    return ", ".join([*arguments, *([] if precision.cast_inputs else ["cast_root_forward_inputs=False"])])


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
