"""What a rank does between two cases."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from cases import make_case
from torch.distributed.tensor import (
    DeviceMesh,
    Replicate,
    Shard,
    _redistribute,
    distribute_tensor,
)

from fuzzshard.model.build import build_model
from fuzzshard.training.housekeeping import clean_up, clear_caches


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def model_files() -> list[str]:
    return [name for name in linecache.cache if "fuzzshard model" in name]


def test_nothing_is_left_of_the_models_of_a_case() -> None:
    case = make_case()
    kind = weakref.ref(type(build_model(case, torch.device("cpu"), torch.float32)))
    assert kind() is not None
    assert model_files()
    clean_up(case)
    assert kind() is None
    assert not model_files()
    assert not any(name.startswith("fuzzshard_model_") for name in sys.modules)


def test_a_model_can_be_built_again_after_it_was_forgotten() -> None:
    case = make_case()
    clean_up(case)
    build_model(case, torch.device("cpu"), torch.float32)
    assert model_files()


def test_the_garbage_collector_never_looks_again_at_what_outlives_a_case() -> None:
    before = len(gc.get_objects())
    clean_up(make_case())
    assert len(gc.get_objects()) < before / 10


def test_torch_plans_again_how_layouts_change_where_a_mend_may_have_changed_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, planned = _redistribute._gen_transform_infos_non_cached, []
    monkeypatch.setattr(
        _redistribute,
        "_gen_transform_infos_non_cached",
        lambda *args: planned.append(args) or plan(*args),
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sharded = distribute_tensor(torch.ones(3), DeviceMesh("cpu", [0]), [Shard(0)])
        clear_caches()
        for _ in range(2):
            sharded.redistribute(placements=[Replicate()])
        assert len(planned) == 1
        clear_caches()
        sharded.redistribute(placements=[Replicate()])
        assert len(planned) == 2
    finally:
        dist.destroy_process_group()
