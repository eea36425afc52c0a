"""A model with keyword inputs: tokens, a mask of padding, a flag that is no tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH = 13, 8, 6


class Encoder(nn.Module):
    """Returns logits, and the loss as well where it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        scale: bool = False,
    ) -> dict[str, Tensor]:
        x = self.embedding(input_ids) * (WIDTH**0.5 if scale else 1.0)
        x = self.encoder(x, src_key_padding_mask=~attention_mask)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        error = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": error, "logits": logits}


def build() -> nn.Module:
    return Encoder()


def batch(step: int, dp_rank: int, dp_size: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    tokens = torch.randint(1, VOCABULARY, (3, LENGTH), generator=generator)
    mask = torch.ones(3, LENGTH, dtype=torch.bool)
    mask[1, LENGTH - 1 - dp_rank % 3 :] = False
    return {
        "input_ids": tokens.where(mask, 0),
        "attention_mask": mask,
        "labels": tokens.where(mask, -100),
        "scale": True,
    }


def loss(outputs: dict[str, Tensor], _: dict[str, Any]) -> Tensor:
    return outputs["loss"]
