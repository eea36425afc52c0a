"""What a rank does between two cases."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from cases import make_case

from fuzzshard.model.build import build_model
from fuzzshard.training.housekeeping import clean_up


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
