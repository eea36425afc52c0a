"""One table over several releases of torch: what is run in each, how it is read, and what survives
Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import json
import stat
from pathlib import Path

import pytest
from matrix import RESULTS, fill, python_of, take_over
from matrix_steps import (
    REPOSITORY,
    UPSTREAM,
    Cell,
    Step,
    make_steps,
    matrix_table,
    read_alarms,
    read_recall,
    read_replay,
    sample_cells,
)
from rich.console import Console

from fuzzshard.bisect.environment import CannotInstall
from fuzzshard.errors import UsageError

ALARMS = {
    "cases": 20,
    "unexplained": [{}],
    "explanations": {"pass": 19},
    "signatures": {"HANG": 1},
}


def options(**changes: object) -> argparse.Namespace:
    given = {
        "device": "cpu",
        "world_size": 2,
        "seed": 3,
        "shrink_seconds": 5.0,
        "cases": 10,
        "on": "mended",
        "jobs": 2,
        "upstream": 0,
        "planted": None,
        "only": None,
        "max_cases": 7,
        "corpus": [],
    }
    return argparse.Namespace(**{**given, **changes})


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def python(folder: Path, script: str) -> Path:
    """Stands for the Python of an environment: a shell script that gets the arguments of a
    step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "python"
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def alarms(*arguments: str) -> list[Step]:
    return [Step("false alarms", list(arguments), read_alarms)]


def test_what_is_asked_for_is_run_in_the_order_of_the_columns(tmp_path: Path) -> None:
    everything = options(
        upstream=2, planted=tmp_path, only="a,b", corpus=[Path("corpus/findings")]
    )
    steps = make_steps(everything, tmp_path / "2.14.1")
    assert [step.name for step in steps] == ["false alarms", "upstream", "planted bugs", "corpus"]
    found = " ".join(steps[0].arguments)
    assert "--cases 10" in found
    assert "--on mended --jobs 2" in found
    assert f"--keep {tmp_path}/2.14.1/unexplained" in found
    assert "--only a,b" in " ".join(steps[2].arguments)
    assert [step.name for step in make_steps(options(), tmp_path)] == ["false alarms"]
    with pytest.raises(UsageError, match="nothing to run"):
        make_steps(options(cases=0), tmp_path)


def test_a_sample_has_cells_of_every_row_and_is_the_same_for_a_seed() -> None:
    cells = sample_cells(REPOSITORY / UPSTREAM, 40, seed=1)
    assert len(set(cells)) == 40
    rows = {folder.name for folder in (REPOSITORY / UPSTREAM).iterdir() if folder.is_dir()}
    assert {cell.relative_to(UPSTREAM).parts[0] for cell in cells} == rows
    assert cells == sample_cells(REPOSITORY / UPSTREAM, 40, seed=1)
    assert cells != sample_cells(REPOSITORY / UPSTREAM, 40, seed=2)


def test_answers_are_read_into_a_few_words() -> None:
    cell = Cell([])
    read_alarms([ALARMS], cell)
    assert (cell.text, cell.finding) == ("1 of 20", True)
    rows = [{"id": "a", "outcome": "found"}, {"id": "b", "outcome": "does not apply"}]
    cell = Cell([])
    read_recall([{"found": 1, "total": 1, "not_applicable": 1, "errors": 0, "rows": rows}], cell)
    assert (cell.text, cell.finding) == ("1 of 1 found, 1 do not apply", False)
    cell = Cell([])
    outcomes = [
        {"outcome": o, "path": o, "message": "now"} for o in ("FIXED", "SAME", "SAME", "CHANGED")
    ]
    read_replay(outcomes, cell)
    assert (cell.text, cell.finding) == ("2 SAME, 1 CHANGED, 1 FIXED", True)
    assert cell.figures["changed"] == {"CHANGED": "now"}


def test_a_row_for_each_release_says_what_was_not_run() -> None:
    rows = {
        "2.13.0": {"corpus": Cell([], "3 SAME", seconds=7)},
        "2.14.1": {"corpus": Cell([], failed="no")},
    }
    seen = console()
    seen.print(matrix_table(["corpus", "upstream"], rows))
    lines = [" ".join(line.strip("│ ").split()) for line in said(seen).splitlines() if "│" in line]
    assert lines == ["2.13.0 │ 3 SAME │ not run │ 7", "2.14.1 │ no │ not run │ 0"]


