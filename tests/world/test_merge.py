"""One verdict from what the ranks said, for every way in which they can fall silent."""

from __future__ import annotations

import signal

import msgspec
import pytest
from cases import make_case

from fuzzshard.verdict import Compared, Finding, Status, Verdict
from fuzzshard.world.merge import MOST_FINDINGS, Outcome, merge
from fuzzshard.world.messages import Failure, RankReport

CASE = make_case()
KILLED, ABORTED, TERMINATED = -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM


def finding(oracle: str = "gradient", **fields) -> Finding:
    return Finding(
        **{"oracle": oracle, "engine": "fully_shard", "observed": "1", "expected": "2", **fields}
    )


def report(*findings: Finding, **fields) -> RankReport:
    replicas = {"reference": "7:1", "ddp": "7:1", "fully_shard": "8:1"}
    return RankReport(
        findings=findings, **{"comparison": "bitwise", "replicas": replicas, **fields}
    )


def failure(
    text: str,
    *,
    engine: str = "fully_shard",
    desync: bool = False,
    phase: str = "engine",
    kernel: str = "",
) -> Failure:
    return Failure(
        kernel=kernel,
        phase=phase,
        engine=engine,
        message=f"RuntimeError: {text}",
        detail="RuntimeError in reshard",
        traceback=f"traceback of {text}",
        op=1,
        desync=desync,
    )


def outcome(**fields) -> Outcome:
    heard = Outcome(size=2, **fields)
    heard.engines = heard.engines or {0: "fully_shard", 1: "fully_shard"}
    return heard


def judged(heard: Outcome) -> Verdict:
    return merge(CASE, heard, seconds=0.5, limit=2.0)


def test_reports_without_findings_pass() -> None:
    verdict = judged(outcome(reports={0: report(), 1: report()}))
    assert (verdict.status, verdict.comparison, verdict.seconds) == (Status.PASS, "bitwise", 0.5)


def test_what_a_user_can_see_stays_however_much_instruments_see_before() -> None:
    internal = [finding("hooks", op=op) for op in range(MOST_FINDINGS + 3)]
    assert judged(outcome(reports={0: report(*internal), 1: report()})).internal
    verdict = judged(outcome(reports={0: report(*internal, finding(op=90)), 1: report()}))
    assert (len(verdict.findings), verdict.internal) == (MOST_FINDINGS, False)
    assert (verdict.findings[-1].oracle, verdict.signature) == (
        "gradient",
        "divergence/fully_shard/hooks",
    )


@pytest.mark.parametrize(
    ("oracle", "detail", "internal"),
    [
        ("unreduced_gradient", "missing", True),
        ("communication", "", True),
        ("leak", "state", True),
        ("leak", "memory", False),
        ("leak", "survivor", False),
        ("leak", "hook", False),
        ("registration", "", False),
        ("collectives", "", False),
        ("gradient", "", False),
    ],
)
def test_a_finding_is_internal_if_no_user_can_see_it(
    oracle: str, detail: str, internal: bool
) -> None:
    verdict = judged(outcome(reports={0: report(finding(oracle, detail=detail)), 1: report()}))
    assert verdict.internal is internal


def test_a_finding_of_any_rank_is_a_divergence() -> None:
    verdict = judged(outcome(reports={0: report(), 1: report(finding(rank=1))}))
    assert (verdict.status, verdict.signature) == (
        Status.DIVERGENCE,
        "divergence/fully_shard/gradient",
    )


def test_findings_come_in_order_of_op_then_nearness_to_the_cause_then_name_then_rank() -> None:
    late, far = finding(op=2), finding("registration", op=1)
    b, a1, a0 = (finding(op=1, name=n, rank=r) for n, r in (("b", 0), ("a", 1), ("a", 0)))
    verdict = judged(outcome(reports={0: report(late, far, b, a0), 1: report(a1)}))
    assert verdict.findings == (a0, a1, b, far, late)


