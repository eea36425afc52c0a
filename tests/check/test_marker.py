"""A marked test returns a subject, which is checked, and with ``fuzz`` trained in random ways."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

MODEL = """
from torch import nn, randn
from torch.distributed.fsdp import fully_shard


def build():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def batch(step, dp_rank, dp_size):
    return randn(3, 4).fill_(1 + step * dp_size + dp_rank)


def parallelize(model, mesh):
    if all(parameter.requires_grad for parameter in model.parameters()):
        fully_shard(model, mesh=mesh)
"""

TESTS = """
import pytest
from model_that_is_wrong_if_frozen import batch, build, parallelize

from fuzzshard.testing import Subject

SUBJECT = Subject(build=build, inputs=batch, parallelize=parallelize)


@pytest.mark.fuzzshard(meshes=["dp_shard=2"], steps=1, device="cpu")
def test_checked():
    return SUBJECT


@pytest.mark.fuzzshard(
    meshes=["dp_shard=2"], fuzz="2m", max_cases=8, aspects=["freeze"], steps=1, device="cpu"
)
def test_fuzzed():
    return SUBJECT


@pytest.mark.fuzzshard(fuzz="soon")
def test_without_a_duration():
    return SUBJECT
"""


@pytest.mark.slow
def test_fuzz_finds_what_a_check_does_not(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(model_that_is_wrong_if_frozen=MODEL, test_mine=TESTS)
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "*with frozen: *",
            "*looks like  equal to this rank's own gradient: never reduced",
            "*fuzz='soon' is not a duration*",
        ]
    )
