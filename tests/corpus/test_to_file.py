"""The reports in ``corpus/to-file`` hold for the installed torch, as their table says."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from fuzzshard.corpus.store import entry_files, subject_files
from fuzzshard.reproducer.forked import ForkedRanks

TO_FILE = Path(__file__).parents[2] / "corpus" / "to-file"
REPORTS = sorted(path.name for path in TO_FILE.iterdir() if path.is_dir())
RELEASE = ".".join(torch.__version__.split(".")[:2])


def table() -> dict[str, dict[str, str]]:
    """The rows of the table in README.md by report, each by the names of its columns."""
    lines = [line for line in (TO_FILE / "README.md").read_text().splitlines() if line[:1] == "|"]
    columns, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    cells = [dict(zip(columns, row, strict=True)) for row in rows]
    return {re.findall(r"\((\S+)/report.md\)", row["report"])[0]: row for row in cells}


def script(report: str) -> str:
    return (TO_FILE / report / "repro.py").read_text()


def test_every_report_is_in_the_table() -> None:
    assert list(table()) == REPORTS


@pytest.mark.parametrize("report", REPORTS)
def test_a_script_ends_with_the_exit_code_of_its_release(
    report: str, run_script: ForkedRanks
) -> None:
    row = table()[report]
    if RELEASE not in row:
        pytest.skip(f"the table says nothing of torch {RELEASE}")
    missing = {"a GPU": 1, "two GPUs": 2}.get(row["needs"], 0) > torch.cuda.device_count()
    ran = run_script(script(report), 1)
    assert ran.codes == (2 if missing else int(row[RELEASE]),), ran.output


@pytest.mark.parametrize("report", REPORTS)
def test_a_script_is_short_and_public(report: str) -> None:
    text = script(report)
    assert len(text.splitlines()) == int(table()[report]["lines"]) <= 45
    names = re.findall(r"[\w.]+", " ".join(map(ast.unparse, imports(text))))
    assert not [name for name in names if re.search(r"(^|\.)_", name)]
    assert not re.search(r"\._(?!_)|os\._exit|getattr", text)


def imports(text: str) -> list[ast.stmt]:
    return [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_shows_its_script(report: str) -> None:
    assert f"```python\n{script(report)}```" in (TO_FILE / report / "report.md").read_text()


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.skipif(RELEASE != "2.15", reason="the changes are those of torch 2.15")
def test_the_change_of_a_report_applies(report: str, tmp_path: Path) -> None:
    text = (TO_FILE / report / "report.md").read_text()
    (change,) = re.findall(r"```diff\n(.*?)```", text, re.S)
    names = re.findall(r"^\+\+\+ b/(\S+)", change, re.M)
    if all(name.endswith(".cpp") for name in names):
        pytest.skip("torch is installed without its sources in C++")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(Path(torch.__file__).parents[1] / name, tmp_path / name)
    apply = ["git", "apply", "--check", "-"]
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(apply, cwd=tmp_path, input=change, text=True, check=True, env=outside)


def test_no_report_is_taken_for_an_entry() -> None:
    assert not entry_files([TO_FILE])
    assert not subject_files([TO_FILE])
