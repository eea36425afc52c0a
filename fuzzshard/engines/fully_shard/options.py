"""What a Case's options mean in calls of ``fully_shard`` and of ``FSDPModule``'s methods."""

from __future__ import annotations

import functools
from collections.abc import Set
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import Block
from fuzzshard.case.groups import root_groups
from fuzzshard.case.options import Precision
from fuzzshard.case.placements import shard_dim
from fuzzshard.case.sync_flags import multiplies
from fuzzshard.engines.base import DTYPES
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.written import evaluate, run
from fuzzshard.parts.options.communication import WORDS, Word


def arguments(group: WrapGroup, ignored: Set[nn.Parameter]) -> dict[str, Any]:
    """The keyword arguments of the call ``fully_shard`` for ``group`` that are not about the
    mesh.
    """
    options: dict[str, Any] = {"reshard_after_forward": group.reshard_after_forward}
    if group.offload is not None:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=group.offload == "pinned")
    if group.precision is not None:
        options["mp_policy"] = _policy(group.precision)
    if group.shard_dim != "first":
        options["shard_placement_fn"] = functools.partial(_placement, group)
    if ignored:
        options["ignored_params"] = set(ignored)
    return options


def _placement(group: WrapGroup, parameter: nn.Parameter) -> Shard | None:
    """As users write it: -1 is the last dim, and None the first one ("defaults to Shard(0)")."""
    if group.shard_dim == "last":
        return Shard(-1)
    dim = shard_dim(group, tuple(parameter.shape))
    return Shard(dim) if dim else None


def _policy(precision: Precision) -> MixedPrecisionPolicy:
    override: dict[str, Any] = {"param_dtype_override_fn": _keep_vectors} if precision.keep else {}
    return MixedPrecisionPolicy(
        **override,
        param_dtype=precision.param and DTYPES[precision.param],
        reduce_dtype=precision.reduce and DTYPES[precision.reduce],
        output_dtype=precision.output and DTYPES[precision.output],
        cast_forward_inputs=precision.cast_inputs,
    )


def _keep_vectors(parameter: nn.Parameter) -> torch.dtype | None:
    return parameter.dtype if parameter.dim() == 1 else None


def wrapped(model: nn.Module, path: str) -> FSDPModule:
    """The wrapped module at ``path``."""
    return cast(FSDPModule, model.get_submodule(path))


def set_prefetches(case: Case, model: nn.Module) -> None:
    """Hands the prefetch lists over, once everything is wrapped."""
    for group in case.wrap:
        module = wrapped(model, group.modules[0])
        if group.forward_prefetch:
            module.set_modules_to_forward_prefetch(
                [wrapped(model, path) for path in group.forward_prefetch]
            )
        if group.backward_prefetch:
            module.set_modules_to_backward_prefetch(
                [wrapped(model, p) for p in group.backward_prefetch]
            )


def set_communication(case: Case, model: nn.Module, mesh: RankMesh) -> None:
    """What groups are told about their collectives."""
    if any(group.does("uses_group_memory") for group in case.wrap):
        _start_communicator(mesh)
    library = {"torch": torch, "dist": dist}
    together: dict[Word, list[FSDPModule]] = {}
    for group in case.wrap:
        module = wrapped(model, group.modules[0])
        for word in map(WORDS.__getitem__, group.communication):
            if word.of_several:
                together.setdefault(word, []).append(module)
            else:
                lines = [*word.helper, f"module.{word.call}"]
                run(lines, library, module=module, device=mesh.device.type)
    for word, modules in together.items():
        evaluate(word.call, share_comm_ctx=share_comm_ctx)(modules)


def _start_communicator(mesh: RankMesh) -> None:
    """Runs a first collective over the shard axis: NCCL allocates memory for a communicator that
    is there.

    Where that axis has one rank, nothing is gathered before gradients are reduced, which fails
    ("NCCL communicator has not been initialized before mem pool creation", ``registerMemPool`` in
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, which asks its caller to make them
    beforehand).
    """
    devices = [mesh.device.index] if mesh.device.type == "cuda" else None
    dist.barrier(group=mesh.data_mesh.get_group(mesh.data_mesh.ndim - 1), device_ids=devices)


