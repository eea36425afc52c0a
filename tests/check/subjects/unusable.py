"""What the command can not check, each with one clear line about it."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

_calls = itertools.count()


class Noisy(nn.Module):
    """Another output at each call, whatever the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * (1 + 0.01 * next(_calls))


class Scaled(nn.Module):
    """A temperature of no dimension, as CLIP has one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


def build_scaled() -> nn.Module:
    return Scaled()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def build_that_raises() -> nn.Module:
    raise FileNotFoundError("model.yaml")


def build_of_a_library() -> nn.Module:
    try:
        raise RuntimeError("no operator nms")
    except RuntimeError as error:
        raise ModuleNotFoundError("cannot import 'Llama'") from error


def build_nothing() -> None:
    return None


def build_frozen() -> nn.Module:
    return build().requires_grad_(False)


def build_noisy() -> nn.Module:
    return Noisy()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 4, generator=generator)


def batch_of_another_size(step: int, dp_rank: int, dp_size: int) -> Tensor:
    return batch(step, dp_rank, dp_size)[:, :3]


def batch_with_another_name(step: int, dp_rank: int, dp_size: int) -> dict[str, Tensor]:
    return {"images": batch(step, dp_rank, dp_size)}


def batch_that_raises(step: int, dp_rank: int, dp_size: int) -> Tensor:
    raise FileNotFoundError("data.bin")


def batch_without_arguments() -> Tensor:
    return torch.randn(3, 4)


def batch_drawn_anew(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator()
    generator.seed()
    return torch.randn(3, 4, generator=generator)


def loss_of_rows(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.square().mean(dim=1)


def parallelize_that_raises_on_one_rank(model: nn.Module, mesh: DeviceMesh) -> None:
    if dist.get_rank() == 1:
        raise OSError("disk quota exceeded")
    fully_shard(model, mesh=mesh)


def parallelize_that_waits(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh)
    if dist.get_rank() == 0:
        dist.barrier()


def batch_of_other_ranks(step: int, dp_rank: int, dp_size: int) -> Tensor:
    return batch(step, dp_rank, dp_size)[:, : 4 - dp_rank]


def parallelize_ignoring_scalars(model: nn.Module, mesh: DeviceMesh) -> None:
    """What the refusal of a scalar parameter advises, with ``step_reducing_scalars``."""
    scalars = {parameter for parameter in model.parameters() if not parameter.dim()}
    fully_shard(model, mesh=mesh, ignored_params=scalars)


def step_without_scalars(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]
) -> None:
    for batch in batches:
        (model(batch).square().mean() / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_reducing_scalars(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]
) -> None:
    for batch in batches:
        (model(batch).square().mean() / len(batches)).backward()
    for parameter in model.parameters():
        if not parameter.dim():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
