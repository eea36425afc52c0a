"""Ranks to run scripts on, forked from one process per session."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class ScriptRun:
    """Exit codes by rank, None for a rank that had to be killed, and what all ranks printed."""

    codes: tuple[int | None, ...]
    output: str

    @property
    def fails(self) -> bool:
        return any(code != 0 for code in self.codes)


class ForkedRanks:
    """Runs the text of scripts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "repro.py"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "forked_ranks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, text: str, num_ranks: int, *, preload: Sequence[Path] = (), seconds: float = 120
    ) -> ScriptRun:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.path.write_text(text)
        request = {
            "script": str(self.path),
            "ranks": num_ranks,
            "preload": list(map(str, preload)),
            "seconds": seconds,
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        return ScriptRun(tuple(reply["codes"]), reply["output"])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