def test_only_the_first_findings_are_kept() -> None:
    many = [finding(name=f"n{i}") for i in range(20)]
    verdict = judged(outcome(reports={0: report(*many), 1: report(*many)}))
    assert len(verdict.findings) == MOST_FINDINGS


@pytest.mark.parametrize(
    "lost",
    [
        {"failures": {1: failure("x", kernel="misaligned address")}},
        {
            "failures": {
                0: failure("own"),
                1: failure("x", phase="judge", kernel="misaligned address"),
            }
        },
        {
            "dead": {1},
            "exits": {1: ABORTED},
            "stacks": {1: "what(): CUDA error: misaligned address"},
        },
    ],
    ids=[
        "raised by the engine",
        "raised later, beside an error of a peer",
        "printed by a dying rank",
    ],
)
def test_an_error_of_a_kernel_is_one_finding_however_it_is_noticed(lost) -> None:
    verdict = judged(outcome(**lost))
    assert (verdict.status, verdict.signature) == (
        Status.CRASH,
        "death/fully_shard/misaligned address",
    )
    assert verdict.findings[0].observed.endswith("CUDA error: misaligned address")


def test_idle_ranks_say_nothing() -> None:
    verdict = judged(outcome(reports={0: report(notes={"ddp": "n/a"}), 1: RankReport(idle=True)}))
    assert (verdict.status, verdict.notes) == (Status.PASS, {"ddp": "n/a"})


def test_a_refusal_without_findings_is_rejected_with_its_text() -> None:
    notes = {"ddp": "not applicable: x", "fully_shard": "refused: tied"}
    refused = report(notes=notes, refused=("fully_shard",))
    verdict = judged(outcome(reports={0: refused, 1: refused}))
    assert (verdict.status, verdict.message) == (Status.REJECTED, "fully_shard refused: tied")


def test_what_does_not_apply_is_no_refusal() -> None:
    noted = report(notes={"ddp": "not applicable: x"})
    assert judged(outcome(reports={0: noted, 1: noted})).status is Status.PASS


def test_a_finding_beats_another_engines_refusal() -> None:
    both = report(finding(), notes={"ddp": "refused: frozen"}, refused=("ddp",))
    verdict = judged(outcome(reports={0: both, 1: both}))
    assert verdict.status is Status.DIVERGENCE
    assert verdict.notes == {"ddp": "refused: frozen"}


def test_what_is_wrong_with_the_reference_alone_accuses_us() -> None:
    ours = finding(engine="reference")
    verdict = judged(outcome(reports={0: report(ours), 1: report(ours)}))
    assert verdict.status is Status.INFRA
    assert verdict.message.startswith("the reference: ")


def test_engines_that_agree_against_the_reference_are_a_finding_of_its_own_kind() -> None:
    both = (finding(agrees_with=("ddp",)), finding(engine="ddp", agrees_with=("fully_shard",)))
    verdict = judged(outcome(reports={0: report(*both), 1: report(*both)}))
    assert verdict.status is Status.DIVERGENCE
    assert verdict.signature == "divergence/fully_shard/gradient/shared"
    assert {f.engine for f in verdict.findings} == {"fully_shard", "ddp"}


def test_one_rank_whose_shard_is_right_hides_no_agreement() -> None:
    alone = finding(engine="ddp")
    both = (finding(agrees_with=("ddp",)), finding(engine="ddp", agrees_with=("fully_shard",)))
    verdict = judged(outcome(reports={0: report(alone), 1: report(*both)}))
    assert (verdict.findings[0].rank, verdict.findings[0].engine) == (0, "ddp")
    assert verdict.signature == "divergence/ddp/gradient/shared"


