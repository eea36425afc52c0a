"""Which parameters share a flat parameter of FSDP1."""

from __future__ import annotations

from cases import ROOT, chain, groups, make_case

from fuzzshard.analysis.units import (
    parameter_groups,
    parameter_units,
    splits_a_unit,
    units,
)
from fuzzshard.case.case import Tie
from fuzzshard.case.graph import Alias
from fuzzshard.parts.leaves.linear import Linear

LINEAR = Linear(out=5)
NESTED = chain(p=chain(a=LINEAR, b=LINEAR), c=LINEAR)


def test_the_innermost_wrapped_module_has_a_parameter_and_the_root_has_the_rest() -> None:
    assert units(make_case(NESTED, wrap=groups("p.a", "p"))) == {
        "p.a": ("p.a.weight", "p.a.bias"),
        "p": ("p.b.weight", "p.b.bias"),
        ROOT: ("c.weight", "c.bias"),
    }


def test_a_tied_parameter_is_in_every_unit_that_registers_it() -> None:
    case = make_case(
        chain(a=LINEAR, b=LINEAR), ties=(Tie(parameter="b.weight", source="a.weight"),)
    )
    assert parameter_units(case)["a.weight"] == {"a", "b"}
    assert parameter_units(case)["a.bias"] == {"a"}


def test_groups_that_would_shard_a_tied_parameter_twice_both_come_upon_it() -> None:
    model, tie = chain(a=LINEAR, b=LINEAR), Tie(parameter="b.weight", source="a.weight")
    assert parameter_groups(make_case(model, ties=(tie,), wrap=groups("b", ROOT)))["a.weight"] == {
        0,
        1,
    }
    assert parameter_groups(make_case(model, ties=(tie,), wrap=groups(("a", "b"), ROOT)))[
        "a.weight"
    ] == {0}
    assert parameter_groups(make_case(model, wrap=groups("b")))["a.weight"] == frozenset()


def test_a_module_below_an_alias_is_in_the_unit_that_the_alias_is_in() -> None:
    model = chain(a=LINEAR, q=chain(b=LINEAR, again=Alias(target="a")))
    assert parameter_units(make_case(model, wrap=groups("q", ROOT)))["a.weight"] == {ROOT, "q"}
    assert parameter_units(make_case(model, wrap=groups("a", "q", ROOT)))["a.weight"] == {"a"}


def test_a_target_splits_a_unit_that_it_has_a_part_of() -> None:
    case = make_case(NESTED, wrap=groups("p.a", ROOT))
    assert [splits_a_unit(case, target) for target in ("p.a", ROOT, "p.b", "p.a.bias")] == [
        False,
        False,
        True,
        True,
    ]
