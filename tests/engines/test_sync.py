"""How gradients are averaged by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from cases import make_case

from fuzzshard.analysis.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.engines.sync import ExplicitSync


def test_gradients_of_one_dtype_share_an_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[torch.dtype, int]] = []

    def all_reduce(tensor: torch.Tensor, group: Any) -> None:
        sent.append((tensor.dtype, tensor.numel()))
        tensor += 1.0  # the other rank's gradients

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    gradients = {
        "a": torch.tensor([[1.0, 3.0], [5.0, 7.0]]).t(),
        "b": torch.tensor([2.0], dtype=torch.float64),
        "c": torch.tensor(9.0),
        "d": torch.zeros(0, 3),
    }
    mesh = cast(Any, SimpleNamespace(size=2, group=None))
    sync = ExplicitSync(mesh, dict.fromkeys(gradients, UNMANAGED))
    averages = sync.averages(gradients, SyncFlags(make_case(mesh=2)))
    assert sent == [(torch.float32, 5), (torch.float64, 1)]
    assert {fqn: average.tolist() for fqn, average in averages.items()} == {
        "a": [[1.0, 3.0], [2.0, 4.0]],
        "b": [1.5],
        "c": 5.0,
        "d": [],
    }
    assert gradients["a"].tolist() == [[1.0, 5.0], [3.0, 7.0]]


def test_float16_is_divided_before_and_after_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[float] = []

    def all_reduce(tensor: torch.Tensor, group: Any) -> None:
        sent.extend(tensor.tolist())
        tensor *= 8

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    mesh = cast(Any, SimpleNamespace(size=8, group=None))
    sync = ExplicitSync(mesh, {"a": UNMANAGED})
    gradients = {"a": torch.tensor([30000.0], dtype=torch.float16)}
    averages = sync.averages(gradients, SyncFlags(make_case(mesh=8)))
    assert sent == [7500.0]
    assert averages["a"].item() == 30000.0
