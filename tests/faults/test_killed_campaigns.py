"""Campaigns with real ranks that are killed in mid-flight, and go on with the same command."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from case_runs import case_runs
from planting import fault_file
from running import campaign

from fuzzshard.cli import main
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.store import entry_files
from fuzzshard.journal.history import History
from fuzzshard.journal.schema import FORMAT, JOURNAL_FILE, connect

WRONG_GRADIENT = fault_file("wrong_gradient")


@pytest.mark.slow
def test_a_campaign_killed_with_all_its_ranks_goes_on_and_saves_its_finding_once(
    tmp_path: Path,
) -> None:
    corpus = tmp_path / "corpus"
    limits = ("--max-findings", 1, "--engine", "fully_shard", "--no-shrink", "--confirm", 1)
    options = (*limits, "--preload", WRONG_GRADIENT)
    with campaign(corpus, *options) as running:
        running.read_until("finding_confirmed")
        running.kill_all()
    with History(corpus / JOURNAL_FILE) as history:
        in_flight = sum(run.status is None for run in case_runs(history, 1))
    assert in_flight <= 1
    with campaign(corpus, *options) as running:
        finished = running.finish()
        assert running.errors() == ""
    started = running.events[0]
    assert (started["continues"]["sessions"], started["continues"]["ended"]) == (1, "killed")
    with History(corpus / JOURNAL_FILE) as history:
        assert {session.campaign for session in history.sessions()} == {1}
        runs = list(case_runs(history, 1))
        (saved,) = [told.event for told in history.events(1, "finding_saved")]
        assert history.counts(1) == finished["counts"]
    assert sum(run.status is None for run in runs) == in_flight
    assert sum(run.status is not None for run in runs) == finished["cases"]
    (file,) = entry_files([corpus])
    assert (str(file.parent), saved.script_fails) == (saved.path, True)
    assert read_entry(file).confirmed is not None
    assert [(known["new"], known["path"]) for known in finished["findings"]] == [
        (True, saved.path)
    ]
    assert (finished["exit_code"], finished["reason"]) == (1, "1 distinct finding")


def refused(capsys: pytest.CaptureFixture[str], corpus: Path) -> tuple[int | str | None, str]:
    """The exit code and the one line of a campaign that cannot begin."""
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "run",
                "--device",
                "cpu",
                "--world-size",
                "2",
                "--max-cases",
                "1",
                "--corpus",
                str(corpus),
            ]
        )
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    return ended.value.code, line


@pytest.mark.parametrize("damage", ["text", "newer", "cut"])
def test_a_journal_that_cannot_be_read_is_one_line_and_stays_as_it_is(
    tmp_path, capsys, damage
) -> None:
    file = tmp_path / JOURNAL_FILE
    if damage == "text":
        file.write_text("these are notes")
    else:
        with contextlib.closing(connect(file)) as connection:
            connection.execute(f"PRAGMA user_version = {99 if damage == 'newer' else FORMAT}")
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:6000])
    before = file.read_bytes()
    code, line = refused(capsys, tmp_path)
    assert code == 2
    assert line.startswith(f"fuzzshard: {file} ")
    assert "use another --corpus" in line
    assert file.read_bytes() == before


def test_a_corpus_that_cannot_be_written_is_one_line_and_exit_code_4(tmp_path, capsys) -> None:
    (tmp_path / "file").touch()  # root may write in any folder, and nobody below a file
    code, line = refused(capsys, tmp_path / "file" / "corpus")
    assert code == 4
    assert "cannot write in" in line
