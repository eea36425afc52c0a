"""All rows, and the files that they are written to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from fuzzshard.case import codec
from upstream import (
    accumulation,
    exec_order,
    fine_tune,
    frozen,
    multiple_forward,
    parallel,
    registered_params,
    resume,
    training_checkpoint,
    training_core,
)
from upstream.cell import Cell, Row

TABLES = (
    multiple_forward,
    registered_params,
    training_core,
    training_checkpoint,
    accumulation,
    parallel,
    resume,
    fine_tune,
    exec_order,
    frozen,
)
ROWS: tuple[Row, ...] = tuple(row for table in TABLES for row in table.ROWS)


def case_path(row: Row, cell: Cell) -> PurePosixPath:
    """Where a cell lies below the corpus: ``A2/raf=True,delays=none.json``,
    ``A5/intended/raf=2.json``.
    """
    return PurePosixPath(row.id, cell.folder, f"{cell.name}.json")


def case_files() -> Iterator[tuple[PurePosixPath, bytes]]:
    """Every cell's path below the corpus, and what is in it: a bare Case."""
    for row in ROWS:
        for cell in row.cells:
            yield case_path(row, cell), codec.encode(cell.case) + b"\n"