def test_every_release_runs_its_steps_and_is_written_down(tmp_path: Path) -> None:
    prints = f"echo 5 cases >&2; echo '{json.dumps(ALARMS)}'; exit 1"
    seen, results, rows = console(), tmp_path / RESULTS, {}
    pythons = {version: python(tmp_path / version, prints) for version in ("2.13.0", "2.14.1")}
    assert fill(rows, list(pythons), lambda v: alarms(v), pythons.__getitem__, results, seen)
    assert {version: cells["false alarms"].text for version, cells in rows.items()} == {
        "2.13.0": "1 of 20",
        "2.14.1": "1 of 20",
    }
    assert "torch 2.14.1, false alarms: 5 cases" in said(seen)
    assert take_over(results, lambda v: alarms(v)) == rows
    assert take_over(results, lambda v: alarms("2.13.0")) == {"2.13.0": rows["2.13.0"]}
    pythons = {version: python(tmp_path / version, "exit 4") for version in pythons}
    assert fill(rows, list(pythons), lambda v: alarms(v), pythons.__getitem__, results, console())
    assert rows["2.13.0"]["false alarms"].text == "1 of 20"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "echo 'no ranks: look at the disk' >&2; exit 4",
            "exit code 4: no ranks: look at the disk",
        ),
        (
            f"echo '{json.dumps(ALARMS)}'; echo 'a full disk' >&2; exit 4",
            "exit code 4: a full disk",
        ),
        ("exit 0", "exit code 0: it did not say why"),
    ],
)
def test_a_step_that_fails_says_why_and_is_run_again(
    tmp_path: Path, script: str, why: str
) -> None:
    rows: dict[str, dict[str, Cell]] = {}
    stub, results = python(tmp_path, script), tmp_path / RESULTS
    assert fill(rows, ["2.13.0"], lambda v: alarms(), lambda v: stub, results, console())
    assert rows["2.13.0"]["false alarms"].failed == why
    assert take_over(results, lambda v: alarms()) == {}


def test_a_release_that_cannot_be_installed_is_a_row_and_the_others_run(tmp_path: Path) -> None:
    def python_for(version: str) -> Path:
        if version == "9.0":
            raise CannotInstall("there is no torch 9.0")
        return python(tmp_path, f"echo '{json.dumps(ALARMS)}'")

    rows: dict[str, dict[str, Cell]] = {}
    assert fill(
        rows, ["9.0", "2.13.0"], lambda v: alarms(), python_for, tmp_path / RESULTS, console()
    )
    assert rows["9.0"]["false alarms"].failed == "no environment: there is no torch 9.0"
    assert rows["2.13.0"]["false alarms"].text == "1 of 20"


def test_ctrl_c_keeps_what_the_step_has_said_and_begins_no_other(tmp_path: Path) -> None:
    ends = (
        f"trap \"echo '{json.dumps(ALARMS).replace(chr(34), chr(92) + chr(34))}'; exit 130\" INT"
    )
    stub = python(tmp_path, f"{ends}\nkill -INT $PPID\nfor i in {{1..600}}; do sleep 0.1; done")
    rows: dict[str, dict[str, Cell]] = {}
    results = tmp_path / RESULTS
    assert not fill(
        rows, ["2.13.0", "2.14.1"], lambda v: alarms(), lambda v: stub, results, console()
    )
    cell = rows["2.13.0"]["false alarms"]
    assert (cell.text, cell.failed, list(rows)) == ("1 of 20", "interrupted", ["2.13.0"])


def test_an_environment_that_is_there_is_taken(tmp_path: Path) -> None:
    there = tmp_path / "2.13.0" / "bin" / "python"
    there.parent.mkdir(parents=True)
    there.touch()
    assert python_of("2.13.0", tmp_path, "cpu") == there


def test_without_one_torch_for_the_cpu_is_tried_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def environment(version: str, cache: Path, source: object, *, others: list[str]) -> Path:
        tried.append(version)
        assert any(other.startswith("msgspec") for other in others)
        assert not any(other.startswith("torch") for other in others)
        if version.endswith("+cpu"):
            raise CannotInstall("no such wheel")
        return cache / version

    monkeypatch.setattr("matrix.environment", environment)
    assert python_of("2.13.0", tmp_path, "cpu") == tmp_path / "2.13.0"
    assert python_of("2.13.0", tmp_path, "cuda") == tmp_path / "2.13.0"
    assert tried == ["2.13.0+cpu", "2.13.0", "2.13.0"]
