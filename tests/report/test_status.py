from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from recorded import RESHARD, finished, judged, one_finding, record

from fuzzshard.cli import main
from fuzzshard.corpus.codec import encode_entry, read_entry
from fuzzshard.events import FindingFlaky, FindingFound, FindingHit
from fuzzshard.journal.schema import JOURNAL_FILE, connect
from fuzzshard.report.node import is_running, read_node
from fuzzshard.report.seen_findings import seen_findings
from fuzzshard.report.stats import Stats, stats_of
from fuzzshard.report.status import status_lines
from fuzzshard.verdict import Status


def stats_in(*directories: Path) -> Stats:
    nodes = [read_node(directory) for directory in directories]
    return stats_of(nodes, seen_findings(nodes))


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    return int(exit_.value.code or 0)


def test_figures_of_one_directory_are_those_of_its_journal(node1: Path) -> None:
    stats = stats_in(node1)
    assert (stats.cases, stats.seconds, stats.cases_per_second) == (6, 10.0, 0.6)
    assert stats.verdicts == {"PASS": 1, "DIVERGENCE": 2, "CRASH": 1, "HANG": 1, "REJECTED": 1}
    assert (stats.findings, stats.hits, stats.inconclusive) == (2, 3, 0)
    assert (stats.state, stats.reason, stats.exit_code) == ("ended", "2 distinct findings", 1)
    assert (stats.features_seen, stats.seconds_since_new_feature) == (3, 9.0)


def test_status_sums_directories_and_counts_one_finding_once(node1: Path, node2: Path) -> None:
    stats = stats_in(node1, node2)
    assert stats.cases == 8
    assert stats.seconds == 10.0
    assert stats.cases_per_second == pytest.approx(6 / 10 + 2 / 5)
    assert stats.verdicts["DIVERGENCE"] == 3
    assert stats.findings == 2
    assert stats.features_seen == 4


def test_a_finding_of_two_nodes_has_the_hits_of_both_and_its_first_time(
    node1: Path, node2: Path
) -> None:
    found = {f.folder.name: f for f in seen_findings([read_node(node1), read_node(node2)])}
    assert found[RESHARD].hits == 3
    assert found[RESHARD].at == 1.0
    assert len(found[RESHARD].sightings) == 2


def test_a_finding_that_no_user_can_see_comes_last_and_says_so(tmp_path: Path) -> None:
    within, wrong = (
        "divergence/fully_shard/unreduced_gradient/unexpected",
        "divergence/fully_shard/registered_parameter",
    )
    events = one_finding(
        tmp_path, "divergence-fully_shard-unreduced_gradient-unexpected-88623fc6", within, at=1.0
    )
    events += one_finding(tmp_path, RESHARD, wrong, at=3.0)
    directory = record(tmp_path, [*judged(at=0.0), *events, finished(9.0)])
    seen = seen_findings([read_node(directory)])
    assert [(finding.signature, finding.internal) for finding in seen] == [
        (wrong, False),
        (within, True),
    ]
    assert (
        ", internal: " in list(status_lines([read_node(directory)], stats_in(directory), seen))[-1]
    )


def test_what_did_not_come_back_is_inconclusive_and_no_finding(tmp_path: Path) -> None:
    signature = "divergence/fully_shard/gradient"
    found = FindingFound(
        index=0,
        status=Status.DIVERGENCE,
        signature=signature,
        summary="wrong",
        path="c/findings/a",
        elapsed=1.0,
    )
    flaky = FindingFlaky(
        signature=signature, runs=10, observed=("PASS",), path="c/inconclusive/a", elapsed=2.0
    )
    record(
        tmp_path, [*judged(Status.DIVERGENCE, at=0.0), found, flaky, finished(3.0, exit_code=3)]
    )
    stats = stats_in(tmp_path)
    assert (stats.findings, stats.inconclusive) == (0, 1)


def test_a_finding_that_is_reduced_to_a_known_entry_is_a_hit_of_that(tmp_path: Path) -> None:
    signature = "divergence/fully_shard/registered_parameter"
    found, _, saved = one_finding(tmp_path, RESHARD, signature, at=1.0)
    removed = replace(found, path=str(tmp_path / "findings" / "as-it-was-found"))
    record(
        tmp_path,
        [
            *judged(Status.DIVERGENCE, at=0.0),
            found,
            saved,
            removed,
            replace(saved, duplicate=True),
        ],
    )
    (finding,) = seen_findings([read_node(tmp_path)])
    assert (finding.folder.name, finding.hits) == (RESHARD, 2)


def test_a_finding_that_is_still_being_worked_on_is_unconfirmed(tmp_path: Path) -> None:
    found, *_ = one_finding(
        tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0
    )
    file = tmp_path / "findings" / RESHARD / "case.json"
    file.write_bytes(encode_entry(replace(read_entry(file), confirmed=None)))
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), found])
    (finding,) = seen_findings([read_node(tmp_path)])
    assert (finding.status, finding.hits, finding.confirmed) == ("unconfirmed", 1, False)
    assert stats_in(tmp_path).findings == 0


