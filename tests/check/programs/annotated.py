"""Plain parameters that ``spmd_types`` annotates, as torchtitan has them by default."""

import contextlib

import spmd_types as spmd
import torch
from spmd_types.checker import typecheck
from torch import nn
from torch.distributed.fsdp import DataParallelMeshDims, fully_shard


class Model(nn.Module):
    tp = None

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        y = x if self.tp is None else spmd.convert(x, self.tp, src=spmd.I, dst=spmd.R)
        y = self.down(torch.tanh(self.up(y)))
        y = y if self.tp is None else spmd.all_reduce(y, self.tp, src=spmd.P, dst=spmd.I)
        return self.head(x + y)


def build():
    return Model()


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(16, (2, 6), generator=generator)


def parallelize(model, mesh):
    tp, rank = mesh.get_group("tp"), mesh.get_local_rank("tp")
    model.tp = tp
    for linear, dim in ((model.up, 0), (model.down, 1)):
        part = linear.weight.detach().chunk(mesh["tp"].size(), dim)[rank].clone()
        linear.weight = nn.Parameter(part)
        spmd.assert_type(linear.weight, {tp: spmd.S(dim)})
    for module in (model.embedding, model.head):
        spmd.assert_type(module.weight, {tp: spmd.I})
    with spmd.set_current_mesh(mesh):
        fully_shard(model, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp_shard"))
    model.mesh = mesh


def train_step(model, optimizer, batches):
    for tokens in batches:
        mesh = getattr(model, "mesh", None)
        with contextlib.ExitStack() as stack:
            if mesh is not None:
                stack.enter_context(spmd.set_current_mesh(mesh))
                stack.enter_context(typecheck())
                spmd.assert_type(tokens, {mesh.get_group("dp_shard"): spmd.V, model.tp: spmd.I})
            logits = model(tokens)[:, :-1].flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
            (loss / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
