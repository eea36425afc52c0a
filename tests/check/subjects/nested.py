"""A model of several heads. Its outputs are a dict with a list and a dict in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Detector(nn.Module):
    """A trunk, three levels, and a head for classes and one for boxes at each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 8)
        self.levels = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.classes = nn.Linear(8, 4)
        self.boxes = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = [torch.tanh(self.trunk(x))]
        for level in self.levels:
            hidden.append(torch.tanh(level(hidden[-1])))
        return {
            "levels": [{"classes": self.classes(h), "boxes": self.boxes(h)} for h in hidden[1:]],
            "found": (hidden[-1] > 0).sum(dim=-1),
            "hidden": tuple(hidden),
            "note": "no tensor",
            "nothing": None,
        }


def build() -> nn.Module:
    return Detector()


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(3, 5, generator=generator)


def loss(outputs: dict[str, Any], x: Tensor) -> Tensor:
    levels = outputs["levels"]
    return sum(
        (one["classes"].square().mean() + one["boxes"].abs().mean() for one in levels), x[0, 0] * 0
    )
