"""An encoder of images as ViT: a convolution makes patches, a class token is put before them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 12


class Layer(nn.Module):
    """Self-attention and MLP, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, num_heads=3, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """The class token and the positions are parameters of the root itself."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, kernel_size=4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 5, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(2)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(len(images), -1, -1)
        x = torch.cat((token, patches), dim=1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


def build() -> nn.Module:
    return ViT()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(2, 3, 8, 8, generator=generator)


def loss(logits: Tensor, images: Tensor) -> Tensor:
    classes = images.mean(dim=(1, 2, 3)).mul(1000).long() % 5
    return functional.cross_entropy(logits, classes)
