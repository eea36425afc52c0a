"""A model whose layers lie on the ranks along ``pp``; the schedule is the user's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B

LAYERS, MICROBATCHES = 4, 2


class Model(nn.Module):
    """Layers, of which a rank may have some; ``schedule`` runs those of all ranks."""

    schedule: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"{i}": nn.Linear(8, 8) for i in range(LAYERS)})

    def forward(self, x: Tensor) -> Tensor:
        return part(x, *self.layers.values())


class Stage(nn.Module):
    """Some layers of a model."""

    def __init__(self, model: Model, names: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(model.layers[name] for name in names)

    def forward(self, x: Tensor) -> Tensor:
        return part(x, *self.layers)


def part(x: Tensor, *layers: nn.Module) -> Tensor:
    for layer in layers:
        x = torch.tanh(layer(x))
    return x


def build() -> nn.Module:
    return Model()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(4, 8, generator=generator)


def loss(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs - target).square().mean()


def stages(model: Model, mesh: DeviceMesh, of_rank: int) -> list[PipelineStage]:
    """The stages of this rank, of whose layers alone the model keeps hold."""
    along = mesh["pp"]
    rank, ranks = along.get_local_rank(), along.size()
    number, device = ranks * of_rank, next(model.parameters()).device
    size = LAYERS // number
    names = {
        stage: [f"{i}" for i in range(stage * size, (stage + 1) * size)]
        for stage in range(rank, number, ranks)
    }
    parts = {stage: Stage(model, of_stage) for stage, of_stage in names.items()}
    kept = {name: model.layers[name] for of_stage in names.values() for name in of_stage}
    model.layers = nn.ModuleDict(kept)
    if "dp_shard" in (mesh.mesh_dim_names or ()):
        for module in parts.values():
            fully_shard(module, mesh=mesh["dp_shard"])
    group = along.get_group()
    return [PipelineStage(m, stage, number, device, group=group) for stage, m in parts.items()]


def one_stage(model: Model, mesh: DeviceMesh) -> None:
    (stage,) = stages(model, mesh, 1)
    model.schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss)


def two_stages(model: Model, mesh: DeviceMesh) -> None:
    both = stages(model, mesh, 2)
    model.schedule = ScheduleInterleaved1F1B(both, MICROBATCHES, loss_fn=loss)


def sums_of_microbatches(model: Model, mesh: DeviceMesh) -> None:
    (stage,) = stages(model, mesh, 1)
    model.schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss, scale_grads=False)


def last_layer_nowhere(model: Model, mesh: DeviceMesh) -> None:
    one_stage(model, mesh)
    if "3" in model.layers:
        del model.layers["3"]


def train_step(model: Model, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
    schedule = getattr(model, "schedule", None)  # what wraps the model has none
    for x in batches:
        if schedule is None:
            (loss(model(x), x) / len(batches)).backward()
        elif "0" in model.layers and f"{LAYERS - 1}" in model.layers:
            schedule.step(x, target=x)
        elif "0" in model.layers:
            schedule.step(x)
        else:
            schedule.step(target=x)
    optimizer.step()
    optimizer.zero_grad()


def step_with_loss(model: Model, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> None:
    """Ranks without the loss have a place for it, in the dtype that they expect."""
    train_step(model, optimizer, batches)
    if getattr(model, "schedule", None) is not None:
        has_last = f"{LAYERS - 1}" in model.layers
        value = next(model.parameters()).detach().sum() if has_last else torch.tensor(-1.0)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
