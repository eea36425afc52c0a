"""The tutorials work from top to bottom: every command, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIRST = DOCS / "tutorials" / "first-finding.md"
READ = DOCS / "tutorials" / "read-a-finding.md"
OWN_MODEL = DOCS / "check-your-own-model.md"
FUNCTION = f'fuzzshard() {{ {sys.executable} -m fuzzshard "$@"; }}'


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page."""
    pattern = rf"^```{language}\n(.*?)^```"
    return re.findall(pattern, page.read_text(), flags=re.DOTALL | re.MULTILINE)


def run(commands: str, folder: Path) -> tuple[int, str]:
    """Run commands in a shell: the exit code of the last one, and what all of them print."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "160",
    }
    result = subprocess.run(
        ["bash", "-c", f"{FUNCTION}\n{commands}"],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=400,
        check=False,
    )
    return result.returncode, result.stdout


def follow(page: Path, folder: Path) -> list[tuple[int, str]]:
    """Run the blocks of commands of a page one after another."""
    return [run(block, folder) for block in blocks(page, "sh")]


@pytest.mark.slow
def test_the_first_finding_is_found_shrunk_shown_and_explained(tmp_path: Path) -> None:
    ran = follow(FIRST, tmp_path)
    printed = "\n".join(output for _, output in ran)
    assert [code for code, _ in ran] == [1, 0, 1, 0, 1], printed
    (entry,) = (tmp_path / "first" / "findings").iterdir()
    found, show, script, explain, replay = (output for _, output in ran)
    assert "SAVED" in found
    assert f"fuzzshard replay first/findings/{entry.name}" in show
    assert "the script shows the finding" in script
    assert begins(explain, "KNOWN")
    assert begins(replay, "SAME")


def begins(output: str, word: str) -> bool:
    """Whether a line does; on a slow machine one that says how far a command is comes first."""
    return any(line.startswith(word) for line in output.splitlines())


def test_the_finding_that_is_read_is_what_the_commands_print(tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(ROOT / "corpus")
    ran = follow(READ, tmp_path)
    printed = "\n".join(output for _, output in ran)
    assert [code for code, _ in ran] == [0, 0, 1], printed
    lines = {line.rstrip() for line in printed.splitlines()}
    for block in (*blocks(READ, "text"), *blocks(ROOT / "README.md", "text")):
        for line in block.splitlines():
            assert line in lines


@pytest.mark.slow
def test_a_model_is_checked_fuzzed_and_tested_as_the_page_says(tmp_path: Path) -> None:
    model, step, test = blocks(OWN_MODEL, "python")
    (tmp_path / "train.py").write_text(f"{model}\n\n{step}")
    (tmp_path / "test_train.py").write_text(test)
    session = blocks(OWN_MODEL, "console")[0]
    command, _, output = session.removeprefix("$ ").partition("apply_fsdp\n")
    code, printed = run(f"{command}apply_fsdp", tmp_path)
    assert code == 0, printed
    assert printed.splitlines()[1:] == output.splitlines()[1:]  # the first line has a time
    (fuzz,) = blocks(OWN_MODEL, "sh")
    code, printed = run(fuzz.replace("--max-time 5m", "--max-cases 1"), tmp_path)
    assert code == 0, printed
    code, printed = run("python -m pytest -q test_train.py", tmp_path)
    assert code == 0, printed
