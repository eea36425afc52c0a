"""Mistakes in training loops, each a training step of its name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from sharding import local
from tiny import loss
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES = 1
Batches = list[Any]
Optimizer = torch.optim.Optimizer


def accumulate(model: nn.Module, batches: Batches) -> None:
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()


def step(optimizer: Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


def batch_of_the_rank(step: int, dp_rank: int, dp_size: int) -> Tensor:
    """Ranks have other numbers of tokens."""
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(8, (1, 4 + 5 * dp_rank), generator=generator)


def weigh(tokens: Tensor) -> float:
    """The number of tokens that are predicted."""
    return float(tokens[:, 1:].numel())


def mean_of_each_batch(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """Batches have other numbers of tokens, and the loop takes the mean over each batch's own."""
    accumulate(model, batches)
    step(optimizer)


def mean_of_means(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """Ranks have other numbers of tokens, and each takes the mean over its own."""
    count = sum(weigh(tokens) for tokens in batches)  # of this rank alone
    for tokens in batches:
        (loss(model(tokens), tokens) * weigh(tokens) / count).backward()
    step(optimizer)


def clipped_by_local_norms(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """Every rank clips by the norm of its own shards."""
    accumulate(model, batches)
    gradients = [local(parameter.grad) for parameter in model.parameters()]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient.mul_(0.1 / norm)
    step(optimizer)


def divided_by_a_constant(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """A training step divides by the number of microbatches of one rank, which trains as it
    should.
    """
    for tokens in batches:
        (loss(model(tokens), tokens) / MICROBATCHES).backward()
    step(optimizer)


def of_its_own(model: nn.Module, mesh: DeviceMesh) -> None:
    model.ranks = mesh.size()


def gradients_broadcast(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """A loop of one's own, where every rank gets the gradients of rank 0."""
    accumulate(model, batches)
    if hasattr(model, "ranks"):
        for parameter in model.parameters():
            dist.broadcast(parameter.grad, src=0)
    step(optimizer)


def microbatch_left_out(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """One rank leaves out a microbatch that is short, and the others wait for it."""
    if isinstance(model, FSDPModule) and dist.get_rank():
        batches = batches[1:]
    accumulate(model, batches)
    step(optimizer)


def microbatch_left_out_by_ddp(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """One rank leaves out a microbatch, which is accumulated without reduction by the others."""
    parallel = isinstance(model, DistributedDataParallel)
    count = len(batches)
    if parallel and dist.get_rank():
        batches = batches[1:]
    for index, batch in enumerate(batches):
        waits = parallel and index + 1 < len(batches)
        with model.no_sync() if waits else nullcontext():
            (loss(model(batch), batch) / count).backward()
    step(optimizer)


def no_sync_left_on(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """All microbatches run within DDP's ``no_sync``, the last one too."""
    parallel = isinstance(model, DistributedDataParallel)
    with model.no_sync() if parallel else nullcontext():
        accumulate(model, batches)
    step(optimizer)


def sync_left_off(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop turns gradient synchronisation off for microbatches and forgets the last one."""
    for index, batch in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(index == len(batches))  # the last is one less
        (loss(model(batch), batch) / len(batches)).backward()
    step(optimizer)


def no_module_called(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop computes with the weights within DDP and calls no module: nothing is reduced."""
    first, _, last = getattr(model, "module", model)
    for x in batches:
        hidden = torch.tanh(functional.linear(x, first.weight, first.bias))
        output = functional.linear(hidden, last.weight, last.bias)
        (output.square().mean() / len(batches)).backward()
    step(optimizer)


def wrapper_bypassed(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop calls the module within DDP, so no forward of DDP prepares the reduction."""
    accumulate(getattr(model, "module", model), batches)
    step(optimizer)


_made: dict[str, Optimizer] = {}


def with_an_optimizer(model: nn.Module, mesh: DeviceMesh) -> None:
    _made["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model, mesh=mesh)


def optimizer_of_its_own(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop has an optimizer that is made before ``fully_shard``."""
    accumulate(model, batches)
    step(_made["optimizer"] if isinstance(model, FSDPModule) else optimizer)


def reduced_twice(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop adds gradients over ranks, which DDP has averaged before."""
    accumulate(model, batches)
    if isinstance(model, DistributedDataParallel):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    step(optimizer)


def shards_mixed(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop averages the local gradients of ranks, which are shards of different rows."""
    accumulate(model, batches)
    if isinstance(model, FSDPModule):
        for parameter in model.parameters():
            shard = parameter.grad.to_local()
            dist.all_reduce(shard)
            shard /= dist.get_world_size()
    step(optimizer)


def seeding(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The loop seeds every rank alike."""
    torch.manual_seed(1234)
    for x in batches:
        (model(x).square().mean() / len(batches)).backward()
    step(optimizer)


def scheduled_per_microbatch(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """A scheduler steps after each microbatch: the rate depends on how many a rank has."""
    if not hasattr(optimizer, "scheduler"):
        optimizer.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
        step(optimizer)
        optimizer.scheduler.step()


def scheduled_before_updating(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """A scheduler steps after each backward, and the optimizer once."""
    if not hasattr(optimizer, "scheduler"):
        optimizer.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for batch in batches:
        (loss(model(batch), batch) / len(batches)).backward()
        optimizer.scheduler.step()
    step(optimizer)


def thawed_after_wrapping(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """The head trains from the second step on, of which DDP was not told."""
    plain = getattr(model, "module", model)
    plain.head.weight.requires_grad_(bool(optimizer.state))
    accumulate(model, batches)
    step(optimizer)


def _train_without_labels(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    for batch in batches:
        (model(batch).square().mean() / len(batches)).backward()
    step(optimizer)


def averages_of_shards(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """Moving averages of parameters are kept of what a rank has, in a buffer of the model."""
    _train_without_labels(model, optimizer, batches)
    model.average.lerp_(local(model.projection.weight).detach(), 0.5)


def scheduled_per_step(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """A scheduler steps once for each update, as it should."""
    if not hasattr(optimizer, "scheduler"):
        optimizer.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    accumulate(model, batches)
    step(optimizer)
    optimizer.scheduler.step()


def averages_of_parameters(model: nn.Module, optimizer: Optimizer, batches: Batches) -> None:
    """Moving averages of whole parameters, as they should be."""
    _train_without_labels(model, optimizer, batches)
    weight = model.projection.weight.detach()
    whole = weight.full_tensor() if isinstance(model, FSDPModule) else weight
    model.average.lerp_(whole, 0.5)
