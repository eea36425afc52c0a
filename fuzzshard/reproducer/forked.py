"""Ranks to run many scripts on, forked from one process (:mod:`.forked_ranks`)."""

from __future__ import annotations

import dataclasses
import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from fuzzshard.errors import InfraError
from fuzzshard.reproducer.check import LOOK_SECONDS, environment, with_a_port


@dataclasses.dataclass(frozen=True)
class ScriptRun:
    """Exit codes by rank, None for a rank that had to be killed, and what all ranks printed."""

    codes: tuple[int | None, ...]
    output: str

    @property
    def fails(self) -> bool:
        """Whether some rank ended with an error."""
        return any(code != 0 for code in self.codes)


class ForkedRanks:
    """Runs the texts of scripts, written to a file in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "repro.py"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzzshard.reproducer.forked_ranks"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self,
        text: str,
        num_ranks: int,
        *,
        preload: Sequence[Path] = (),
        mends: Sequence[str] = (),
        seconds: float = 120,
        abrupt: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> ScriptRun:
        """Run ``text`` once, with ``mends`` on torch; ranks that take longer are killed, and with
        them everything that runs here if it is ``wanted`` no more. A run that lost its port to
        somebody is repeated.

        ``abrupt`` ones spare the second that a Python with torch takes to end.
        """
        self.path.write_text(text)
        request = {
            "script": str(self.path),
            "ranks": num_ranks,
            "preload": list(map(str, preload)),
            "mends": list(mends),
            "seconds": seconds,
            "abrupt": abrupt,
        }
        return with_a_port(lambda: self._answer(request, wanted), wanted)

    def _answer(self, request: dict[str, Any], wanted: Callable[[], bool]) -> ScriptRun:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while not select.select([self.process.stdout], [], [], LOOK_SECONDS)[0]:
            if not wanted():
                self.process.kill()
                break
        if not (answer := self.process.stdout.readline()):
            if not wanted():
                return ScriptRun((None,), "")
            raise InfraError("the process that forks ranks is gone", "run fuzzshard doctor")
        reply = json.loads(answer)
        return ScriptRun(tuple(reply["codes"]), reply["output"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and its ranks."""
        self.process.kill()
        self.process.wait()
