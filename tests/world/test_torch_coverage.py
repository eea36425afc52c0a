import sys

import pytest
from cases import graph
from msgspec.structs import replace

from fuzzshard.case.case import Case, Checkpoint, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.errors import UsageError
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Step
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

PARAM_GROUP = "distributed/fsdp/_fully_shard/_fsdp_param_group.py"
PLAIN = Case(
    seed=1,
    model=graph("h0 = a(x)", "h1 = b(h0)", a=Linear(out=4), b=Linear(out=4)),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    schedule=(Forward(), Backward(), Step()),
    wrap=(WrapGroup(modules=("a",)), WrapGroup(modules=("",))),
)


@pytest.fixture(scope="module")
def world():
    with World(WorldConfig(size=2, coverage=2)) as world:
        yield world


def passes(world, case):
    verdict = world.run(case)
    assert verdict.status is Status.PASS
    return world.take_points()


def lines(points, path):
    return {abs(line) for where, *arc in points if where == path for line in arc if line}


def test_points_of_torch_come_back_once_and_later_only_new_ones(world):
    first = passes(world, PLAIN)
    assert len(lines(first, PARAM_GROUP)) > 150
    assert lines(first, "nn/parallel/distributed.py")
    assert not any(path.startswith(("/", "fuzzshard")) for path, _, _ in first)
    sampled = [passes(world, PLAIN) for _ in range(4)]
    assert sum(map(len, sampled)) < len(first) / 10

    checkpointed = replace(PLAIN, checkpoints=(Checkpoint(module="a", implementation="wrapper"),))
    later = frozenset().union(*(passes(world, checkpointed) for _ in range(2)))
    assert lines(later, "distributed/algorithms/_checkpoint/checkpoint_wrapper.py")
    assert not later & first


def test_with_a_sample_only_some_cases_are_traced(world):
    if sys.version_info >= (3, 12):
        pytest.skip("sys.monitoring traces every case")
    world.restart()
    passes(world, PLAIN)
    meshes = replace(PLAIN, mesh=Mesh(shard=1, replicate=2), engines=("replicate",))
    assert not passes(world, meshes)
    assert passes(world, meshes)


def test_fresh_ranks_say_nothing_that_was_said_before(world):
    passes(world, PLAIN)
    world.restart()
    assert len(passes(world, PLAIN)) < 40


def test_a_world_without_coverage_says_nothing(two_ranks):
    assert not passes(two_ranks, PLAIN)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring needs no library")
def test_without_the_coverage_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fuzzshard.world.config.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"fuzzshard\[coverage\]"):
        WorldConfig(size=2, coverage=1)
