"""Which parameters share a flat parameter of FSDP1."""

from __future__ import annotations

import pytest
from cases import ROOT, TWO_STEPS, chain, float_inputs, groups, make_case
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Tie
from fuzzshard.case.graph import Alias
from fuzzshard.case.options import FSDP1
from fuzzshard.case.units import (
    aliased_units,
    computes_frozen_as_trainable,
    fsdp1_multiplies_otherwise,
    fsdp1_normalizes_otherwise,
    parameter_groups,
    parameter_units,
    splits_a_unit,
    units,
)
from fuzzshard.parts.leaves.layer_norm import LayerNorm
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import SetRequiresGrad

LINEAR = Linear(out=5)
NESTED = chain(p=chain(a=LINEAR, b=LINEAR), c=LINEAR)
THAWED = SetRequiresGrad(target="a.bias", value=True)


def originals(**options) -> Case:
    options.setdefault("engines", ("fsdp1",))
    return make_case(fsdp1=FSDP1(use_orig_params=True), **options)


def test_the_innermost_wrapped_module_has_a_parameter_and_the_root_has_the_rest() -> None:
    assert units(make_case(NESTED, wrap=groups("p.a", "p"))) == {
        "p.a": ("p.a.weight", "p.a.bias"),
        "p": ("p.b.weight", "p.b.bias"),
        ROOT: ("c.weight", "c.bias"),
    }


def test_a_tied_parameter_is_in_every_unit_that_registers_it() -> None:
    case = make_case(chain(a=LINEAR, b=LINEAR), ties=(Tie(parameter="b.weight", source="a.weight"),))
    assert parameter_units(case)["a.weight"] == {"a", "b"}
    assert parameter_units(case)["a.bias"] == {"a"}


def test_groups_that_would_shard_a_tied_parameter_twice_both_come_upon_it() -> None:
    model, tie = chain(a=LINEAR, b=LINEAR), Tie(parameter="b.weight", source="a.weight")
    assert parameter_groups(make_case(model, ties=(tie,), wrap=groups("b", ROOT)))["a.weight"] == {0, 1}
    assert parameter_groups(make_case(model, ties=(tie,), wrap=groups(("a", "b"), ROOT)))["a.weight"] == {0}
    assert parameter_groups(make_case(model, wrap=groups("b")))["a.weight"] == frozenset()


def test_a_module_below_an_alias_is_in_the_unit_that_the_alias_is_in() -> None:
    model = chain(a=LINEAR, q=chain(b=LINEAR, again=Alias(target="a")))
    assert parameter_units(make_case(model, wrap=groups("q", ROOT)))["a.weight"] == {ROOT, "q"}
    assert parameter_units(make_case(model, wrap=groups("a", "q", ROOT)))["a.weight"] == {"a"}
    assert aliased_units(make_case(model, wrap=groups("a", "q", ROOT))) == ("a",)


def test_a_target_splits_a_unit_that_it_has_a_part_of() -> None:
    case = make_case(NESTED, wrap=groups("p.a", ROOT))
    assert [splits_a_unit(case, target) for target in ("p.a", ROOT, "p.b", "p.a.bias")] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (originals(), False),
        (originals(freezes=(Freeze(target="a"),)), False),
        (originals(freezes=(Freeze(target="a.bias"),)), True),
        (originals(freezes=(Freeze(target="a"),), schedule=(THAWED, *TWO_STEPS)), True),
        (originals(freezes=(Freeze(target="a.bias"),), engines=("fully_shard",)), False),
        (make_case(freezes=(Freeze(target="a.bias"),), engines=("fsdp1",)), False),
    ],
)
def test_a_frozen_part_of_a_trained_flat_parameter_computes_as_a_trained_one(
    case: Case, expected: bool
) -> None:
    assert computes_frozen_as_trainable(case) is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"model": chain(a=LINEAR, b=Linear(out=1))}, True),
        ({"model": chain(a=Linear(out=1))}, False),
        ({"inputs": replace(float_inputs(3), batch=1)}, True),
        ({"model": chain(a=LINEAR, b=Linear(out=1)), "engines": ("ddp",)}, False),
        ({"model": chain(a=LINEAR, b=Linear(out=1)), "fsdp1": FSDP1(use_orig_params=True)}, False),
        ({"model": chain(a=LINEAR, b=Linear(out=1)), "wrap": groups("b", ROOT)}, False),
    ],
)
def test_a_product_with_a_vector_depends_on_where_the_flat_parameter_has_the_matrix(
    options: dict, expected: bool
) -> None:
    defaults = {"model": chain(a=LINEAR, b=LINEAR), "wrap": groups(ROOT), "inputs": float_inputs(3)}
    defaults["engines"] = ("fsdp1",)
    assert fsdp1_multiplies_otherwise(make_case(**defaults | options)) is expected


ONE_BETWEEN_FOURS = chain(
    a=Linear(out=4, bias=False), b=Linear(out=1), c=Linear(out=4), n=LayerNorm(bias=False)
)


@pytest.mark.parametrize(
    ("options", "device", "expected"),
    [
        ({}, "cuda", True),
        ({}, "cpu", False),
        ({"model": chain(a=Linear(out=4), n=LayerNorm())}, "cuda", False),
        ({"model": chain(a=LINEAR, n=LayerNorm())}, "cuda", False),
        (
            {
                "ties": (Tie(parameter="n.weight", source="a.bias"),),
                "model": chain(a=Linear(out=4), n=LayerNorm()),
            },
            "cuda",
            False,
        ),
        ({"wrap": groups("n", ROOT)}, "cuda", False),
        ({"engines": ("fully_shard",)}, "cuda", False),
        ({"fsdp1": FSDP1(use_orig_params=True)}, "cuda", False),
    ],
)
def test_a_norm_on_cuda_depends_on_where_the_flat_parameter_has_its_weight(
    options: dict, device: str, expected: bool
) -> None:
    defaults = {"model": ONE_BETWEEN_FOURS, "wrap": groups(ROOT), "engines": ("fsdp1",)}
    assert fsdp1_normalizes_otherwise(make_case(**defaults | options), device) is expected


def test_a_norm_with_a_tied_weight_lies_where_the_source_does() -> None:
    model = chain(a=Linear(out=1, bias=False), b=Linear(out=4), n=LayerNorm(bias=False))
    ties, options = (
        (Tie(parameter="n.weight", source="b.bias"),),
        {"inputs": float_inputs(3), "wrap": groups(ROOT)},
    )
    assert fsdp1_normalizes_otherwise(make_case(model, ties=ties, engines=("fsdp1",), **options), "cuda")
