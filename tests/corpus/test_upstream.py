"""``corpus/upstream`` holds what the tables say, all of upstream's cells, and they hold."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from upstream.__main__ import write
from upstream.catalog import ROWS, case_files, case_path
from upstream.cell import Cell, Row
from upstream.readme import RESULTS, readme

from fuzzshard.analysis.needs import needs_cuda
from fuzzshard.analysis.validate import validate
from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.outcome import Outcome
from fuzzshard.corpus.replay import replay
from fuzzshard.verdict import Status
from fuzzshard.world import World

CORPUS = Path(__file__).parents[2] / "corpus" / "upstream"

CELLS_OF_ROW = {
    **{"M1": 1, "I1": 1, "P1": 6, "P2": 6, "C1": 1, "A1": 2, "A2": 18, "A3": 12, "A4": 1},
    **{"A5": 3, "A6": 1, "A7": 1, "K1": 9, "S1": 4, "G1": 42, "G2": 4, "D1": 12, "D2": 1},
    **{"D3": 8, "N1": 12, "H1": 24, "V1": 1, "F1": 24, "F2": 24, "F3": 6, "F4": 32, "E1": 2},
    **{"E2": 4, "E3": 2, "Z1": 12, "Z2": 6, "Z3": 3},
}
"""How many points of its grid each upstream test runs, after its own skips."""

ALL_CELLS = [
    pytest.param(row, cell, id=str(case_path(row, cell))) for row in ROWS for cell in row.cells
]


def test_every_upstream_test_has_all_its_cells() -> None:
    assert {row.id: len(row.canonical) for row in ROWS} == CELLS_OF_ROW
    assert sum(CELLS_OF_ROW.values()) == 285


def test_no_two_cells_share_a_file() -> None:
    paths = [path for path, _ in case_files()]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(("row", "cell"), ALL_CELLS)
def test_a_cell_validates_and_survives_its_file(row: Row, cell: Cell) -> None:
    validate(cell.case)
    assert codec.decode((CORPUS / case_path(row, cell)).read_bytes()) == cell.case


def test_the_files_on_disk_are_those_that_the_tables_make() -> None:
    on_disk = {
        path.relative_to(CORPUS).as_posix(): path.read_bytes() for path in CORPUS.rglob("*.json")
    }
    assert on_disk == {str(path): data for path, data in case_files()}
    assert (CORPUS / "README.md").read_text() == readme(CORPUS)


def test_every_folder_says_what_it_varies() -> None:
    for row in ROWS:
        assert {cell.folder for cell in row.cells if cell.folder} == set(dict(row.folders))


def test_writing_removes_cases_that_no_table_has(tmp_path: Path) -> None:
    stale = tmp_path / "A1" / "stale.json"
    stale.parent.mkdir()
    stale.write_text("{}")
    write(tmp_path)
    assert not stale.exists()


def test_writing_needs_no_torch() -> None:
    program = "import sys, upstream.__main__; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=CORPUS.parents[1] / "benchmarks",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_the_page_counts_the_last_result_of_each_case(tmp_path: Path) -> None:
    corpus = tmp_path / "upstream"
    corpus.mkdir()
    case = "elsewhere/upstream/V1/test.json"
    lines = [
        f'{{"path": "{case}", "outcome": "{outcome}", "seconds": 1.0, "message": ""}}'
        for outcome in ("INFRA", "PASS")
    ]
    (corpus / RESULTS[0]).write_text("\n".join(lines))
    assert re.search(
        r"^\| \*\*V1\*\* \| .* \| 1 \| 1 \| 0 \| 0 \|  \|  \|  \|$", readme(corpus), re.MULTILINE
    )


def is_small(case: Case) -> bool:
    return not needs_cuda(case) and case.mesh.size <= 4


STEPS = {
    **{"M1": 1, "P1": 3, "P2": 5, "A1": 2, "A4": 1, "A5": 3, "G2": 3},
    **{"V1": 1, "Z2": 4, "F1": 11, "F2": 11, "F3": 2, "F4": 9, "E1": 1, "E2": 3, "E3": 1},
}
SOME_CELLS = [
    pytest.param(cell.case, id=str(case_path(row, cell)))
    for row in ROWS
    if row.id in STEPS
    for cell in [each for each in row.cells if is_small(each.case)][:: STEPS[row.id]]
]
"""Every so many cells of the rows that are quick."""


@pytest.mark.parametrize("case", SOME_CELLS)
def test_a_cell_holds_on_real_ranks(four_ranks: World, case: Case) -> None:
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, verdict.findings[:2]
    told = (verdict.notes.get(engine, "") for engine in ("fully_shard", "fsdp1"))
    assert not any(note.startswith("not applicable") for note in told)


def test_a_cell_that_needs_cuda_is_skipped_with_the_reason(four_ranks: World) -> None:
    (result,) = _replay(four_ranks, "D2/test")
    assert result[0] is Outcome.SKIPPED
    assert "CUDA" in result[1]


def _replay(world: World, name: str) -> list[tuple[Outcome, str]]:
    files = [CORPUS / f"{name}.json"]
    shared = contextlib.nullcontext([world])
    results = replay(files, lambda size: shared, device="cpu", num_ranks=4)
    return [(result.outcome, result.message) for result in results]
