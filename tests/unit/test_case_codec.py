import json

import pytest
from cases import graph

from fuzzshard.case.case import Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.codec import decode, encode
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Step

CASE = Case(
    seed=3,
    model=graph("h0 = linear0(x)", linear0=Linear(out=2)),
    inputs=Inputs(batch=2, tensors=(TensorSpec(size=4),)),
    mesh=Mesh(shard=2),
    wrap=(
        WrapGroup(modules=("",), reshard_after_forward=2),
        WrapGroup(modules=(), reshard_after_forward=True),
    ),
    schedule=(Forward(), Backward(), Step()),
)


def with_change(change):
    document = json.loads(encode(CASE))
    change(document)
    return json.dumps(document)


def test_a_case_survives_the_round_trip():
    assert decode(encode(CASE)) == CASE


def test_true_and_one_stay_apart():
    assert [type(group.reshard_after_forward) for group in decode(encode(CASE)).wrap] == [
        int,
        bool,
    ]


def test_equal_cases_give_equal_bytes():
    assert encode(decode(encode(CASE))) == encode(CASE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(colour="red"), "unknown field `colour`"),
        (lambda d: d["model"]["children"][0]["module"].update(width=3), "unknown field `width`"),
        (
            lambda d: d["model"]["children"][0]["module"].update(type="lambda"),
            "Invalid value 'lambda'",
        ),
        (lambda d: d.pop("model"), "missing required field `model`"),
        (lambda d: d.update(dtype="int8"), "Invalid enum value 'int8'"),
        (lambda d: d["mesh"].update(shard="2"), "Expected `int`, got `str`"),
    ],
)
def test_what_is_not_a_case_is_refused_with_its_place(change, message):
    with pytest.raises(InvalidCase) as error:
        decode(with_change(change))
    assert message in str(error.value)


def test_what_is_not_json_is_refused():
    with pytest.raises(InvalidCase, match="this is not a case"):
        decode(b"{")
