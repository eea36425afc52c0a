from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from verdicts import PASS, FakeWorld, crash, divergence, entry

from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.corpus.entry import Confirmation
from fuzzshard.corpus.files import write_atomic
from fuzzshard.corpus.lifecycle import Lifecycle
from fuzzshard.corpus.outcome import UNHURRIED, Outcome, exit_code
from fuzzshard.corpus.replay import ReplayResult, replay
from fuzzshard.doctor import clean_case
from fuzzshard.errors import InfraError
from fuzzshard.instruments import OFF, UNREDUCED, off_text
from fuzzshard.verdict import Finding, Note, Status, Verdict


class NextRelease(FakeWorld):
    """Torch as it is after the release that findings were seen on."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers, torch="2.14.0")


def save(path: Path, *, num_ranks: int = 2, device: str = "cpu", **how: Any) -> Path:
    backend = "nccl" if device == "cuda" else "gloo"
    saved = entry(clean_case(num_ranks), backend=backend, **how)
    write_atomic(path / "case.json", encode_entry(saved))
    return path / "case.json"


def bare(path: Path) -> Path:
    write_atomic(path, codec.encode(clean_case(2)))
    return path


def outcomes(results: Iterator[ReplayResult]) -> list[Outcome]:
    return [result.outcome for result in results]


def run(world: NextRelease, *files: Path, num_ranks: int = 4) -> list[ReplayResult]:
    return list(replay(files, world.start, device="cpu", num_ranks=num_ranks))


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (divergence(), Outcome.SAME),
        (divergence("parameter"), Outcome.CHANGED),
        (PASS, Outcome.FIXED),
        (Verdict(status=Status.REJECTED), Outcome.FIXED),
        (Verdict(status=Status.INCONCLUSIVE), Outcome.INCONCLUSIVE),
        (Verdict(status=Status.INFRA), Outcome.INFRA),
        (InfraError("no ranks"), Outcome.INFRA),
    ],
)
def test_a_finding_is_compared_by_its_signature(
    tmp_path: Path, verdict: Verdict | Exception, outcome: Outcome
) -> None:
    (result,) = run(NextRelease(verdict), save(tmp_path / "a"))
    assert (result.path, result.outcome) == (tmp_path / "a", outcome)


def test_an_engine_that_was_not_run_has_not_lost_its_finding(tmp_path: Path) -> None:
    excluded = Note("not applicable", "parameters are modified")
    notes = {"fully_shard": str(excluded), "ddp": str(Note("refused", "no"))}
    world = NextRelease(replace(PASS, notes=notes))
    (result,) = run(world, save(tmp_path / "a"))
    assert result.outcome is Outcome.SKIPPED
    assert result.message == "fully_shard is not applicable: parameters are modified"
    (fixed,) = run(
        NextRelease(replace(PASS, notes={"ddp": notes["fully_shard"]})), save(tmp_path / "a")
    )
    assert fixed.outcome is Outcome.FIXED


def test_a_finding_of_an_instrument_that_is_off_is_not_gone(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    world.info[OFF] = off_text({UNREDUCED.name: "read 2 and not 1"})
    (result,) = run(world, save(tmp_path / "a", verdict=divergence("unreduced_gradient")))
    assert (result.outcome, UNREDUCED.name in result.message) == (Outcome.SKIPPED, True)
    seen = divergence("unreduced_gradient").findings + divergence("gradient").findings
    both = Verdict(status=Status.DIVERGENCE, findings=seen)
    assert outcomes(iter(run(world, save(tmp_path / "b", verdict=both)))) == [Outcome.FIXED]


@pytest.mark.parametrize(
    ("torch", "outcome"), [("2.14.0", Outcome.SAME), ("2.13.0+cu126", Outcome.CHANGED)]
)
def test_a_crash_in_another_function_is_the_same_in_another_release(
    tmp_path: Path, torch: str, outcome: Outcome
) -> None:
    now, before = (
        crash(f"IndexError in {name}", "out of range") for name in ("_reassemble", "copy_out")
    )
    world = NextRelease(now)
    world.info["torch"] = torch
    (result,) = run(world, save(tmp_path / "a", verdict=before))
    assert (result.outcome, now.signature in result.message) == (outcome, True)


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (PASS, Outcome.PASS),
        (Verdict(status=Status.REJECTED), Outcome.PASS),
        (divergence(), Outcome.CHANGED),
    ],
)
def test_a_bare_case_is_expected_to_pass(
    tmp_path: Path, verdict: Verdict, outcome: Outcome
) -> None:
    (result,) = run(NextRelease(verdict), bare(tmp_path / "mlp.json"))
    assert (result.path, result.outcome) == (tmp_path / "mlp.json", outcome)


def test_a_known_finding_is_no_news_where_nothing_is_expected(tmp_path: Path) -> None:
    world, parameter = NextRelease(divergence("parameter")), "divergence/fully_shard/parameter"
    results = list(
        replay(
            [bare(tmp_path / "mlp.json"), save(tmp_path / "entry")],
            world.start,
            device="cpu",
            num_ranks=4,
            explain=lambda world, case, verdict: (
                ["late", "early"] if verdict.signature == parameter else []
            ),
        )
    )
    assert outcomes(iter(results)) == [Outcome.KNOWN, Outcome.CHANGED]
    assert results[0].message == f"{parameter}, caused by late, early"
    assert exit_code([Outcome.KNOWN, Outcome.PASS]) == 0


HUNG = Verdict(
    status=Status.HANG,
    findings=(
        Finding(oracle="deadline", engine="fully_shard", observed="300 s", expected="an end"),
    ),
)


@pytest.mark.parametrize(("second", "outcome"), [(PASS, Outcome.PASS), (HUNG, Outcome.CHANGED)])
def test_ranks_that_waited_for_each_other_once_may_have_been_kept_from_running(
    tmp_path: Path, second: Verdict, outcome: Outcome
) -> None:
    world = NextRelease(HUNG, second)
    (result,) = run(world, bare(tmp_path / "mlp.json"))
    assert (result.outcome, len(world.cases)) == (outcome, 2)


def test_ranks_that_wait_are_asked_again_unless_that_is_the_finding(tmp_path: Path) -> None:
    world = NextRelease(HUNG, divergence())
    (result,) = run(world, save(tmp_path / "a"))
    assert (result.outcome, len(world.cases)) == (Outcome.SAME, 2)
    world = NextRelease(HUNG)
    (result,) = run(world, save(tmp_path / "b", verdict=HUNG))
    assert (result.outcome, len(world.cases)) == (Outcome.SAME, 1)


def marked(path: Path, **changes: object) -> Path:
    """An entry that somebody has looked at since it was found with torch 2.13.0."""
    file = save(path)
    write_atomic(file, encode_entry(msgspec.structs.replace(read_entry(file), **changes)))
    return file


@pytest.mark.parametrize(
    ("changes", "verdict", "outcome"),
    [
        ({"lifecycle": Lifecycle.FIXED, "good_on": ("2.14.0",)}, PASS, Outcome.PASS),
        ({"lifecycle": Lifecycle.FIXED, "good_on": ("2.14.0",)}, divergence(), Outcome.CHANGED),
        ({"lifecycle": Lifecycle.WONTFIX}, divergence(), Outcome.WONTFIX),
        ({"lifecycle": Lifecycle.WONTFIX}, PASS, Outcome.FIXED),
        ({"lifecycle": Lifecycle.FLAKY}, divergence(), Outcome.SAME),
        ({"lifecycle": Lifecycle.FLAKY}, PASS, Outcome.INCONCLUSIVE),
        ({"bad_on": ("2.15.0",)}, PASS, Outcome.PASS),
        ({"bad_on": ("2.15.0",)}, divergence(), Outcome.SAME),
    ],
)
def test_what_became_of_a_finding_decides_what_its_return_means(
    tmp_path: Path, changes: dict[str, object], verdict: Verdict, outcome: Outcome
) -> None:
    (result,) = run(NextRelease(verdict), marked(tmp_path / "a", **changes))
    assert result.outcome is outcome


def test_a_regression_says_when_it_was_fixed(tmp_path: Path) -> None:
    file = marked(tmp_path / "a", lifecycle=Lifecycle.FIXED, good_on=("2.13.1",))
    (result,) = run(NextRelease(divergence()), file)
    assert (
        result.message
        == "divergence/fully_shard/gradient is back in torch 2.14.0, and was fixed in 2.13.1"
    )


def test_a_fix_names_both_versions_of_torch(tmp_path: Path) -> None:
    (result,) = run(NextRelease(PASS), save(tmp_path / "a"))
    assert "torch 2.13.0" in result.message
    assert "torch 2.14.0" in result.message


def test_a_finding_of_the_cpu_that_cuda_does_not_show_is_not_called_fixed(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    results = replay([save(tmp_path / "a")], world.start, device="cuda", num_ranks=2)
    assert outcomes(results) == [Outcome.PASS]


def test_a_finding_of_cuda_is_skipped_on_a_cpu(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    (result,) = run(world, save(tmp_path / "a", device="cuda"))
    assert result.outcome is Outcome.SKIPPED
    assert world.sizes == []


def test_a_case_that_is_to_pass_is_given_time(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    run(world, bare(tmp_path / "mlp.json"), save(tmp_path / "a"))
    assert world.deadlines == [UNHURRIED, None]


def test_a_case_that_needs_cuda_is_skipped_on_a_cpu_with_the_reason(tmp_path: Path) -> None:
    world, case = NextRelease(PASS), clean_case(2)
    inputs = msgspec.structs.replace(case.inputs, on_host=True)
    write_atomic(tmp_path / "a.json", codec.encode(msgspec.structs.replace(case, inputs=inputs)))
    (result,) = run(world, tmp_path / "a.json")
    assert result.outcome is Outcome.SKIPPED
    assert "CUDA" in result.message
    assert world.sizes == []


def test_a_mesh_larger_than_the_machine_is_skipped_and_the_rest_runs(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    results = run(
        world, save(tmp_path / "a", num_ranks=2), save(tmp_path / "b", num_ranks=1), num_ranks=1
    )
    assert [r.outcome for r in results] == [Outcome.SKIPPED, Outcome.FIXED]
    assert world.sizes == [1]


def test_no_rank_idles_and_small_meshes_come_first(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    files = [
        save(tmp_path / name, num_ranks=size) for name, size in zip("abc", (2, 1, 2), strict=True)
    ]
    results = run(world, *files)
    assert world.sizes == [1, 2]
    assert [result.path.name for result in results] == ["b", "a", "c"]
    assert world.closed


def test_ranks_are_started_once_where_all_worlds_have_one_size(tmp_path: Path) -> None:
    world = NextRelease(PASS)
    files = [save(tmp_path / name, num_ranks=size) for name, size in (("a", 2), ("b", 1))]
    results = replay(files, world.start, device="cpu", num_ranks=3, one_size=True)
    assert [result.path.name for result in results] == ["b", "a"]
    assert world.sizes == [3]


def side_by_side(
    tmp_path: Path, names: str, *worlds: NextRelease, halt: Callable[[str], None]
) -> Generator[ReplayResult, None, None]:
    files = [save(tmp_path / name) for name in names]
    started = contextlib.nullcontext(worlds)
    return replay(files, lambda size: started, device="cpu", num_ranks=2, halt=halt)


def test_worlds_run_cases_at_the_same_time(tmp_path: Path) -> None:
    both, halted = threading.Barrier(2), list[str]()

    class Meeting(NextRelease):
        def run(self, case: Case, **how: Any) -> Verdict:
            both.wait(timeout=20)
            return super().run(case, **how)

    worlds = [Meeting(PASS), Meeting(PASS)]
    results = side_by_side(tmp_path, "abcdef", *worlds, halt=halted.append)
    assert sorted(result.path.name for result in results) == list("abcdef")
    assert [len(world.cases) for world in worlds] == [3, 3]
    assert not halted


def test_results_come_as_they_are_done_and_none_is_lost_where_another_world_raises(
    tmp_path: Path,
) -> None:
    told, halted = threading.Event(), list[str]()

    class Waiting(NextRelease):
        def run(self, case: Case, **how: Any) -> Verdict:
            assert told.wait(timeout=20)
            raise RuntimeError("ended")

    results = side_by_side(tmp_path, "abcd", NextRelease(PASS), Waiting(PASS), halt=halted.append)
    assert outcomes(itertools.islice(results, 3)) == [Outcome.FIXED] * 3
    assert not halted
    told.set()
    with pytest.raises(RuntimeError, match="ended"):
        next(results)
    assert set(halted) == {"ended"}


def test_one_broken_world_of_two_ends_a_replay(tmp_path: Path) -> None:
    """However many cases the other one judges meanwhile."""
    turns = threading.Barrier(2)

    class InTurns(NextRelease):
        def run(self, case: Case, **how: Any) -> Verdict:
            turns.wait(timeout=20)
            return super().run(case, **how)

    worlds = InTurns(PASS), InTurns(InfraError("lost a rank"))
    results = side_by_side(tmp_path, "abcdefghijkl", *worlds, halt=lambda _: turns.abort())
    with pytest.raises(InfraError, match="5 cases in a row could not be judged"):
        list(results)


def test_who_looks_no_further_halts_the_worlds(tmp_path: Path) -> None:
    halted = list[str]()
    worlds = NextRelease(PASS), NextRelease(PASS)
    results = side_by_side(tmp_path, "abcdef", *worlds, halt=halted.append)
    next(results)
    assert not halted
    results.close()
    assert len(halted) == 1


def test_what_a_world_raises_ends_a_replay(tmp_path: Path) -> None:
    world = NextRelease(PASS, RuntimeError("ended"))
    files = [save(tmp_path / name) for name in "abc"]
    results = replay(files, world.start, device="cpu", num_ranks=2)
    assert next(results).outcome is Outcome.FIXED
    with pytest.raises(RuntimeError, match="ended"):
        next(results)
    assert world.closed


def test_a_bad_entry_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "b" / "case.json"
    write_atomic(broken, b'{"format": 1')
    files = save(tmp_path / "a"), broken, tmp_path / "missing.json", save(tmp_path / "c")
    results = run(NextRelease(InfraError("lost a rank"), PASS), *files)
    assert [r.outcome for r in results] == [
        Outcome.INVALID,
        Outcome.INVALID,
        Outcome.INFRA,
        Outcome.FIXED,
    ]
    assert results[0].path == broken.parent
    assert "restore the file or delete it" in results[0].message


def test_a_broken_machine_ends_a_replay_and_a_lost_rank_does_not(tmp_path: Path) -> None:
    files = [save(tmp_path / name) for name in "abcdefgh"]
    lost = InfraError("lost a rank")
    seen = outcomes(run(NextRelease(*[lost] * 4, PASS), *files))
    assert seen == [Outcome.INFRA] * 4 + [Outcome.FIXED] * 4
    results = replay(files, NextRelease(lost).start, device="cpu", num_ranks=2)
    assert outcomes(itertools.islice(results, 5)) == [Outcome.INFRA] * 5
    with pytest.raises(InfraError, match=r"5 cases in a row could not be judged.* lost a rank"):
        next(results)


def test_a_flaky_finding_gets_as_many_runs_as_when_it_was_found(tmp_path: Path) -> None:
    world = NextRelease(PASS, PASS, divergence())
    file = save(tmp_path / "a", confirmed=Confirmation(runs=3, reproduced=1))
    (result,) = run(world, file)
    assert result.outcome is Outcome.SAME
    assert result.message.endswith("(run 3 of 3; recorded as flaky, 1 of 3 runs)")
    assert len(world.cases) == 3


def test_a_flaky_finding_that_stays_away_is_not_called_fixed(tmp_path: Path) -> None:
    file = save(tmp_path / "a", confirmed=Confirmation(runs=3, reproduced=1))
    assert [r.outcome for r in run(NextRelease(PASS), file)] == [Outcome.INCONCLUSIVE]


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ([], 3),
        ([Outcome.PASS, Outcome.FIXED, Outcome.SKIPPED], 0),
        ([Outcome.SAME, Outcome.INFRA, Outcome.INVALID], 1),
        ([Outcome.CHANGED], 1),
        ([Outcome.WONTFIX, Outcome.PASS], 0),
        ([Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.PASS], 2),
        ([Outcome.INCONCLUSIVE, Outcome.FIXED], 3),
        ([Outcome.SKIPPED, Outcome.SKIPPED], 3),
        ([Outcome.INFRA, Outcome.INVALID], 4),
    ],
)
def test_the_exit_code_is_that_of_the_worst_outcome(seen: list[Outcome], code: int) -> None:
    assert exit_code(seen) == code


def test_a_finding_that_is_gone_asks_whether_torch_needs_its_mend(tmp_path: Path) -> None:
    file = save(tmp_path)
    known = replace(read_entry(file), cause="reshard_is_ignored")
    write_atomic(file, encode_entry(known))
    (result,) = run(NextRelease(Verdict(status=Status.PASS)), file)
    assert result.outcome is Outcome.FIXED
    assert "needs the mend reshard_is_ignored no longer" in result.message
