"""Mistakes in how a model is made parallel, each a function of its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from tiny import Tiny
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fuzzshard.subject.vary import blocks_of


def correct(model: nn.Module, mesh: DeviceMesh, **options: Any) -> None:
    """No mistake: what the others should have done."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, **options)


def root_only(model: nn.Module, mesh: DeviceMesh) -> None:
    """No mistake either."""
    fully_shard(model, mesh=mesh)


def by_ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """No mistake either."""
    return DistributedDataParallel(model, device_mesh=mesh)


def mixed_precision(model: nn.Module, mesh: DeviceMesh) -> None:
    """No mistake: ``fully_shard`` in bfloat16, for the blocks of a model and its root."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*blocks_of(model).values(), model):
        fully_shard(module, mesh=mesh, mp_policy=policy)


def behind_a_key_bias(model: nn.Module, mesh: DeviceMesh) -> None:
    """The head's gradients are not reduced, in a model of which one gradient is nothing but
    rounding.
    """
    fully_shard(model, mesh=mesh, ignored_params=set(model.head.parameters()))


def buffer_lost_by_meta(model: nn.Module, mesh: DeviceMesh) -> None:
    """``to_empty`` leaves a buffer without values that no checkpoint has."""
    through_meta(model, mesh)
    fully_shard(model, mesh=mesh)


def tie_lost_by_meta(model: nn.Module, mesh: DeviceMesh) -> None:
    """``to_empty`` gives every module a parameter of its own, tied or not.

    The values are loaded again, so that the first outputs are right.
    """
    through_meta(model, mesh)
    correct(model, mesh)


def through_meta(model: nn.Module, mesh: DeviceMesh) -> None:
    values = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("meta")
    model.to_empty(device=mesh.device_type)
    for buffer in model.buffers():
        buffer.zero_()  # what memory holds is not the same in every run
    model.load_state_dict(values)


def buffer_of_the_rank(model: nn.Module, mesh: DeviceMesh) -> None:
    """A table is drawn anew after the ranks were seeded each for itself."""
    torch.manual_seed(17 + dist.get_rank())
    model.projection.copy_(torch.randn(4, 4))
    fully_shard(model, mesh=mesh)


def divided_at_the_root(model: nn.Module, mesh: DeviceMesh) -> None:
    """A divide factor set on the root is one of the root's own parameters, not of the blocks'."""
    correct(model, mesh)
    model.set_gradient_divide_factor(4.0)
    model.set_force_sum_reduction_for_comms(True)


def divided_by_one(model: nn.Module, mesh: DeviceMesh) -> None:
    """Gradients are to be divided by the number of ranks, and someone says: by one."""
    correct(model, mesh)
    divide_by_one(model)


def summed_in_bfloat16(model: nn.Module, mesh: DeviceMesh) -> None:
    """In mixed precision gradients are summed, and not averaged."""
    mixed_precision(model, mesh)
    divide_by_one(model)


def divide_by_one(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def factor_that_gloo_refuses(model: nn.Module, mesh: DeviceMesh) -> None:
    """A divide factor that is no number of ranks, which gloo cannot apply within a
    reduce-scatter.
    """
    fully_shard(model, mesh=mesh).set_gradient_divide_factor(4.0)


def build_on_meta() -> nn.Module:
    with torch.device("meta"):
        return Tiny()


def drawn_after_sharding(model: nn.Module, mesh: DeviceMesh) -> None:
    """Values are drawn once the model is sharded: every rank draws the same ones for its
    shards.
    """
    model.to("meta")
    correct(model, mesh)
    model.to_empty(device=mesh.device_type)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter.to_local())


def evaluation_mode(model: nn.Module, mesh: DeviceMesh) -> None:
    """The model is in evaluation mode after its checkpoint was loaded: there is no dropout."""
    model.eval()
    fully_shard(model, mesh=mesh)


def frozen_by_name(model: nn.Module, mesh: DeviceMesh) -> None:
    """The base is frozen by a name that the head has, too: the plain model trains it."""
    for name, parameter in model.named_parameters():
        if name.startswith("h"):
            parameter.requires_grad_(False)
    correct(model, mesh)


def method_bypassed(model: nn.Module, mesh: DeviceMesh) -> None:
    """A method of a block is called, and not the block: ``fully_shard`` does not hear of it."""
    fully_shard(model.block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def mixed_dtypes(model: nn.Module, mesh: DeviceMesh) -> None:
    """Norms in bfloat16 and adapters in float32 train in one group, which torch refuses."""
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def nothing_loaded(model: nn.Module, mesh: DeviceMesh) -> None:
    """Names in the checkpoint have a prefix, and ``strict=False`` keeps quiet about it."""
    checkpoint = {f"_orig_mod.{name}": v.clone() for name, v in model.state_dict().items()}
    draw(model, seed=1)
    model.load_state_dict(checkpoint, strict=False)
    correct(model, mesh)


def ranks_initialised_apart(model: nn.Module, mesh: DeviceMesh) -> None:
    """Ranks draw other initial values, and each keeps its own shard of them."""
    draw(model, seed=dist.get_rank())
    correct(model, mesh)


def draw(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def replicas_not_broadcast(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Ranks draw other initial values, and DDP is told not to give them those of rank 0."""
    torch.manual_seed(dist.get_rank())
    model.head.reset_parameters()
    return DistributedDataParallel(model, device_mesh=mesh, init_sync=False)


