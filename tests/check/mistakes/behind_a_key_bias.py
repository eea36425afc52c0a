"""The head's gradients are not reduced, in a model of which one gradient is nothing but rounding.

A bias of keys adds the same to all scores of a query, so softmax does not hear of it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Attending(nn.Module):
    """Attention with biases between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.query = nn.Linear(4, 4)
        self.key = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return self.head(x + scores.softmax(dim=-1) @ self.value(x))


def build() -> nn.Module:
    return Attending()


def loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(model, mesh=mesh, ignored_params=set(model.head.parameters()))