def lacking(case: Case) -> str | None:
    """A method that the case needs and that this version of torch does not have, if there is
    one.
    """
    told = (WORDS[option] for group in case.wrap for option in group.communication)
    names = (word.call.partition("(")[0] for word in told if not word.of_several)
    keeps = any(group.precision is not None and group.precision.keep for group in case.wrap)
    if keeps and "param_dtype_override_fn" not in MixedPrecisionPolicy.__dataclass_fields__:
        return "MixedPrecisionPolicy.param_dtype_override_fn"
    called = [op.method for op in case.schedule if op.method]
    called += ["finalize_backward"] if case.finalize is not None else []
    return next((f"FSDPModule.{n}" for n in (*names, *called) if not hasattr(FSDPModule, n)), None)


def register_methods(found: Facts, model: nn.Module) -> None:
    """``register_fsdp_forward_method`` for modules that are called by another method than forward.

    "If module is not an FSDPModule, then this is a no-op" (its docstring).
    """
    for path, block in found.modules.items():
        if isinstance(block, Block) and block.method != "forward":
            register_fsdp_forward_method(model.get_submodule(path), block.method)


def materialize(
    case: Case, found: Facts, model: nn.Module, plain: nn.Module, device: torch.device
) -> None:
    """Gives a model that was wrapped on the meta device memory, and the values of ``plain``.

    ``to_empty`` makes a new parameter at every place that has it, so ties are made again.
    Offloaded parameters are wanted on the CPU by then (``_validate_cpu_offload_params`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """
    offloaded = {
        fqn
        for fqn, owner in found.owners.items()
        if owner is not None and case.wrap[owner].offload is not None
    }
    on_host = {model.get_parameter(fqn) for fqn in offloaded}
    for module in reversed(list(model.modules())):
        has_offloaded = not on_host.isdisjoint(module.parameters(recurse=False))
        module.to_empty(device="cpu" if has_offloaded else device, recurse=False)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    for fqn in found.parameters:
        parameter = model.get_parameter(fqn)
        if fqn not in offloaded and parameter.device.type != device.type:
            _register(
                model, fqn, nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
            )
    for tie in case.ties:
        _register(model, tie.parameter, model.get_parameter(tie.source))
    with torch.no_grad():
        for name, values in plain.state_dict().items():
            path, _, last = name.rpartition(".")
            tensor = getattr(model.get_submodule(path), last)
            if isinstance(tensor, DTensor):
                values = distribute_tensor(
                    values, tensor.device_mesh, tensor.placements, src_data_rank=None
                )
            tensor.copy_(values)


def _register(model: nn.Module, fqn: str, parameter: nn.Parameter) -> None:
    path, _, name = fqn.rpartition(".")
    model.get_submodule(path).register_parameter(name, parameter)


def set_divide_factor(
    module: FSDPModule, factor: float, shard_size: int, device: torch.device
) -> None:
    """Where gloo cannot multiply, ``set_force_sum_reduction_for_comms`` makes it a sum and a
    division.
    """
    module.set_gradient_divide_factor(factor)
    if device.type == "cpu" and multiplies(factor, shard_size):
        module.set_force_sum_reduction_for_comms(True)


def hand_over_event(case: Case, model: nn.Module, device: torch.device) -> None:
    """Records an event of what ran on the current stream until now and gives it to every FSDP
    root.

    "This API should be called with a new event each iteration" (``set_post_optim_event``). Work on
    the CPU is done when the step returns, so an event there need not be recorded, and cannot be.
    """
    event = torch.Event(device.type)
    if device.type == "cuda":
        event.record()
    for root in set(root_groups(case)):
        wrapped(model, case.wrap[root].modules[0]).set_post_optim_event(event)


def compile_root(case: Case, model: nn.Module) -> None:
    """``module.compile()`` with caches that no other case has filled."""
    torch._dynamo.reset()
    # The cache on disk goes by what is traced, and not by what a mend makes of it.
    torch._functorch.config.enable_autograd_cache = False
    model.compile(backend=case.compile)
