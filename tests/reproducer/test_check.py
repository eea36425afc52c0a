"""Running a script as a user would: with torchrun."""

from __future__ import annotations

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


def test_a_script_passes_on_stock_torch(path: Path) -> None:
    result = check(path, 2)
    assert not result.fails, result.output
    assert result.returncode == 0


def test_a_script_fails_with_the_fault_preloaded(path: Path) -> None:
    result = check(path, 2, preload=[FAULT])
    assert result.fails
    assert "Greatest absolute difference" in result.output


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
