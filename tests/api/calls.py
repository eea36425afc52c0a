"""The table of calls.toml: what becomes of a public call at each moment of a training run.

Rows are public methods by which people change or read a model in training. A cell is *drawn* (an
op of that kind comes at that moment in cases, or a feature of cases says so), *forbidden* by a
quote of torch, *impossible* for a reason, or *open*: nothing forbids it, and no case does it yet.
A method without a row of its own is *excused* with a reason.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fuzzshard.parts.moments import MOMENTS, Moment, Never
from fuzzshard.parts.ops import OPS

Kind = Literal["drawn", "forbidden", "impossible", "open"]
_BY_TAG = {str(op.__struct_config__.tag): op for op in OPS}


@dataclasses.dataclass(frozen=True)
class Cell:
    """What becomes of a call at a moment.

    A drawn one has the ``op`` or the ``features`` by which cases show it.
    """

    kind: Kind
    never: Never | None = None
    op: str = ""
    features: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Calls:
    """The table."""

    ops: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Any]]
    open: Mapping[str, str]
    excused: Mapping[str, str]

    @classmethod
    @functools.cache
    def load(cls) -> Calls:
        """Reads the table."""
        return cls(**tomllib.loads((Path(__file__).parent / "calls.toml").read_text()))

    @property
    def rows(self) -> dict[str, dict[Moment, Cell]]:
        """The cells of every method that has a row, in the order of the file."""
        names = dict.fromkeys((*self.ops, *self.cells, *self.open))
        return {name: {m: self._cell(name, m) for m in MOMENTS} for name in names}

    def _cell(self, name: str, moment: Moment) -> Cell:
        said = self.cells.get(name, {}).get(moment)
        if isinstance(said, dict):
            return Cell("impossible", Never(said["why"])) if "why" in said else Cell("open")
        if isinstance(said, str):
            return Cell("drawn", features=(said,))
        if said is not None:
            is_quote = "." in said[1] and "/" in said[1]
            if is_quote:
                return Cell("forbidden", Never(*said))
            return Cell("drawn", features=tuple(said))
        if name not in self.ops:
            return Cell("open")
        op = self.ops[name]
        never = _BY_TAG[op].never.get(moment)
        if never is None:
            return Cell("drawn", op=op)
        return Cell("forbidden" if never.source else "impossible", never)

    def each(self) -> Iterator[tuple[str, Moment, Cell]]:
        """Every cell with its row and its column."""
        for name, cells in self.rows.items():
            for moment, cell in cells.items():
                yield name, moment, cell

    def counts(self) -> dict[Kind, int]:
        """How many cells there are of each kind."""
        kinds: tuple[Kind, ...] = ("drawn", "forbidden", "impossible", "open")
        cells = [cell.kind for *_, cell in self.each()]
        return {kind: cells.count(kind) for kind in kinds}
