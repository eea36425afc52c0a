"""A cell of an upstream test's grid, and the row of all its cells."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from fuzzshard.case.case import Case


@dataclasses.dataclass(frozen=True)
class Cell:
    """One case of a row. Canonical cells are the test's own and have no ``folder``; the others
    vary them.
    """

    name: str
    case: Case
    folder: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """One upstream test method: the ``file`` below PyTorch's ``test/distributed``, and
    ``Class.method``.

    ``differs`` is what the cells do otherwise, each with its reason; ``folders`` is what the cells
    in a folder of that name vary.
    """

    id: str
    file: str
    test: str
    cells: tuple[Cell, ...]
    differs: tuple[str, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()

    @property
    def canonical(self) -> tuple[Cell, ...]:
        """The cells that upstream runs."""
        return tuple(cell for cell in self.cells if not cell.folder)


def single(case: Case, *, folder: str = "", name: str = "test") -> tuple[Cell, ...]:
    """The one cell of a test without a grid."""
    return (Cell(name, case, folder),)


def grid(
    build: Callable[..., Case],
    *,
    folder: str = "",
    skip: Callable[..., bool] = lambda **_: False,
    **axes: tuple[Any, ...],
) -> tuple[Cell, ...]:
    """A cell for every point of the product of ``axes`` that is not skipped, named by its
    values.
    """
    return tuple(
        Cell(",".join(f"{axis}={value}" for axis, value in point.items()), build(**point), folder)
        for point in _points(axes)
        if not skip(**point)
    )


def _points(axes: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))
