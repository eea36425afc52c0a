"""The first operator that differs is named, with the line that calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from user_models import Checked, functions_of, mistake, model

from fuzzshard.checking.check import Checker, trainings
from fuzzshard.subject.operators import Operators
from fuzzshard.subject.record import Forwards, Record
from fuzzshard.subject.report import FirstOperator, TrainingReport
from fuzzshard.subject.subject import MeshShape, Subject
from fuzzshard.world import WorldConfig

PLANTED = Path(__file__).parent / "planted"


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    """Ranks of their own: a fault stays in their torch."""
    nothing = Subject(build="", inputs="")
    with Checker(nothing, WorldConfig(size=2), patience=60.0) as checker:
        yield checker


def planted(checker: Checker, file: str, mesh: str, **others: str) -> TrainingReport:
    named = functions_of(PLANTED / f"{file}.py")
    functions = {"parallelize": "parallelize"} | others
    checker.subject = Subject(
        build=named["build"],
        inputs=named["batch"],
        **{field: named[function] for field, function in functions.items()},
    )
    (training,) = trainings(
        checker.subject, [MeshShape.parse(mesh)], (), steps=1, microbatches=2, seed=0
    )
    return checker.run(training)


def operator_of(report: TrainingReport) -> FirstOperator:
    assert report.outcome == "different"
    assert report.operator is not None
    return report.operator


WAYS = (
    {},
    {"train_step": "train_step"},
    {"parallelize": "by_ddp"},
    {"parallelize": "in_bfloat16"},
)


@pytest.mark.parametrize("own", WAYS, ids=str)
def test_a_backward_that_is_wrong_once_the_model_is_wrapped_is_named(
    own: dict[str, str], checker: Checker
):
    report = planted(checker, "backward_of_shards", "dp_shard=2", **own)
    found = operator_of(report)
    assert (found.how, found.name) == ("outputs", "aten.tanh_backward.default")
    assert (found.direction, found.module) == ("backward", "1")
    assert found.line.startswith("backward_of_shards.py:")
    assert found.line.endswith("return x + torch.tanh(hidden)")
    first, second, third = (line.strip() for line in list(report.lines())[-3:])
    assert first.startswith(
        "first operator that differs: aten.tanh_backward.default, backward of 1, rank"
    )
    assert second == f"called by   {found.line}"
    assert third.startswith("equal inputs give ")


@pytest.mark.parametrize("how", ["parallelize", "by_local_tensors"])
def test_a_wrong_rule_of_dtensor_is_named(how: str, checker: Checker):
    found = operator_of(planted(checker, "rule_of_softmax", "tp=2", parallelize=how))
    assert (found.how, found.name) == ("outputs", "aten._softmax.default")
    assert (found.direction, found.module) == ("forward", "0")
    assert found.line.endswith("weights = torch.softmax(hidden, -1)")


def test_where_compiled_code_is_wrong_operators_that_run_eagerly_are_said_to_be_equal(
    checker: Checker,
):
    report = planted(checker, "backward_of_shards", "dp_shard=2", parallelize="compiled")
    assert operator_of(report).how == "hidden"
    assert "which runs what is compiled eagerly" in "\n".join(report.lines())


@pytest.mark.parametrize("name", ["root_not_wrapped", "divided_by_one", "shards_mixed"])
def test_where_reduction_is_wrong_no_operator_is_named(name: str, checked: Checked):
    (report,) = checked(mistake(name)).trainings
    found = operator_of(report)
    assert (found.how, found.name) == ("none", "")
    assert found.compared > 50
    assert "each rank's own are right" in "\n".join(report.lines())


MISSING = {
    "evaluation_mode": ("aten.bernoulli_.float", "forward", "1"),
    "frozen_by_name": ("aten.mm.default", "backward", "head"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_the_plain_model_alone_runs_is_named(name: str, checked: Checked):
    found = operator_of(checked(mistake(name)).trainings[0])
    assert found.how == "missing"
    assert (found.name, found.direction, found.module) == MISSING[name]


def test_parameters_that_differ_before_training_name_no_operator(checked: Checked):
    (report,) = checked(mistake("drawn_after_sharding")).trainings
    assert report.difference is not None
    assert report.operator is None


@pytest.mark.parametrize("how", ["checkpointed", "checkpointed_by_reentering", "compiled"])
@pytest.mark.parametrize("name", ["llama", "nested"])
def test_what_runs_operators_again_or_compiles_them_makes_none_differ(
    name: str, how: str, checked: Checked
):
    subject = replace(model(name), parallelize=f"{PLANTED}/unreduced.py:{how}")
    (report,) = checked(subject).trainings
    assert operator_of(report).how == "none"
    assert report.difference is not None
    assert report.difference.looks_like.startswith("equal to this rank's own gradient")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (FirstOperator(name="mm", module="head", call=2), "mm, forward of head (call 2), rank 0"),
        (FirstOperator(name="mm", call=1), "mm, forward of the model itself, rank 0"),
        (
            FirstOperator(name="mm", direction="backward"),
            "mm, backward, outside of the model, rank 0",
        ),
    ],
)
def test_it_is_told_where_an_operator_runs(found: FirstOperator, words: str):
    assert next(found.lines()) == f"first operator that differs: {words}"


class Rotating(nn.Module):
    """Turns pairs of features, as complex numbers, and adds rows that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(3, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (2, 2))) * 1j
        return torch.view_as_real(turned).flatten(-2) + self.rows(torch.arange(3))


def test_complex_numbers_are_kept_as_pairs_and_sparse_gradients_are_not():
    model, x, record = Rotating(), torch.randn(3, 4), Record()
    forwards = Forwards(model, str, record, 0, torch.device("cpu"))
    operators = Operators()
    (batch,) = forwards.begin_step(0, {0: x})
    with operators.of(forwards):
        model(batch).sum().backward()
    kept = [tensor for tensor in operators.record.tensors.values() if tensor is not None]
    assert not any(tensor.is_complex() or tensor.is_sparse for tensor in kept)
    assert [3, 2, 2] in [list(tensor.shape) for tensor in kept]
    named = [operator.name for operator in operators.lines]
    assert "aten.mul.Tensor" in named
    assert {operator.direction for operator in operators.lines} == {"forward", "backward"}
