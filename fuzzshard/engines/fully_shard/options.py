"""What a Case's options mean in calls of ``fully_shard`` and of ``FSDPModule``'s methods."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts


def lacking(case: Case) -> str | None:
    """A method that the case needs and that this version of torch does not have, if there is
    one.
    """
    told = (word for group in case.wrap for word in group.words())
    names = (word.call.partition("(")[0] for word in told if not word.of_several)
    policies = (group.policy for group in case.wrap)
    for field in (field for policy in policies if policy for field in policy.new_fields()):
        if field not in MixedPrecisionPolicy.__dataclass_fields__:
            return f"MixedPrecisionPolicy.{field}"
    called = [op.method for op in case.schedule if op.method]
    called += ["finalize_backward"] if case.finalize is not None else []
    return next((f"FSDPModule.{n}" for n in (*names, *called) if not hasattr(FSDPModule, n)), None)


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
        if owner is not None and case.wrap[owner].does("offloads")
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


def forget_compiled() -> None:
    """Compile with caches that no other case has filled."""
    torch._dynamo.reset()
    # The cache on disk goes by what is traced, and not by what a mend makes of it.
    torch._functorch.config.enable_autograd_cache = False
