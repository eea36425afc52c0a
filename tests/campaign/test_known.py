"""Which features make a finding."""

from cases import groups, make_case

from fuzzshard.campaign.known import Found, Known, Registry, cause_of
from fuzzshard.case.options import FSDP1
from fuzzshard.verdict import Finding, Status, Verdict


def test_the_defaults_of_an_engine_cause_nothing():
    minimal = make_case(engines=("fsdp1",), fsdp1=FSDP1(use_orig_params=True))
    cause = cause_of(minimal, minimal)
    assert "fsdp1:orig_params" in cause
    assert cause.isdisjoint({"fsdp1:full_shard", "fsdp1:backward_prefetch_pre", "engine:fsdp1"})


def test_a_cause_is_what_the_smallest_case_shares_with_the_one_it_was_found_as():
    minimal = make_case(wrap=groups("", reshard=True))
    found = make_case(wrap=groups(("a", "b"), ""))
    assert "reshard:true" not in cause_of(minimal, found)
    assert "wrap:root" not in cause_of(minimal, found)


def test_a_crash_is_known_from_another_release_that_has_it_in_another_function(tmp_path):
    def crash(function):
        detail = f"IndexError in {function}"
        return Finding(
            oracle="exception", engine="ddp", observed="IndexError: 3", expected="", detail=detail
        )

    case, registry = make_case(), Registry()
    found = Found(0, case, Verdict(status=Status.CRASH, findings=(crash("now"),)))
    known = Known("crash/ddp/IndexError in before", tmp_path, frozenset({"mesh:2"}))
    registry.known.append(known)
    assert registry.hit(found) is None
    known.elsewhere = (crash("before"),)
    assert registry.hit(found) == known
