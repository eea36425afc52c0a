"""Streams of cases that are as a campaign asks."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest

from fuzzshard.analysis.features import features
from fuzzshard.analysis.steering import Steering
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import ALL_ENGINES, Case, EngineName
from fuzzshard.errors import UsageError
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies import steered as module
from fuzzshard.strategies.diverse import diverse
from fuzzshard.strategies.steered import Steered, reach, steered_stream

SEED, WORLD = 11, 4
RARE = Steering(require=("mesh:hsdp", "precision:bfloat16", "checkpoint:*"))


@functools.cache
def reached(steering: Steering, seed: int = SEED, world_size: int = WORLD) -> Steered:
    return reach(steering, seed, world_size=world_size, cuda=False)


def take(steering: Steering, count: int, seed: int = SEED, world_size: int = WORLD) -> list[Case]:
    steered = reached(steering, seed, world_size)
    stream = steered_stream(seed, world_size=world_size, steered=steered)
    return list(itertools.islice(stream, count))


def shares(cases: list[frozenset[str]]) -> dict[str, float]:
    counts = Counter(feature for present in cases for feature in present)
    return {feature: count / len(cases) for feature, count in counts.items()}


@pytest.mark.parametrize(
    "steering",
    [
        RARE,
        Steering(require=("compile:*", "mesh:tensor"), exclude=("wrap:nested", "leaf:dropout")),
        Steering(only=("leaf:linear", "mesh:2"), exclude=("reuse:*",)),
        Steering(only=("engine:fsdp1",), require=("fsdp1:hybrid*",)),
    ],
    ids=lambda steering: " ".join(steering.words),
)
def test_every_case_is_valid_as_asked_and_another_one(steering: Steering) -> None:
    cases = take(steering, 20)
    for case in cases:
        validate(case, world_size=WORLD)
        assert steering.complaints(features(case)) == []
        assert set(case.engines) <= set(steering.engines)
    assert len(set(cases)) == 20


@pytest.mark.parametrize("engine", ALL_ENGINES)
def test_every_case_of_one_engine_is_valid(engine: str) -> None:
    for case in take(Steering(only=(f"engine:{engine}",)), 50):
        validate(case, world_size=WORLD)


def test_a_steered_stream_depends_on_its_seed_alone() -> None:
    steering = Steering(require=("optimizer:momentum",))
    steered = reached(steering)
    assert reach(steering, SEED, world_size=WORLD, cuda=False) == steered
    assert take(steering, 15) == take(steering, 15)
    other = steered_stream(SEED + 1, world_size=WORLD, steered=steered)
    assert set(take(steering, 15)).isdisjoint(itertools.islice(other, 15))


@pytest.mark.parametrize(
    ("steering", "engines"),
    [(Steering(), ALL_ENGINES), (Steering(only=("engine:ddp",)), ("ddp",))],
)
def test_where_engines_alone_are_chosen_cases_are_the_newest_of_those_drawn(
    steering: Steering, engines: tuple[EngineName, ...]
) -> None:
    drawn = draw_cases(SEED, 80, world_size=WORLD, engines=engines)
    assert take(steering, 10) == list(itertools.islice(diverse(iter(drawn)), 10))


@pytest.mark.slow
def test_other_features_come_about_as_often_as_in_plain_cases_that_are_as_asked(sample) -> None:
    steering = Steering(require=("checkpoint:*", "freeze:*", "schedule:microbatches"))
    plain = [present for present in sample.features if steering.allows(present)]
    assert len(plain) > 450
    steered = take(steering, 400, world_size=sample.world_size)
    expected, observed = shares(plain), shares(list(map(features, steered)))
    far = {
        feature: (share, observed.get(feature, 0.0))
        for feature, share in expected.items()
        if abs(share - observed.get(feature, 0.0)) > 0.2
    }
    assert far == {}


def test_what_is_rare_takes_few_draws_once_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    steered = reached(RARE, SEED, WORLD)
    assert steered.hits / steered.tries < 0.03
    draws = 0
    read = module.read_case

    def counted(data: bytes, **ranks: object) -> Case:
        nonlocal draws
        draws += 1
        return read(data, **ranks)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_case", counted)
    stream = steered_stream(SEED, world_size=WORLD, steered=steered)
    assert len(list(itertools.islice(stream, 20))) == 20
    assert draws < 240


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"require": ("mesh:tensor", "option:meta")}, "has no (mesh:tensor|option:meta)"),
    ],
)
def test_what_no_draw_reaches_is_one_line(monkeypatch: pytest.MonkeyPatch, asked, said) -> None:
    monkeypatch.setattr(module, "MAX_DRAWS", 100)
    with pytest.raises(UsageError, match=f"none of 100 cases drawn .*{said}"):
        reach(Steering(**asked), SEED, world_size=WORLD, cuda=False)


def test_how_rare_it_is_is_said_in_words() -> None:
    steered = Steered(Steering(require=("mesh:hsdp",)), (), (b"",), 3, 100)
    assert steered.text() == ("--require mesh:hsdp; 3 of 100 cases drawn at random are like that")
    assert Steered(Steering(only=("engine:ddp",))).text() == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"require": ("mesh:larger",)}, "--require mesh:larger needs 5 ranks, and a world has 4"),
        ({"require": ("offload:pinned",)}, "--require offload:pinned needs CUDA"),
        ({"only": ("mesh:hsdp",)}, "every case has one of .*, and --only mesh:hsdp rules out all"),
        ({"require": ("mesh:2", "mesh:4")}, "no case has both mesh:2 and mesh:4"),
    ],
)
def test_what_no_case_can_be_is_said_without_a_draw(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, tuple[str, ...]], said: str
) -> None:
    monkeypatch.setattr(module, "MAX_DRAWS", 0)
    with pytest.raises(UsageError, match=said):
        reach(Steering(**asked), SEED, world_size=WORLD, cuda=False)
