"""What globs ask of a case."""

from __future__ import annotations

import pytest

from fuzzshard.analysis.feature_names import DIMENSIONS, FEATURES
from fuzzshard.analysis.feature_words import dimension_of
from fuzzshard.analysis.steering import Steering
from fuzzshard.case.case import ALL_ENGINES
from fuzzshard.errors import UsageError


def test_every_dimension_of_features_is_explained_and_has_features() -> None:
    assert {dimension_of(feature) for feature in FEATURES} == DIMENSIONS.keys()


def test_a_case_needs_a_feature_for_each_glob_that_is_required() -> None:
    steering = Steering(require=("checkpoint:*", "mesh:2|mesh:4"))
    assert steering.allows({"checkpoint:utils", "mesh:4"})
    assert not steering.allows({"checkpoint:utils", "mesh:3"})
    assert not steering.allows({"mesh:2", "mesh:4"})


def test_no_case_has_a_feature_that_is_excluded() -> None:
    steering = Steering(exclude=("compile:*", "leaf:dropout"))
    assert steering.allows({"leaf:linear"})
    assert not steering.allows({"leaf:linear", "compile:eager"})


def test_only_rules_out_the_rest_of_its_dimension_and_no_other() -> None:
    steering = Steering(only=("leaf:linear", "leaf:mlp"))
    assert steering.allows({"leaf:linear", "leaf:mlp", "mesh:3"})
    assert steering.allows({"mesh:3"})
    assert not steering.allows({"leaf:linear", "leaf:linear_no_bias"})


def test_engines_that_are_ruled_out_are_not_drawn_with() -> None:
    assert Steering().engines == ALL_ENGINES
    assert Steering(only=("engine:*shard",)).engines == ("fully_shard",)
    assert "fsdp1" not in Steering(exclude=("engine:fsdp1",)).engines
    assert Steering(only=("engine:ddp",)).of_engines_alone
    assert not Steering(only=("engine:ddp",), exclude=("ddp:*",)).of_engines_alone


def test_faults_count_what_a_case_lacks_and_has_too_much() -> None:
    steering = Steering(require=("mesh:hsdp", "compile:*"), exclude=("reuse:*",))
    present = frozenset(("reuse:alias", "reuse:tied_in_group", "compile:eager"))
    assert steering.faults(present) == (2, 1, 0)
    assert steering.complaints(present) == [
        "has reuse:alias, which --exclude 'reuse:*' rules out",
        "has reuse:tied_in_group, which --exclude 'reuse:*' rules out",
        "has no mesh:hsdp",
    ]


def test_the_words_of_a_steering_are_what_the_command_line_had() -> None:
    steering = Steering(only=("engine:ddp",), require=("ddp:hook*",))
    assert steering.words == ("--only engine:ddp", "--require 'ddp:hook*'")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"require": ("hsdp",)}, "--require hsdp matches no feature; did you mean mesh:hsdp?"),
        ({"only": ("checkpoint",)}, "--only checkpoint matches no .* did you mean checkpoint:*?"),
        ({"exclude": ("engine:fsdp3",)}, "did you mean engine:fsdp1"),
        ({"require": ("precison:bfloat16",)}, "did you mean precision:bfloat16"),
        ({"require": ("mesh:hsdp|bf16",)}, "did you mean precision:bfloat16?"),
        ({"require": ("zzz",)}, "matches no feature; fuzzshard features lists all of them"),
        (
            {"only": ("engine:ddp",), "require": ("engine:fsdp1",)},
            "--require engine:fsdp1 leaves no case to draw: --only engine:ddp rules it out",
        ),
        (
            {"exclude": ("compile:*",), "require": ("compile:eager",)},
            "--require compile:eager leaves no case to draw: --exclude 'compile:\\*' rules it out",
        ),
        ({"exclude": ("engine:*",)}, "no engine is left by --exclude 'engine:\\*'"),
    ],
)
def test_globs_that_cannot_be_meant_are_an_error_that_names_what_may_be(asked, said) -> None:
    with pytest.raises(UsageError, match=said):
        Steering(**asked)


@pytest.mark.parametrize("word", ["amp", "ac", "dcp", "fsdp", "mixed precision", "offload", "pp"])
def test_what_the_field_calls_a_feature_is_a_suggestion(word: str) -> None:
    with pytest.raises(UsageError, match="did you mean "):
        Steering(require=(word,))
