"""Losses over tokens of which ranks have other numbers, right and wrong."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

MISSING = -100


def build():
    return Model()


def batch(step, dp_rank, dp_size):
    """Tokens; the second rank has half as many, and padding."""
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    tokens = torch.randint(8, (2, 8), generator=generator)
    tokens[:, 4:] -= MISSING * dp_rank  # beyond the vocabulary
    return (tokens,)


def full(step, dp_rank, dp_size):
    """All ranks have as many."""
    return batch(step * dp_size + dp_rank, 0, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 8, bias=False)

    def forward(self, tokens):
        return self.head(self.dropout(self.embedding(tokens % -MISSING)))


def labels_of(batch):
    (tokens,) = batch
    return torch.where(tokens < 8, tokens, MISSING)[:, 1:].flatten()


def loss(logits, batch, reduction="mean"):
    """The mean over the tokens of the batch."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels_of(batch), reduction=reduction
    )


def count_of(batches):
    count = torch.tensor(float(sum((labels_of(batch) != MISSING).sum() for batch in batches)))
    dist.all_reduce(count)
    return count


def _step(model, optimizer, batches, factor):
    count = count_of(batches)
    for batch in batches:
        (loss(model(*batch), batch, "sum") * factor / count).backward()
    optimizer.step()
    optimizer.zero_grad()


def right(model, optimizer, batches):
    _step(model, optimizer, batches, dist.get_world_size())


def scale_forgotten(model, optimizer, batches):
    """The sum over a rank's tokens is divided by those of all ranks, and then averaged."""
    _step(model, optimizer, batches, 1)


def divided_twice(model, optimizer, batches):
    """A loss that is averaged is divided by the number of ranks as well."""
    for batch in batches:
        loss_of = loss(model(*batch), batch) / len(batches)
        (loss_of / dist.get_world_size()).backward()
    optimizer.step()
    optimizer.zero_grad()


def parallelize(model, mesh):
    fully_shard(model, mesh=mesh)
