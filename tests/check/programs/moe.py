"""A mixture of experts, replicated or with the experts sharded over the ranks."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

EXPERTS, WIDTH = 4, 8


class Experts(nn.Module):
    """All experts in one tensor; ``mesh`` is what its first dimension is sharded over."""

    mesh = None

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x, weights):
        """``weights`` are of each token for each expert, zero for those it does not choose."""
        if self.mesh is None:
            return apply(x, weights, self.up, self.down)
        group, rank = self.mesh.get_group(), self.mesh.get_local_rank()
        up, down = self.up.to_local(), self.down.to_local()
        x, weights = torch.cat(all_gather(x, group)), torch.cat(all_gather(weights, group))
        mine = weights.chunk(self.mesh.size(), -1)[rank]
        return SumAndSplit.apply(apply(x, mine, up, down), group)


def apply(x, weights, up, down):
    hidden = F.gelu(torch.einsum("td,edh->teh", x, up))
    return torch.einsum("teh,ehd,te->td", hidden, down, weights)


class SumAndSplit(torch.autograd.Function):
    """Adds up what the experts of all ranks give, and keeps this rank's tokens."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)
        return torch.cat(parts), None


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("counts", torch.zeros(EXPERTS), persistent=False)

    def forward(self, x):
        tokens = self.norm(x).flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        chosen = (scores + self.bias).topk(2).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = scores * mask
        weights = weights / weights.sum(-1, keepdim=True)
        self.counts += mask.detach().sum(0)
        balance = EXPERTS * (scores.mean(0) * mask.mean(0)).sum()
        out = self.experts(tokens, weights) + self.shared(tokens)
        return x + out.view_as(x), balance


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, tokens):
        x, balance = self.embedding(tokens), 0.0
        for layer in self.layers:
            x, of_layer = layer(x)
            balance = balance + of_layer
        return {"logits": self.head(x), "balance": balance}


class Few(nn.Module):
    """Experts are modules, and those that no token chooses are not called."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        scores = self.router(x).softmax(-1)
        best, chosen = scores.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(-1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, None])
        return x + out


def build():
    torch.manual_seed(3)
    return Mixture()


def build_few():
    return Few()


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(16, (2, 6), generator=generator)


def rows(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, WIDTH, generator=generator)


def loss(outputs, tokens):
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, tokens[:, 1:].flatten()) + 0.01 * outputs["balance"]


def apply_fsdp(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def apply_ddp(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh)


def apply_ddp_unused(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh, find_unused_parameters=True)


def apply_ep(model, mesh):
    """Experts are sharded over the ranks, and FSDP shards the rest."""
    experts = set()
    for layer in model.layers:
        shard_experts(layer.experts, mesh)
        experts |= set(layer.experts.parameters())
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=experts)
    fully_shard(model, mesh=mesh, ignored_params=experts)


def shard_experts(module, mesh):
    """Each rank's loss is a mean over its tokens, of which the gradient shall be the mean."""
    module.mesh = mesh
    for name, parameter in list(module.named_parameters()):
        sharded = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
        sharded.register_hook(lambda gradient: gradient / mesh.size())
        setattr(module, name, sharded)


def balance_experts(model):
    """Without gradients: what was chosen more often than the mean becomes less likely."""
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    parallel = plain is not model or isinstance(model, FSDPModule)
    for layer in plain.layers:
        counts = layer.counts.clone()
        if parallel:
            dist.all_reduce(counts)
        layer.bias += 0.05 * (counts.mean() - counts).sign()
        layer.counts.zero_()


def train_step(model, optimizer, batches):
    for tokens in batches:
        (loss(model(tokens), tokens) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_balanced(model, optimizer, batches):
    train_step(model, optimizer, batches)
    balance_experts(model)


def step_no_sync(model, optimizer, batches):
    for i, tokens in enumerate(batches):
        waits = isinstance(model, DistributedDataParallel) and i < len(batches) - 1
        with model.no_sync() if waits else contextlib.nullcontext():
            (loss(model(tokens), tokens) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
