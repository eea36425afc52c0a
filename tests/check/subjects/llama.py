"""A decoder as Llama's: tied embeddings, RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, KEY_HEADS, HEAD, LENGTH = 17, 16, 4, 2, 4, 8


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn pairs of features of (batch, heads, length, head) by the angles of their position."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Attention(nn.Module):
    """Causal attention in which two heads of queries share one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.wk = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.wq(x).view(batch, length, HEADS, HEAD).transpose(1, 2)
        k = self.wk(x).view(batch, length, KEY_HEADS, HEAD).transpose(1, 2)
        v = self.wv(x).view(batch, length, KEY_HEADS, HEAD).transpose(1, 2)
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    """Attention and feed forward, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.ffn_norm = nn.RMSNorm(WIDTH)
        self.feed_forward = FeedForward()

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The decoder. The rotary tables are buffers that no state dict holds."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight
        frequencies = 10000.0 ** -(torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.arange(LENGTH), frequencies)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return self.output(self.norm(x))


def build() -> nn.Module:
    return Llama()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randint(VOCABULARY, (2, LENGTH), generator=generator)


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
