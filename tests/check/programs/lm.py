"""A language model, wrapped and trained as users of torchtitan do it."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, HEADS, LENGTH, PADDING = 32, 16, 4, 8, -100


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.wv = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (w(x).unflatten(-1, (-1, WIDTH // HEADS)) for w in (self.wq, self.wk, self.wv))
        q, k, v = (rotate(q, cos, sin), rotate(k, cos, sin), v.transpose(1, 2))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = F.dropout(mixed, self.dropout, self.training)
        return self.wo(mixed.transpose(1, 2).flatten(2))


def rotate(x, cos, sin):
    x = x.transpose(1, 2)
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention, self.feed_forward = Attention(dropout), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, tied=False, dropout=0.0):
        super().__init__()
        self.tied = tied
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block(dropout) for i in range(2)})
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        cos, sin = rotations()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def init_weights(self):
        with torch.no_grad():
            self.cos, self.sin = (t.to(self.cos.device) for t in rotations())
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters"):
                module.reset_parameters()
        if self.tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens, labels=None):
        x = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        cos, sin = self.cos[:LENGTH], self.sin[:LENGTH]
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        return self.output(self.norm(x)) if self.output is not None else x


def rotations():
    size = WIDTH // HEADS // 2
    with torch.device("cpu"):
        angles = torch.outer(torch.arange(2.0 * LENGTH), 100.0 ** -(torch.arange(size) / size))
    return angles.cos(), angles.sin()


def build():
    return Transformer()


def build_tied():
    return Transformer(tied=True)


def build_dropout():
    return Transformer(dropout=0.2)


def build_meta():
    with torch.device("meta"):
        return Transformer(tied=True)


def batch(step, dp_rank, dp_size):
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(VOCABULARY, (2, LENGTH), generator=generator)


def batch_padded(step, dp_rank, dp_size):
    """Sequences end early, as documents do, and padding is no label."""
    tokens = batch(step, dp_rank, dp_size)
    labels = tokens.clone()
    labels[0, 3 + (step + 3 * dp_rank) % 5 :] = PADDING
    return {"tokens": tokens, "labels": labels}


def loss(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def loss_padded(logits, batch):
    labels = batch["labels"][:, 1:].flatten()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels, ignore_index=PADDING)


def weight_padded(batch):
    return float((batch["labels"][:, 1:] != PADDING).sum())


def wrap_layers(model, mesh, **options):
    last = len(model.layers) - 1
    for i, layer in enumerate(model.layers.values()):
        fully_shard(layer, mesh=mesh, reshard_after_forward=i < last, **options)
    fully_shard(model, mesh=mesh, **options)


def apply_fsdp(model, mesh):
    wrap_layers(model, mesh)


def apply_grouped(model, mesh):
    """What is needed last is a group of its own, as in torchtitan."""
    fully_shard(model.tok_embeddings, mesh=mesh)
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard([model.norm, model.output], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)


def apply_prefetch(model, mesh):
    wrap_layers(model, mesh)
    layers = list(model.layers.values())
    model.set_modules_to_forward_prefetch([layers[0]])
    layers[0].set_modules_to_forward_prefetch([layers[1]])
    layers[1].set_modules_to_backward_prefetch([layers[0]])


def apply_meta(model, mesh):
    wrap_layers(model, mesh)
    model.to_empty(device="cpu")
    model.init_weights()


def apply_checkpointing(model, mesh):
    for name, layer in model.layers.items():
        model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=True)
    wrap_layers(model, mesh)


def apply_compile(model, mesh):
    for layer in model.layers.values():
        layer.compile(backend="aot_eager", fullgraph=True)
    wrap_layers(model, mesh)


def apply_mixed_precision(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    wrap_layers(model, mesh, mp_policy=policy)


def apply_ddp(model, mesh):
    return DistributedDataParallel(model, device_mesh=mesh, gradient_as_bucket_view=True)


def apply_tp(model, mesh):
    """Tensor and sequence parallelism, and FSDP along the other axis if there is one."""
    along = mesh["tp"]
    gather = {"input_layouts": (Shard(1), None, None)}
    gather |= {"desired_input_layouts": (Replicate(), None, None)}
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for name in model.layers:
        plan |= {
            f"layers.{name}.attention_norm": SequenceParallel(),
            f"layers.{name}.attention": PrepareModuleInput(**gather),
            f"layers.{name}.attention.wq": ColwiseParallel(),
            f"layers.{name}.attention.wk": ColwiseParallel(),
            f"layers.{name}.attention.wv": ColwiseParallel(),
            f"layers.{name}.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            f"layers.{name}.ffn_norm": SequenceParallel(),
            f"layers.{name}.feed_forward.w1": ColwiseParallel(input_layouts=Shard(1)),
            f"layers.{name}.feed_forward.w3": ColwiseParallel(input_layouts=Shard(1)),
            f"layers.{name}.feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
    parallelize_module(model, along, plan)
    if "dp_shard" in mesh.mesh_dim_names:
        wrap_layers(model, mesh["dp_shard"])


class ColumnThenRow(torch.autograd.Function):
    """Megatron's f: nothing in the forward, a sum over ranks in the backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOfRanks(torch.autograd.Function):
    """Megatron's g: a sum over ranks in the forward, nothing in the backward."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def apply_megatron(model, mesh):
    """Feed-forward layers by hand: columns of w1 and w3, rows of w2, are on this rank."""
    group = mesh["tp"].get_group()
    for layer in model.layers.values():
        plan = {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()}
        parallelize_module(layer.feed_forward, mesh["tp"], plan)
        for linear in layer.feed_forward.children():
            linear._forward_pre_hooks.clear()
            linear._forward_hooks.clear()
        layer.feed_forward.forward = by_hand(layer.feed_forward, group)


def by_hand(module, group):
    def forward(x):
        x = ColumnThenRow.apply(x, group)
        w1, w2, w3 = (linear.weight.to_local() for linear in (module.w1, module.w2, module.w3))
        hidden = F.silu(F.linear(x, w1)) * F.linear(x, w3)
        return SumOfRanks.apply(F.linear(hidden, w2), group)

    return forward


def apply_pp(model, mesh):
    along = mesh["pp"]
    if along.get_local_rank() == 0:
        model.layers, model.output, model.norm = (
            nn.ModuleDict({"0": model.layers["0"]}),
            None,
            None,
        )
    else:
        model.layers, model.tok_embeddings = nn.ModuleDict({"1": model.layers["1"]}), None
    stage = PipelineStage(
        model, along.get_local_rank(), 2, torch.device("cpu"), group=along.get_group()
    )
    model.schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss)


def step_pp(model, optimizer, batches):
    """A schedule divides all that has accumulated, so it has one batch, of two microbatches."""
    for tokens in batches:
        if not hasattr(model, "schedule"):
            (loss(model(tokens), tokens) / len(batches)).backward()
        elif model.tok_embeddings is not None:
            model.schedule.step(tokens)
        else:
            model.schedule.step(target=tokens)
    finish(optimizer)


def optimizer(parameters):
    """Matrices decay, vectors do not."""
    wide, narrow = [], []
    for parameter in parameters:
        (wide if parameter.dim() > 1 else narrow).append(parameter)
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
    made = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    made.scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1, (step + 1) / 3))
    return made


def finish(optimizer):
    optimizer.step()
    if hasattr(optimizer, "scheduler"):
        optimizer.scheduler.step()
    optimizer.zero_grad()


def train_step(model, optimizer, batches):
    """Gradients are reduced once, and clipped by the norm of all of them."""
    for i, tokens in enumerate(batches):
        last = i == len(batches) - 1
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        ddp = isinstance(model, DistributedDataParallel)
        with model.no_sync() if ddp and not last else contextlib.nullcontext():
            (loss(model(tokens), tokens) / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    finish(optimizer)


def step_unclipped(model, optimizer, batches):
    for tokens in batches:
        (loss(model(tokens), tokens) / len(batches)).backward()
    finish(optimizer)


def step_padded(model, optimizer, batches):
    """Every label of the global batch has the same weight."""
    count = torch.tensor(sum(weight_padded(batch) for batch in batches))
    dist.all_reduce(count)
    count /= dist.get_world_size()
    for inputs in batches:
        logits = model(**inputs)[:, :-1].flatten(0, 1)
        labels = inputs["labels"][:, 1:].flatten()
        total = F.cross_entropy(logits, labels, ignore_index=PADDING, reduction="sum")
        (total / count).backward()
    finish(optimizer)


def step_average(model, optimizer, batches):
    """Keeps an exponential average of whole parameters beside the model."""
    train_step(model, optimizer, batches)
    whole = {
        name: parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        for name, parameter in model.named_parameters()
    }
    if not hasattr(optimizer, "average"):
        optimizer.average = {name: value.detach().clone() for name, value in whole.items()}
    for name, value in whole.items():
        optimizer.average[name].lerp_(value.detach(), 0.1)


def step_evaluated(model, optimizer, batches):
    """Evaluates before it trains."""
    model.eval()
    with torch.no_grad():
        losses = torch.stack([loss(model(tokens), tokens) for tokens in batches]).mean()
    dist.all_reduce(losses)
    model.train()
    train_step(model, optimizer, batches)
