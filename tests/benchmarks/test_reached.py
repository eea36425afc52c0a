"""Which lines of a file count, and which were reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from reached import functions, read_files

from fuzzshard.mending.source import torch_folder


def told(line: int, missing: list[int], executed: list[int]) -> dict[str, object]:
    return {"start_line": line, "missing_lines": missing, "executed_lines": executed}


def test_functions_with_mends_and_without_lines_do_not_count() -> None:
    regions = {
        "C.f": told(3, [], [5, 7]),
        "C.mended": told(9, [10], []),
        "g": told(13, [], [14, 17]),
        "g.inner": told(14, [15], []),
        "stub": told(20, [], []),
        "": told(1, [2], []),
    }
    found = {f.name: f for f in functions(regions, {9})}
    assert [*found] == ["C.f", "g", "g.inner"]
    assert [name for name, f in found.items() if f.missed] == ["g.inner"]
    assert found["g.inner"].text() == "  14 g.inner: never"


def test_lines_that_raise_do_not_count_and_ranks_add_up(tmp_path: Path) -> None:
    coverage = pytest.importorskip("coverage")
    file = torch_folder() / "amp/grad_scaler.py"
    source = file.read_text().splitlines()
    returning = [i for i, line in enumerate(source, 1) if line.startswith("        return ")]
    for rank, line in enumerate(returning[-2:]):  # the first are of a function with a mend
        data = coverage.CoverageData(tmp_path / f"rank.{rank}")
        data.add_lines({str(file): [line]})
        data.write()
    [(path, found)] = read_files(tmp_path).items()
    assert path == "amp/grad_scaler.py"
    assert sum(len(f.reached) for f in found) == 2
    missed = [source[line - 1].strip() for f in found for line in f.missed]
    assert missed
    assert any(line.strip().startswith("raise") for line in source)
    assert not any(text.startswith("raise") for text in missed)
