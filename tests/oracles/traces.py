"""Hand-made traces and differences."""

from __future__ import annotations

import torch

from fuzzshard.oracles.compare import Difference
from fuzzshard.training.trace import Key, Observation, Piece, Trace


def trace(tensors: dict[Key, torch.Tensor | None], pieces: tuple[Piece, ...] = ()) -> Trace:
    kept = {key: Observation(tensor, pieces) for key, tensor in tensors.items()}
    return Trace(kept, engine="fully_shard")


def gradient(op: int, name: str = "a.weight") -> Key:
    return Key(op, "gradient", name)


def difference(
    key: Key,
    observed: torch.Tensor | None,
    expected: torch.Tensor | None,
    pieces: tuple[Piece, ...] = (),
) -> Difference:
    return Difference(key, observed, expected, pieces)


def floats(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)
