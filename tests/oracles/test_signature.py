"""A signature names the kind of a finding and nothing that varies from case to case."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fuzzshard.parts.oracle import MISSING, NOT_REFUSED, UNEXPECTED, Severity
from fuzzshard.verdict import Finding, Status, Verdict, severity_of, signature_of


def signature(oracle: str, detail: str = "", **fields: object) -> str:
    finding = Finding(
        **{"engine": "fully_shard", "observed": "1", "expected": "2", **fields},
        oracle=oracle,
        detail=detail,
    )
    return Verdict(status=Status.DIVERGENCE, findings=(finding,)).signature


@pytest.mark.parametrize(
    ("oracle", "detail", "expected"),
    [
        ("gradient", "", "divergence/fully_shard/gradient"),
        ("gradient", MISSING, "divergence/fully_shard/gradient/missing"),
        ("gradient", UNEXPECTED, "divergence/fully_shard/gradient/unexpected"),
        ("gradient", "gray", "divergence/fully_shard/gradient"),
        ("registration", "", "divergence/fully_shard/registration"),
        ("exception", "KeyError in unshard", "crash/fully_shard/KeyError in unshard"),
        ("exit", "SIGSEGV", "death/fully_shard/SIGSEGV"),
        ("exit", "exit code 3", "death/fully_shard/exit code 3"),
    ],
)
def test_a_finding_has_a_signature(oracle: str, detail: str, expected: str) -> None:
    assert signature(oracle, detail) == expected


def test_the_signature_has_no_op_no_name_no_rank_and_no_number() -> None:
    assert signature("gradient") == signature(
        "gradient", op=3, name="a.weight", rank=1, error=2.0, bound=1.0
    )


@pytest.mark.parametrize("detail", ["", MISSING])
def test_engines_that_agree_against_the_reference_have_a_signature_of_their_own(
    detail: str,
) -> None:
    shared = signature("gradient", detail, agrees_with=("replicate", "ddp"))
    assert shared == f"{signature('gradient', detail)}/shared"


def test_engines_of_one_implementation_that_agree_are_one_engine() -> None:
    assert signature("gradient", engine="replicate", agrees_with=("ddp",)) == signature(
        "gradient", engine="replicate"
    )


def test_a_lost_collective_has_one_signature_however_it_shows() -> None:
    seen = {signature("deadline"), signature("exit", "SIGABRT"), signature("exception", "desync")}
    assert seen == {"desync/fully_shard"}


def test_the_first_finding_names_the_verdict() -> None:
    first, second = (
        Finding(oracle=oracle, engine="ddp", observed="", expected="")
        for oracle in ("output", "gradient")
    )
    verdict = Verdict(status=Status.DIVERGENCE, findings=(first, second))
    assert verdict.signature == "divergence/ddp/output"


def test_without_a_finding_there_is_no_signature() -> None:
    assert Verdict(status=Status.PASS).signature == ""


@pytest.mark.parametrize("status", Status)
def test_three_outcomes_accuse_an_engine(status: Status) -> None:
    assert status.is_finding == (status in ("DIVERGENCE", "CRASH", "HANG"))


def test_an_oracle_of_another_release_is_read_by_its_name() -> None:
    finding = Finding(oracle="moment", engine="ddp", observed="1", expected="2", detail=MISSING)
    assert signature_of([finding]) == "divergence/ddp/moment/missing"
    assert not finding.internal


@pytest.mark.parametrize(
    ("oracle", "detail", "expected"),
    [
        ("gradient", MISSING, Severity.SILENT),
        ("registration", "", Severity.LAYOUT),
        ("leak", "layout", Severity.SILENT),
        ("expectation", NOT_REFUSED, Severity.SILENT),
        ("deadline", "", Severity.HANG),
        ("exception", "desync", Severity.HANG),
        ("exit", "SIGABRT", Severity.HANG),
        ("exception", "KeyError in unshard", Severity.CRASH),
        ("exit", "SIGSEGV", Severity.CRASH),
        ("expectation", "KeyError in unshard", Severity.CRASH),
        ("leak", "survivor", Severity.LEAK),
        ("warning", "", Severity.WARNING),
        ("leak", "state", Severity.INTERNAL),
        ("hooks", "", Severity.INTERNAL),
    ],
)
def test_a_finding_has_a_severity(oracle: str, detail: str, expected: Severity) -> None:
    finding = Finding(
        oracle=oracle, engine="fully_shard", observed="1", expected="2", detail=detail
    )
    assert finding.severity is expected


def test_the_shape_of_an_empty_tensor_is_no_wrong_value() -> None:
    finding = Finding(
        oracle="parameter",
        engine="fully_shard",
        observed="a tensor of shape [0, 0], torch.float32",
        expected="a tensor of shape [1, 0], torch.float32",
    )
    assert finding.severity is Severity.LAYOUT
    wide = replace(finding, expected="a tensor of shape [1, 2], torch.float32")
    assert wide.severity is Severity.SILENT


def test_the_first_finding_that_a_user_sees_says_how_severe_a_verdict_is() -> None:
    internal, silent, crash = (
        Finding(oracle=oracle, engine="fully_shard", observed="1", expected="2")
        for oracle in ("hooks", "gradient", "exception")
    )
    assert severity_of([internal, silent, crash]) is Severity.SILENT
    assert severity_of([internal]) is Severity.INTERNAL
    assert severity_of([]) is None
    assert Severity.worst([Severity.CRASH, Severity.SILENT, Severity.HANG]) is Severity.SILENT
