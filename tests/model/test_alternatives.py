"""Blocks whose path chooses at run time which child a call calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    call,
    chain,
    children,
    groups,
    make_case,
)

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Checkpoint, Mesh
from fuzzshard.case.graph import Block, Call
from fuzzshard.errors import InvalidCase
from fuzzshard.model.build import build_model
from fuzzshard.model.source import model_source
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import CorruptState, LoadState, SaveState, SetPath, TakeStateDict
from fuzzshard.verdict import Status
from fuzzshard.world import World

CHOICE = Call(name="h1", module="b", args=("h0",), alternatives=("c", "d"))
SWITCHED = Block(
    children=children(
        a=Linear(out=4), b=Linear(out=3), c=MLP(hidden=6), d=Linear(out=3), e=Linear(out=2)
    ),
    nodes=(call("h0", "a", "x"), CHOICE, call("h2", "e", "h1")),
    outputs=("h2",),
)
BRANCHES = Block(
    children=children(
        a=Linear(out=4), b=Linear(out=4), c=MLP(hidden=6), d=Linear(out=4), e=Linear(out=2)
    ),
    nodes=SWITCHED.nodes,
    outputs=("h2",),
)
TRAIN: tuple[Op, ...] = (FORWARD, BACKWARD, STEP, ZERO)
NESTED = chain(first=Linear(out=4), block=BRANCHES, last=Linear(out=2))


def to(path: int, target: str = "") -> SetPath:
    return SetPath(path=path, target=target)


def alternating(target: str = "") -> tuple[Op, ...]:
    """Every path once, and the first one again: each leaves the others' parameters without
    gradients.
    """
    ops = [(to(path, target), *TRAIN) for path in (0, 1, 2, 0)]
    return tuple(op for step in ops for op in step)


def switched(**options: Any) -> Case:
    case = make_case(BRANCHES, **{"schedule": alternating(), **options})
    validate(case)
    return case


def test_the_source_chooses_by_the_path_of_the_block() -> None:
    source = model_source(switched())
    assert "self.path = 0" in source
    assert "elif self.path == 2:" in source


def test_each_path_calls_its_own_child() -> None:
    model = build_model(switched(), torch.device("cpu"), torch.float32)
    x = torch.ones(2, 5)
    for path, name in enumerate(("b", "c", "d")):
        model.path = path  # type: ignore[assignment]
        expected = model.e(model.get_submodule(name)(model.a(x)))  # type: ignore[operator]
        assert torch.equal(model(x), expected)


def test_alternatives_of_other_widths_are_no_case() -> None:
    with pytest.raises(InvalidCase, match="differ in width"):
        validate(make_case(SWITCHED))


def test_a_path_that_no_call_has_is_no_case() -> None:
    with pytest.raises(InvalidCase, match="has no path 3"):
        validate(make_case(BRANCHES, (to(3), FORWARD)))


@pytest.mark.parametrize(
    "wrap",
    [
        groups("a", "b", "c", "d", "e", ROOT),
        groups(ROOT),
        groups(("b", "c", "d"), ROOT),
        groups("a", "c"),
    ],
    ids=["every module", "root", "list", "no root"],
)
def test_engines_follow_a_path_that_changes_between_steps(two_ranks: World, wrap: Any) -> None:
    verdict = two_ranks.run(switched(wrap=wrap))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert verdict.notes == {}


MICROBATCHES: tuple[Op, ...] = (FORWARD, to(1), AGAIN, BACKWARD, STEP, ZERO, to(2), *TRAIN)


@pytest.mark.parametrize("mesh", [Mesh(shard=2), Mesh(replicate=2, shard=2)], ids=["1d", "hsdp"])
def test_a_path_may_change_between_microbatches(four_ranks: World, mesh: Mesh) -> None:
    verdict = four_ranks.run(switched(schedule=MICROBATCHES, mesh=mesh, engines=("fully_shard",)))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


@pytest.mark.parametrize("implementation", ["composable", "wrapper", "utils"])
def test_a_checkpointed_block_has_a_path(two_ranks: World, implementation: Any) -> None:
    checkpoints = (Checkpoint(module="block", implementation=implementation),)
    case = make_case(NESTED, alternating("block"), checkpoints=checkpoints)
    validate(case)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


def test_a_model_that_is_built_anew_takes_the_same_path(two_ranks: World) -> None:
    schedule = (
        *(TakeStateDict(), to(1, "block"), *TRAIN, SaveState(via="state_dict")),
        *(CorruptState(how="rebuild"), *TRAIN, LoadState(), *TRAIN, to(0, "block"), *TRAIN),
    )
    case = make_case(NESTED, schedule)
    validate(case)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)


def test_fsdp1_follows_a_path(two_ranks: World) -> None:
    verdict = two_ranks.run(switched(engines=("fsdp1",)))
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
