"""Running a script as a user would: with torchrun."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from small_cases import SMALL

from fuzzshard.reproducer import check, script
from fuzzshard.verdict import Finding

FAULT = Path(__file__).parent / "faults" / "reduce_scatter_doubles.py"
FINDING = Finding(
    oracle="gradient", engine="fully_shard", observed="2", expected="1", op=1, name="linear0.bias"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "repro.py"
    path.write_text(script(SMALL, finding=FINDING))
    return path


@pytest.mark.slow
def test_a_script_passes_on_stock_torch(path: Path) -> None:
    result = check(path, 2)
    assert not result.fails, result.output
    assert result.returncode == 0


@pytest.mark.slow
def test_a_script_fails_with_the_fault_preloaded(path: Path) -> None:
    result = check(path, 2, preload=[FAULT])
    assert result.fails
    assert "Greatest absolute difference" in result.output


STARTS_A_SESSION = """#!/bin/sh
echo $$ > {folder}/pid.new
setsid sh -c 'echo $$ >> {folder}/pid.new; mv {folder}/pid.new {folder}/pids; exec sleep 1000' &
exec sleep 1000
"""
"""In place of a Python with torch: torchrun starts its workers so."""

COORDINATOR = """
import sys
from pathlib import Path
from fuzzshard.reproducer import check

check(Path("repro.py"), 1, python=Path(sys.argv[1]))
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    python = tmp_path / "python"
    python.write_text(STARTS_A_SESSION.format(folder=tmp_path))
    python.chmod(0o700)
    return python


def test_a_coordinator_that_is_killed_leaves_no_script_running(
    tmp_path: Path, hanging: Path
) -> None:
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", COORDINATOR, str(hanging)]) as coordinator:
        while not pids.exists():
            time.sleep(0.01)
        processes = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        assert len(processes) == 2
        coordinator.kill()
    assert psutil.wait_procs(processes, timeout=10)[1] == []


def test_a_script_that_nobody_wants_any_more_ends(tmp_path: Path, hanging: Path) -> None:
    pids = tmp_path / "pids"
    result = check(tmp_path / "repro.py", 1, python=hanging, wanted=lambda: not pids.exists())
    assert result.fails
    assert "killed after" in result.output
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split())


@pytest.mark.slow
def test_a_script_that_hangs_is_killed_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "hang.py"
    path.write_text("import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n")
    result = check(path, 2, timeout=30)
    assert result.fails
    assert "killed after 30 s" in result.output
    pids = [int(line.rpartition(" ")[2]) for line in result.output.splitlines() if "pid" in line]
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
