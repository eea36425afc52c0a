"""Which known bugs are tried first."""

from __future__ import annotations

from cases import make_case
from msgspec.structs import replace

from fuzzshard.analysis.features import features
from fuzzshard.campaign.likely import Example, Experience

CASE = make_case()
PRESENT = frozenset([*features(CASE)][:3])
ABSENT = PRESENT | {"op:no_such_op"}
HERE, NEAR, FAR = "divergence/ddp/gradient", "divergence/ddp/gradient/missing", "hang/fsdp1"


def ranked(experience: Experience, signature: str = HERE) -> list[str]:
    return [name for (name,) in experience.likeliest(CASE, signature)]


def test_what_had_the_same_signature_comes_before_what_was_met_more_often() -> None:
    experience = Experience()
    for signature, cause, times in ((FAR, "often", 9), (HERE, "once", 1), (NEAR, "near", 2)):
        for _ in range(times):
            experience.count(signature, [cause])
    assert ranked(experience) == ["once", "near", "often"]
    assert ranked(experience, FAR)[0] == "often"
    assert (experience.num_cases, experience.cases["often"]) == (12, 9)


def test_another_engine_says_more_than_another_oracle() -> None:
    experience = Experience()
    for signature, cause in (("divergence/ddp/loss", "oracle"), ("divergence/fsdp1/loss", "both")):
        experience.count(signature, [cause])
    experience.count("divergence/fsdp1/gradient", ["engine"])
    assert ranked(experience) == ["engine", "oracle", "both"]


def test_what_was_met_more_often_comes_first_among_equals() -> None:
    experience = Experience()
    for cause in ("a", "b", "b"):
        experience.count(HERE, [cause])
    assert ranked(experience) == ["b", "a"]


def test_a_saved_finding_counts_whose_features_the_case_has() -> None:
    experience = Experience()
    experience.learn("other", Example(HERE, ABSENT))
    experience.learn("this", Example(HERE, PRESENT))
    experience.learn("far", Example(FAR, PRESENT))
    assert ranked(experience) == ["this", "other", "far"]


def test_several_causes_are_one_set() -> None:
    experience = Experience()
    experience.count(HERE, ["a", "b"])
    assert experience.likeliest(replace(CASE, seed=3), HERE) == {("a", "b"): 1.0}
    assert experience.cases == {"a": 1, "b": 1}
