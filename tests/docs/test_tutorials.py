"""The tutorials work from top to bottom: every command, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a tutorial."""
    text = (TUTORIALS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def follow(page: str, folder: Path) -> list[tuple[int, str]]:
    """Run the commands of a tutorial one after another: exit codes, and what they print."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "160",
    }
    fuzzshard = f'fuzzshard() {{ {sys.executable} -m fuzzshard "$@"; }}\n'
    ran = []
    for block in blocks(page, "sh"):
        result = subprocess.run(
            ["bash", "-c", fuzzshard + block],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=400,
            check=False,
        )
        ran.append((result.returncode, result.stdout))
    return ran


def test_the_first_finding_is_found_shrunk_shown_and_explained(tmp_path: Path) -> None:
    ran = follow("first-finding.md", tmp_path)
    printed = "\n".join(output for _, output in ran)
    assert [code for code, _ in ran] == [1, 0, 1, 0, 1], printed
    (entry,) = (tmp_path / "first" / "findings").iterdir()
    run, show, script, explain, replay = (output for _, output in ran)
    assert "SAVED" in run
    assert f"fuzzshard replay first/findings/{entry.name}" in show
    assert "the script shows the finding" in script
    assert explain.startswith("KNOWN")
    assert replay.startswith("SAME")


def test_the_finding_that_is_read_is_what_the_commands_print(tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(ROOT / "corpus")
    ran = follow("read-a-finding.md", tmp_path)
    printed = "\n".join(output for _, output in ran)
    assert [code for code, _ in ran] == [0, 0, 1], printed
    lines = {line.rstrip() for line in printed.splitlines()}
    for block in blocks("read-a-finding.md", "text"):
        for line in block.splitlines():
            assert line in lines
