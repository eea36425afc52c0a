"""Models, training steps and ways to wrap them as libraries have them, and mistakes in these."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Batch = dict[str, Tensor]
Optimizer = torch.optim.Optimizer


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class DecoderLayer(nn.Module):
    """``use_reentrant`` says how it is computed again in the backward, None: it is not."""

    use_reentrant: bool | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed_forward = Attention(width, 2), FeedForward(width, 2 * width)

    def compute(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))

    def forward(self, x: Tensor) -> Tensor:
        if self.use_reentrant is None:
            return self.compute(x)
        return checkpoint(self.compute, x, use_reentrant=self.use_reentrant)


class CausalLM(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(16, width)
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(2))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, 16, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Batch:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"logits": logits, "loss": loss}


def build_lm() -> nn.Module:
    return CausalLM()


def build_tied_lm() -> nn.Module:
    model = CausalLM()
    model.lm_head.weight = model.embed_tokens.weight
    return model


def tokens(step: int, dp_rank: int, dp_size: int) -> Batch:
    generator = torch.Generator().manual_seed(1 + step * dp_size + dp_rank)
    input_ids = torch.randint(16, (2, 8), generator=generator)
    return {"input_ids": input_ids, "labels": input_ids}


def loss_of(outputs: Batch, batch: Batch) -> Tensor:
    return outputs["loss"]


def shard_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def replicate(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(model, device_mesh=mesh)


def tensor_parallel(model: nn.Module, mesh: DeviceMesh, *, whole: bool = True) -> None:
    """Activations are sharded along the sequence outside of attention and feed-forward."""
    gathers = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.attention": gathers,
        "layers.*.attention.[qkv]_proj": ColwiseParallel(),
        "layers.*.attention.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.ffn_norm": SequenceParallel(),
        "layers.*.feed_forward": gathers,
        "layers.*.feed_forward.w[13]": ColwiseParallel(),
        "layers.*.feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan | ({"norm": SequenceParallel()} if whole else {}))


def norm_left_out(model: nn.Module, mesh: DeviceMesh) -> None:
    """The plan leaves out the last norm: a rank has the gradient of its part of the sequence."""
    tensor_parallel(model, mesh, whole=False)


def _accumulate(model: nn.Module, batches: list[Batch]) -> None:
    for batch in batches:
        (model(**batch)["loss"] / len(batches)).backward()


def clipped(model: nn.Module, optimizer: Optimizer, batches: list[Batch]) -> None:
    """No mistake: reduces and reshards with the last microbatch."""
    for index, batch in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(index + 1 == len(batches))
            model.set_reshard_after_backward(index + 1 == len(batches))
        (model(**batch)["loss"] / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def left_unsharded(model: nn.Module, optimizer: Optimizer, batches: list[Batch]) -> None:
    """Parameters stay unsharded after the last microbatch, too."""
    for index, batch in enumerate(batches):
        if isinstance(model, FSDPModule):
            model.set_reshard_after_backward(index == len(batches))  # the last is one less
        (model(**batch)["loss"] / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


class LoraLinear(nn.Module):
    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B(self.lora_A(x))


def build_lora() -> nn.Module:
    model = CausalLM().requires_grad_(False)
    for layer in model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.attention, name, LoraLinear(getattr(layer.attention, name)))
    return model


def checkpointed(model: nn.Module, mesh: DeviceMesh, *, use_reentrant: bool = False) -> None:
    for layer in model.layers:
        layer.use_reentrant = use_reentrant
    shard_layers(model, mesh)


def checkpointed_reentrant(model: nn.Module, mesh: DeviceMesh) -> None:
    """Nothing trains, as no input of a layer requires a gradient: the embedding is frozen."""
    checkpointed(model, mesh, use_reentrant=True)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
                for _ in range(2)
            )
        )
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean((2, 3)))


def build_cnn() -> nn.Module:
    return ConvNet()


def images(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1 + step * dp_size + dp_rank)
    return torch.randn(4, 3, 8, 8, generator=generator)


def decayed_by_dims(parameters: Any) -> Optimizer:
    """Weights decay, and what has one dim does not: under FSDP1 everything has one."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim > 1].append(parameter)
    given = [{"params": g, "weight_decay": 0.5 * wide} for wide, g in groups.items() if g]
    return torch.optim.AdamW(given, lr=0.01)


def flat(model: nn.Module, mesh: DeviceMesh, *, use_orig_params: bool = False) -> nn.Module:
    device = torch.device("cpu")
    return FullyShardedDataParallel(
        model, device_mesh=mesh, device_id=device, use_orig_params=use_orig_params
    )


def original(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return flat(model, mesh, use_orig_params=True)


class Experts(nn.Module):
    """A mixture whose tokens choose one expert; ``expert_bias`` balances how often."""

    expert_bias: Tensor
    tokens_per_expert: Tensor

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, number, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, width) for _ in range(number))
        self.register_buffer("expert_bias", torch.zeros(number))
        self.register_buffer("tokens_per_expert", torch.zeros(number), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).sigmoid()
        chosen = (scores + self.expert_bias).argmax(-1)
        weights = functional.one_hot(chosen, len(self.experts)).to(x.dtype)
        self.tokens_per_expert.add_(weights.flatten(0, -2).sum(0))
        given = (expert(x) for expert in self.experts)
        parts = zip(given, (weights * scores).unbind(-1), strict=True)
        return x + torch.stack([part * weight.unsqueeze(-1) for part, weight in parts]).sum(0)


class Mixture(CausalLM):
    def __init__(self) -> None:
        super().__init__(8)
        self.layers = nn.ModuleList(Experts(8, 4) for _ in range(2))


def build_moe() -> nn.Module:
    return Mixture()


def balanced(
    model: nn.Module, optimizer: Optimizer, batches: list[Batch], *, reduces: bool = True
) -> None:
    _accumulate(model, batches)
    for layer in model.layers:
        if reduces and isinstance(model, FSDPModule):
            dist.all_reduce(layer.tokens_per_expert)
        counts = layer.tokens_per_expert
        layer.expert_bias.add_(0.2 * (counts.mean() - counts).sign())
        counts.zero_()
    optimizer.step()
    optimizer.zero_grad()


def balanced_by_rank(model: nn.Module, optimizer: Optimizer, batches: list[Batch]) -> None:
    """Each rank balances its experts by its own tokens."""
    balanced(model, optimizer, batches, reduces=False)
