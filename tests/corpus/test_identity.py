from __future__ import annotations

import pytest
from msgspec.structs import replace
from verdicts import crash, divergence

from fuzzshard.identity import said, shows
from fuzzshard.verdict import Finding, Status, Verdict

RECORDED = crash("IndexError in foreach_all_gather_copy_out", "list index out of range")
MOVED = crash("IndexError in _reassemble_all_gather_outputs", "list index out of range")


def test_a_crash_that_moved_to_another_function_is_the_same_in_another_release() -> None:
    assert shows(MOVED, RECORDED.signature, RECORDED.findings)


def test_under_one_release_the_signature_says_it() -> None:
    assert not shows(MOVED, RECORDED.signature)
    assert shows(RECORDED, RECORDED.signature)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (
            crash("AssertionError in inner_fn", "too few"),
            crash("IndexError in inner_fn", "out of range"),
        ),
        (
            crash("RuntimeError in _chunk_cat", "empty"),
            crash("RuntimeError in chunk_cat", "no elements"),
        ),
        (
            crash(
                "RuntimeError in g",
                "size of tensor a (3) must match b (2) at 0x7f, see /a/b.py:12",
            ),
            crash(
                "RuntimeError in f",
                "size of tensor a (16) must match b (4) at 0xFF, see /c/b.py:900",
            ),
        ),
        (
            crash("KeyError in g", "no key \"block1.linear0.weight\" in 'alias3', have 'data'"),
            crash("KeyError in f", "no key \"linear2.weight\" in 'alias0', have 'data'"),
        ),
        (
            crash(
                "RuntimeError in g", "sizes [2, 2], strides (1,), torch.Size([])\nTip: new words"
            ),
            crash("RuntimeError in f", "sizes [4], strides (2, 1), torch.Size([2, 2])\nold words"),
        ),
    ],
    ids=["function", "underscores", "numbers", "names", "shapes"],
)
def test_what_a_release_may_have_changed_of_a_crash(now: Verdict, before: Verdict) -> None:
    assert shows(now, before.signature, before.findings)


@pytest.mark.parametrize(
    "now",
    [
        crash("IndexError in _reassemble_all_gather_outputs", "pop from empty list"),
        crash("KeyError in _reassemble_all_gather_outputs", "list index out of range"),
        crash(
            "IndexError in _reassemble_all_gather_outputs",
            "list index out of range",
            engine="fsdp1",
        ),
        crash("desync", "list index out of range"),
        divergence("registration"),
        Verdict(status=Status.PASS),
        Verdict(
            status=Status.DIVERGENCE,
            findings=(replace(RECORDED.findings[0], oracle="expectation"),),
        ),
    ],
    ids=["message", "class", "engine", "desync", "divergence", "pass", "expectation"],
)
def test_another_finding_is_another_in_every_release(now: Verdict) -> None:
    assert not shows(now, RECORDED.signature, RECORDED.findings)


def test_errors_without_a_message_are_not_the_same_for_that() -> None:
    now, before = crash("AssertionError in g", ""), crash("AssertionError in f", "")
    assert not shows(now, before.signature, before.findings)


def test_a_divergence_is_told_by_its_oracle_in_every_release() -> None:
    before = divergence("gradient")
    assert shows(divergence("gradient"), before.signature, before.findings)
    assert not shows(divergence("parameter"), before.signature, before.findings)


def test_what_only_instruments_see_of_a_release_makes_no_other_finding() -> None:
    before, internal = divergence("gradient"), divergence("unreduced_gradient")
    both = replace(before, findings=(*internal.findings, *before.findings))
    assert shows(both, before.signature, before.findings)
    assert shows(before, both.signature, both.findings)
    assert not shows(both, before.signature)
    assert not shows(before, internal.signature, internal.findings)
    assert not shows(divergence("communication"), internal.signature, internal.findings)


def test_a_lost_collective_is_the_same_however_it_shows() -> None:
    hung = Finding(oracle="deadline", engine="ddp", observed="5 s", expected="an end")
    died = Finding(oracle="exit", engine="ddp", observed="died", expected="", detail="SIGABRT")
    hang = Verdict(status=Status.HANG, findings=(hung,))
    assert shows(Verdict(status=Status.CRASH, findings=(died,)), hang.signature, hang.findings)


def test_a_message_keeps_what_says_what_is_wrong() -> None:
    text = (
        "RuntimeError: expected m1 and m2 to have the same dtype, but got: float != "
        "c10::Half\nmore"
    )
    assert said(text) == text.splitlines()[0]
