"""Runs a script as a user would, and says whether it fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ATTEMPTS = 3

_PORT_LOST = re.compile(
    r"address already in use|EADDRINUSE|failed to listen on any local network", re.IGNORECASE
)

_ROOT = Path(__file__).parents[2]

_REAP_SECONDS = 10.0
"""How long killed workers may take to be gone: one inside a driver call dies late."""


@dataclasses.dataclass(frozen=True)
class ScriptResult:
    """How a run of a script ended; ``output`` is what all ranks and torchrun printed."""

    fails: bool
    returncode: int
    output: str
    seconds: float


def check(
    path: Path,
    num_ranks: int,
    *,
    preload: Sequence[Path] = (),
    timeout: float = 120,
    python: Path | None = None,
) -> ScriptResult:
    """Runs the script at ``path`` on ``num_ranks`` fresh ranks of this Python's torchrun, or of another's.

    ``preload`` are files whose ``apply()`` patches torch in every rank first. A run that takes longer
    than ``timeout`` seconds is killed and counts as failing. Nothing is left running, whatever happens.
    torchrun picks a free port before it binds it; a run that lost its port to somebody is repeated.
    """
    for _ in range(ATTEMPTS):
        result = _run(path, num_ranks, preload, timeout, python)
        if not (result.fails and _PORT_LOST.search(result.output)):
            break
    return result


def _run(
    path: Path, num_ranks: int, preload: Sequence[Path], timeout: float, python: Path | None
) -> ScriptResult:
    torchrun = [
        str(python or sys.executable),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
    ]
    command = [*torchrun, str(num_ranks)]
    if preload:
        command += ["-m", "fuzzshard.reproducer.launch"]
        command += [word for file in preload for word in ("--preload", str(file))] + ["--"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if python is None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    else:
        environment.pop("PYTHONPATH", None)  # packages of this Python are not meant for another
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, str(path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        output = process.communicate()[0] + f"\nkilled after {timeout:.0f} s"
    finally:
        _kill(process)
    code = process.returncode
    return ScriptResult(code != 0, code, output, time.monotonic() - began)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills torchrun and its workers, which are in sessions of their own."""
    if process.poll() is not None:
        return
    torchrun = psutil.Process(process.pid)
    workers = torchrun.children(recursive=True)
    for member in (torchrun, *workers):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(workers, timeout=_REAP_SECONDS)