def replicas_forgotten(model: nn.Module, mesh: DeviceMesh) -> None:
    """With replicas, blocks are sharded over one dimension of the mesh only."""
    correct(model, mesh["dp_shard"])


def parameters_ignored(model: nn.Module, mesh: DeviceMesh) -> None:
    """A parameter that ``fully_shard`` shall ignore is one whose gradient it does not reduce."""
    correct(model, mesh, ignored_params=set(model.norm.parameters()))


def root_not_wrapped(model: nn.Module, mesh: DeviceMesh) -> None:
    """Blocks are sharded, the root is not: nothing reduces the gradients of its own
    parameters.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)


def parameter_replaced(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The head gets a new parameter after DDP, which reduces the old one, has been made."""
    wrapped = DistributedDataParallel(model, device_mesh=mesh, find_unused_parameters=True)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return wrapped


def sharded_parameter_replaced(model: nn.Module, mesh: DeviceMesh) -> None:
    """The head gets a new parameter after ``fully_shard``: a whole one, where shards are due."""
    correct(model, mesh)
    model.head.weight = nn.Parameter(model.head.weight.full_tensor().detach().clone())


class FasterLinear(nn.Module):
    """A linear layer with another kernel."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def tie_lost_by_replacing(model: nn.Module, mesh: DeviceMesh) -> None:
    """The head is replaced by another one, with a copy of the weight."""
    model.head = FasterLinear(model.head)
    correct(model, mesh)


def tie_lost_by_sharding(model: nn.Module, mesh: DeviceMesh) -> None:
    """The embedding and the head that has its weight are sharded one after the other."""
    fully_shard(model.embedding, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model.head, mesh=mesh)
    fully_shard(model, mesh=mesh)


def ranks_seeded_alike(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Every rank is seeded with the same number, so that all drop out alike."""
    torch.manual_seed(1234)
    return by_ddp(model, mesh)


def stale_gradients(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """A hook of DDP hands over the gradients of the step before, to overlap more."""
    wrapped = DistributedDataParallel(model, device_mesh=mesh)
    wrapped.register_comm_hook({}, one_step_late)
    return wrapped


def one_step_late(last, bucket):  # torch compares annotations with its types: no strings
    buffer = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(buffer)
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        current = gradient.clone()
        gradient.copy_(last.get(parameter, current))
        last[parameter] = current
    result = torch.futures.Future()
    result.set_result(buffer)
    return result


_early: list[torch.optim.Optimizer] = []


def optimizer_too_early(model: nn.Module, mesh: DeviceMesh) -> None:
    """The optimizer is made before ``fully_shard``, so it has parameters that nobody uses."""
    _early.append(torch.optim.AdamW(model.parameters(), lr=1e-3))
    correct(model, mesh)


def early_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return _early.pop() if _early else torch.optim.AdamW(parameters, lr=1e-3)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Lars(torch.optim.Optimizer):
    """Gradient descent with a rate for each parameter, as LARS: it scales each update to the norm
    of the parameter, and takes that of its shard.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-2})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                value, gradient = local(parameter), local(parameter.grad)
                trust = (value.norm() + 0.1) / (gradient.norm() + 0.1)
                value.sub_(group["lr"] * trust * gradient)


def lars(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return Lars(parameters)


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2)


def thawed_by_wrapping(model: nn.Module, mesh: DeviceMesh) -> None:
    """What is frozen in the plain model trains."""
    model.requires_grad_(True)
    correct(model, mesh)


def build_frozen() -> nn.Module:
    """The head is frozen."""
    model = Tiny()
    model.head.requires_grad_(False)
    return model


def part_in_evaluation(model: nn.Module, mesh: DeviceMesh) -> None:
    """A frozen part is in evaluation mode, and in the plain model it drops out."""
    model[0].eval()
    fully_shard(model, mesh=mesh)


def build_with_frozen_part() -> nn.Module:
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    return nn.Sequential(frozen.requires_grad_(False), nn.Linear(4, 4))


def averages_of_shards_made(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)
    model.average = local(model.projection.weight).detach().clone()
