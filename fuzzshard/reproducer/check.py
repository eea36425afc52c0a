"""Runs a script as a user would, and says whether it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

_ATTEMPTS = 3

_PORT_LOST = re.compile(
    r"address already in use|EADDRINUSE|failed to listen on any local network", re.IGNORECASE
)

_ROOT = Path(__file__).parents[2]

LOOK_SECONDS = 0.2
"""How often a run is asked whether it is still wanted."""

_REAP_SECONDS = 10.0
"""How long killed workers may take to be gone: one inside a driver call dies late."""


@dataclasses.dataclass(frozen=True)
class ScriptResult:
    """How a run of a script ended; ``output`` is what all ranks and torchrun printed."""

    fails: bool
    returncode: int
    output: str
    seconds: float


class _Ended(Protocol):
    @property
    def fails(self) -> bool: ...
    @property
    def output(self) -> str: ...


R = TypeVar("R", bound=_Ended)


def ranks_needed(script: str) -> int:
    """Return how many processes a script is for, as its first line says."""
    found = re.search(r"--nproc-per-node (\d+)", script.partition("\n")[0])
    return int(found[1]) if found else 1


def check(
    path: Path,
    num_ranks: int,
    *,
    preload: Sequence[Path] = (),
    timeout: float = 120,
    python: Path | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> ScriptResult:
    """Runs the script at ``path`` on ``num_ranks`` fresh ranks of this Python's torchrun, or of
    another's.

    ``preload`` are files whose ``apply()`` patches torch in every rank first. A run that takes
    longer than ``timeout`` seconds, or is ``wanted`` no more, is killed and counts as failing.
    Nothing is left running, whatever happens, to this process too (:mod:`fuzzshard.guard`).
    torchrun picks a free port before it binds it; a run that lost its port to somebody is
    repeated.
    """
    command, variables = _command(path, num_ranks, preload, python)
    return with_a_port(lambda: _run(command, variables, timeout, wanted), wanted)


def with_a_port(run: Callable[[], R], wanted: Callable[[], bool]) -> R:
    """Return how ``run`` ends, which is repeated where it lost its port to somebody."""
    for _ in range(_ATTEMPTS):
        result = run()
        if not (result.fails and wanted() and _PORT_LOST.search(result.output)):
            break
    return result


def _command(
    path: Path, num_ranks: int, preload: Sequence[Path], python: Path | None
) -> tuple[list[str], dict[str, str]]:
    guard = [sys.executable, "-m", "fuzzshard.guard"]
    if python is not None:
        guard += ["env", "-u", "PYTHONPATH"]  # packages of this Python are not meant for another
    torchrun = [str(python or sys.executable), "-m", "torch.distributed.run", "--standalone"]
    command = [*guard, *torchrun, "--nproc-per-node", str(num_ranks)]
    if preload:
        command += ["-m", "fuzzshard.reproducer.launch"]
        command += [word for file in preload for word in ("--preload", str(file))] + ["--"]
    return [*command, str(path)], environment()


def environment() -> dict[str, str]:
    """Return what processes that run scripts get: this fuzzshard, wherever it is, one thread."""
    python_path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}


def _run(
    command: Sequence[str],
    variables: Mapping[str, str],
    timeout: float,
    wanted: Callable[[], bool],
) -> ScriptResult:
    began = time.monotonic()
    theirs, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        output = _output(process, timeout, wanted)
    finally:
        os.close(lifeline)
        os.close(theirs)
    why = ""
    if output is None:
        output = _rest(process)
        why = f"\nkilled after {time.monotonic() - began:.0f} s"
    code = process.returncode
    return ScriptResult(code != 0, code, output + why, time.monotonic() - began)


def _output(
    process: subprocess.Popen[str], timeout: float, wanted: Callable[[], bool]
) -> str | None:
    """Return what it has printed when it has ended by itself; None if its time is up, or nobody
    wants it.
    """
    until = time.monotonic() + timeout
    while (left := until - time.monotonic()) > 0 and wanted():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=min(left, LOOK_SECONDS))[0]
    return None


def _rest(process: subprocess.Popen[str]) -> str:
    """Return what it has printed, once its guard has ended it."""
    try:
        return process.communicate(timeout=_REAP_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return ""