def test_what_ranks_compared_adds_up_by_the_comparison_that_demands_least() -> None:
    here = report(compared={"ddp": Compared(comparison="bitwise", tensors=5, skipped=1)})
    there = report(compared={"ddp": Compared(comparison="precision", tensors=4, skipped=2)})
    for reports in ({0: here, 1: there}, {0: there, 1: here}):
        verdict = judged(outcome(reports=reports))
        assert verdict.compared == {"ddp": Compared(comparison="precision", tensors=9, skipped=3)}


def test_other_collectives_on_another_rank_are_a_finding() -> None:
    first = report(collectives={"ddp": "", "fully_shard": "all_gather(4, 8)"})
    second = report(collectives={"ddp": "", "fully_shard": "all_gather(4, 8), all_gather(4, 8)"})
    verdict = judged(outcome(reports={0: first, 1: second}))
    assert verdict.signature == "divergence/fully_shard/collectives"
    assert verdict.findings[0].observed == "all_gather(4, 8), all_gather(4, 8) on rank 1"
    assert "all_gather(4, 8) on rank 0" in verdict.findings[0].expected


def test_different_copies_of_one_piece_are_a_finding() -> None:
    first, second = (report(replicas={"ddp": "7:1", "fully_shard": f"8:{n}"}) for n in (1, 2))
    verdict = judged(outcome(reports={0: first, 1: second}))
    assert verdict.signature == "divergence/fully_shard/replicas"
    assert (verdict.findings[0].rank, verdict.findings[0].op) == (1, len(CASE.schedule) - 1)


def test_different_pieces_are_no_copies() -> None:
    first, second = (report(replicas={"fully_shard": f"{n}:{n}"}) for n in (1, 2))
    assert judged(outcome(reports={0: first, 1: second})).status is Status.PASS


def test_an_exception_is_a_crash_of_its_engine_with_every_traceback() -> None:
    verdict = judged(outcome(failures={1: failure("x")}, reports={0: report()}))
    assert (verdict.status, verdict.signature) == (
        Status.CRASH,
        "crash/fully_shard/RuntimeError in reshard",
    )
    assert (verdict.findings[0].rank, verdict.findings[0].op) == (1, 1)
    assert verdict.stacks == {"rank 1": "traceback of x"}


def crashed_after(*findings: Finding, **fields) -> Verdict:
    late = msgspec.structs.replace(failure("x", **fields), op=3, findings=findings)
    return judged(outcome(failures={0: late}))


def test_a_wrong_value_before_a_crash_is_the_finding_and_the_crash_is_kept() -> None:
    verdict = crashed_after(finding("registration", op=2), finding(op=1))
    assert (verdict.status, verdict.signature) == (
        Status.DIVERGENCE,
        "divergence/fully_shard/gradient",
    )
    assert [f.oracle for f in verdict.findings] == ["gradient", "exception", "registration"]
    assert verdict.stacks == {"rank 0": "traceback of x"}


def test_what_is_no_wrong_value_or_comes_later_does_not_hide_a_crash() -> None:
    verdict = crashed_after(finding("registration", op=1), finding(engine="ddp", op=4))
    assert (verdict.status, verdict.signature) == (
        Status.CRASH,
        "crash/fully_shard/RuntimeError in reshard",
    )
    assert [f.oracle for f in verdict.findings] == ["exception", "registration", "gradient"]


def test_a_lost_peer_is_a_desync_whatever_was_seen_before() -> None:
    assert crashed_after(finding(op=1), desync=True).signature == "desync/fully_shard"


def test_another_exception_than_the_expected_one_breaks_the_expectation() -> None:
    other = msgspec.structs.replace(failure("x"), expected="an error at op 1 that matches 'y'")
    verdict = judged(outcome(failures={0: other, 1: other}))
    assert (verdict.status, verdict.signature) == (
        Status.DIVERGENCE,
        "divergence/fully_shard/expectation/RuntimeError in reshard",
    )
    assert verdict.findings[0].observed == "RuntimeError: x"
    assert verdict.findings[0].expected == "an error at op 1 that matches 'y'"


