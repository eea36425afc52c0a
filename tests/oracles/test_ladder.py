"""How many noise twins a difference is worth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from cases import make_case
from traces import difference, gradient, trace

from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.oracles.bound import NoiseBound
from fuzzshard.training.ladder import MORE_NOISE_SEEDS, NOISE_SEEDS, Ladder
from fuzzshard.training.trace import Trace

KEY = gradient(4)
ONE = torch.ones(3, dtype=torch.float64)
TWINS = len(NOISE_SEEDS["bounded"])
MOST = TWINS + len(MORE_NOISE_SEEDS)


class FakeLadder(Ladder):
    """On one rank, where every twin moves the gradient as the next entry of ``moves`` says."""

    def __init__(self, dtype: str, moves: list[float]) -> None:
        mesh = cast(RankMesh, SimpleNamespace(device=torch.device("cpu"), rank=0, size=4, global_rank=0))
        super().__init__(
            make_case(mesh=4, dtype=dtype), mesh, torch.float64, {"reference": trace({KEY: ONE})}
        )
        self.moves = iter(moves)

    def _anywhere(self, here: bool) -> bool:
        return here

    def _trace(self, engine: Engine) -> Trace:
        return trace({KEY: ONE + next(self.moves)})

    def bound(self, error: float) -> NoiseBound:
        return self._noise_bound({"ddp": [difference(KEY, ONE + torch.tensor([0, error, 0]), ONE)]})


@pytest.mark.parametrize(
    ("dtype", "error", "moves", "twins"),
    [
        ("float64", 1e-3, [1e-3] * MOST, 1),
        ("float64", 1e-3, [1e-6] * TWINS + [1e-3] * (MOST - TWINS), TWINS + 1),
        ("float64", 1e-3, [1e-5] * MOST, MOST),
        ("float64", 1.0, [1e-5] * MOST, TWINS),
        ("float32", 1e-3, [1e-5] * MOST, TWINS),
    ],
    ids=["explained", "explained by one more", "gray", "clear", "gray, and higher precision will tell"],
)
def test_only_a_gray_difference_in_the_highest_precision_is_worth_more_twins(
    dtype: str, error: float, moves: list[float], twins: int
) -> None:
    assert len(FakeLadder(dtype, moves).bound(error).twins) == twins