def test_a_known_finding_that_was_hit_is_not_new(tmp_path: Path) -> None:
    one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=0.0)
    path = str(tmp_path / "findings" / RESHARD)
    hit = FindingHit(
        index=0,
        signature="divergence/fully_shard/registered_parameter",
        path=path,
        hits=1,
        elapsed=1.5,
    )
    record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), hit, finished(2.0, exit_code=0)])
    node = read_node(tmp_path)
    (finding,) = seen_findings([node])
    assert (finding.new, finding.status, finding.hits, finding.at) == (False, "open", 1, 1.5)


def test_times_of_later_sessions_follow_those_before(tmp_path: Path) -> None:
    record(tmp_path, [*judged(features=["reshard:int"], at=1.0), finished(10.0)])
    record(tmp_path, [*judged(features=["mesh:hsdp"], at=2.0), finished(5.0)])
    node = read_node(tmp_path)
    assert node.seconds == 15.0
    assert node.first_seen == {"reshard:int": 1.0, "mesh:hsdp": 12.0}


def test_a_session_of_a_live_process_runs_and_one_of_a_dead_process_was_killed(
    tmp_path: Path,
) -> None:
    record(tmp_path, judged(at=0.0))
    assert is_running(read_node(tmp_path).last)
    assert stats_in(tmp_path).state == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with closing(connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute("UPDATE session SET pid = ?", (gone.pid,))
    assert stats_in(tmp_path).state == "killed"


def test_a_pid_that_another_process_has_by_now_is_no_campaign(tmp_path: Path) -> None:
    record(tmp_path, judged(at=0.0))
    with closing(connect(tmp_path / JOURNAL_FILE)) as connection:
        connection.execute("UPDATE session SET started = 1000.0, pid = ?", (os.getpid(),))
    assert not is_running(read_node(tmp_path).last)


def test_the_command_prints_each_directory_the_sum_and_each_finding(
    node1: Path, node2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status", node1, node2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{node1}: ended after 0:10: 2 distinct findings (exit code 1)"
    assert "8 in 0:10 (2 directories, 2 sessions), 1.00 per second" in lines[2]
    assert any(
        line.split()[:2] == ["open", "divergence/fully_shard/registered_parameter,"]
        for line in lines
    )


def test_a_directory_that_is_given_twice_counts_once(
    node1: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status", node1, f"{node1}/../{node1.name}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["total"]["cases"] == 6


def test_json_has_the_sum_each_directory_and_each_finding(
    node1: Path, node2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status", node1, node2, "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (
        status["total"]["cases"]
        == sum(each["stats"]["cases"] for each in status["directories"])
        == 8
    )
    assert [finding["hits"] for finding in status["findings"]] == [3, 1]


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_directory_without_a_campaign_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_begun: bool
) -> None:
    if has_begun:
        connect(tmp_path / JOURNAL_FILE).close()
    assert run("status", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{tmp_path} has neither a campaign nor a finding" in error


@pytest.mark.parametrize("command", ["status", "html"])
def test_a_damaged_journal_is_refused_in_one_line(
    command: str, node1: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node1 / JOURNAL_FILE).write_bytes(b"not a database" * 100)
    assert run(command, node1) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "is damaged" in error


def test_a_corpus_without_a_campaign_has_its_findings_and_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_finding(tmp_path, RESHARD, "divergence/fully_shard/registered_parameter", at=1.0)
    assert run("status", tmp_path) == 0
    head, counts, finding = capsys.readouterr().out.splitlines()
    assert head == f"{tmp_path}: no campaign has run there"
    assert counts == "findings  1 distinct, 0 new, 0 inconclusive"
    assert finding.split() == [
        *("open", "divergence/fully_shard/registered_parameter,", "3", "of", "3", "runs,"),
        *("known", "before:", str(tmp_path / "findings" / RESHARD)),
    ]
    assert run("status", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["total"]["state"] == "saved"


@pytest.mark.parametrize("is_campaign", [True, False])
def test_entries_that_cannot_be_read_are_counted(
    is_campaign: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = "divergence/fully_shard/registered_parameter"
    found = one_finding(tmp_path, RESHARD, signature, at=1.0)
    if is_campaign:
        record(tmp_path, [*judged(Status.DIVERGENCE, at=0.0), *found, finished(3.0)])
    for name in ("crash-one", "crash-two"):
        folder = tmp_path / "findings" / name
        folder.mkdir()
        (folder / "case.json").write_text('{"format": 4}')
    assert run("status", tmp_path) == 2
    out = capsys.readouterr().out
    assert "1 distinct" in out
    assert "INVALID   2 entries could not be read:" in out
    assert str(tmp_path / "findings" / "crash-one" / "case.json") in out
    assert run("status", tmp_path, "--json") == 2
    assert len(json.loads(capsys.readouterr().out)["unreadable"]) == 2


def test_one_case_is_counted_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = one_finding(tmp_path, RESHARD, "divergence", at=1.0)
    record(tmp_path, [*judged(Status.HANG, at=0.0), *found, finished(3.0)])
    assert run("status", tmp_path) == 0
    out = capsys.readouterr().out
    assert "1 distinct in 1 case," in out
    assert "1 cases" not in out