def test_an_exception_of_its_own_beats_what_its_peers_saw() -> None:
    heard = outcome(
        failures={0: failure("Connection closed by peer", desync=True), 1: failure("own")}
    )
    assert judged(heard).findings[0].observed == "RuntimeError: own"
    heard = outcome(failures={1: failure("own")}, dead={0}, exits={0: ABORTED})
    assert judged(heard).findings[0].rank == 1


def test_an_exception_beats_peers_that_wait_and_their_stacks_are_kept() -> None:
    heard = outcome(failures={1: failure("own")}, stacks={0: "waits in all_gather"})
    verdict = judged(heard)
    assert verdict.status is Status.CRASH
    assert verdict.stacks == {"rank 0": "waits in all_gather", "rank 1": "traceback of own"}


def test_lost_peers_alone_are_a_desync() -> None:
    verdict = judged(outcome(failures={0: failure("Connection closed by peer", desync=True)}))
    assert (verdict.status, verdict.signature) == (Status.CRASH, "desync/fully_shard")


@pytest.mark.parametrize(
    ("code", "signature"),
    [
        (ABORTED, "desync/fully_shard"),
        (-signal.SIGSEGV, "death/fully_shard/SIGSEGV"),
        (3, "death/fully_shard/exit code 3"),
        (0, "death/fully_shard/exit code 0"),
    ],
)
def test_a_death_is_a_crash_of_the_engine_it_happened_in(code: int, signature: str) -> None:
    verdict = judged(outcome(dead={1}, exits={1: code}, stacks={1: "Fatal Python error"}))
    assert (verdict.status, verdict.signature) == (Status.CRASH, signature)
    assert verdict.stacks == {"rank 1": "Fatal Python error"}


def test_a_death_beats_what_its_peers_saw_of_it() -> None:
    peer = failure("Connection closed by peer", desync=True)
    verdict = judged(outcome(failures={0: peer}, dead={1}, exits={1: -signal.SIGSEGV}))
    assert verdict.signature == "death/fully_shard/SIGSEGV"


@pytest.mark.parametrize("code", [KILLED, TERMINATED])
def test_a_rank_killed_from_outside_accuses_nobody(code: int) -> None:
    peer = failure("Connection closed by peer", desync=True)
    verdict = judged(outcome(failures={0: peer}, dead={1}, exits={1: code}))
    assert (verdict.status, verdict.findings) == (Status.INFRA, ())
    assert f"rank 1 was killed by {signal.Signals(-code).name}" in verdict.message


def test_a_rank_killed_from_outside_explains_the_abort_of_another() -> None:
    verdict = judged(outcome(dead={0, 1}, exits={0: ABORTED, 1: KILLED}))
    assert verdict.status is Status.INFRA


def test_ranks_that_neither_report_nor_die_hang_in_the_engine_they_were_last_heard_in() -> None:
    heard = outcome(
        reports={0: report()}, stacks={1: "File a.py"}, engines={0: "ddp", 1: "fully_shard"}
    )
    verdict = judged(heard)
    assert (verdict.status, verdict.signature) == (Status.HANG, "desync/fully_shard")
    assert verdict.findings[0].observed == "ranks [1] had not finished after 2.0 s"
    assert verdict.stacks == {"rank 1": "File a.py"}


@pytest.mark.parametrize(
    "heard",
    [
        outcome(failures={0: failure("x", engine="reference")}),
        outcome(failures={0: failure("x", engine="", phase="judge")}),
        outcome(dead={0}, exits={0: -signal.SIGSEGV}, engines={0: "reference"}),
        outcome(engines={0: "reference", 1: "reference"}),
        Outcome(size=2),
    ],
    ids=["exception", "judging", "death", "hang", "before any engine"],
)
def test_what_happens_outside_an_engine_accuses_us(heard: Outcome) -> None:
    verdict = judged(heard)
    assert (verdict.status, verdict.findings) == (Status.INFRA, ())
    assert verdict.message
