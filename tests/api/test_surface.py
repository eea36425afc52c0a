"""What the test of an API finds: names that nobody has listed, and lists that are no longer
true.
"""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path

import pytest
from cases import make_case
from streams import Drawn
from surface import Table, names_of_class, names_of_function, names_of_values


class Engine:
    def __init__(self, module: object, *, shards: bool = True, **others: object) -> None: ...

    @property
    def size(self) -> int:
        return 1

    @staticmethod
    def gather(module: object) -> None: ...

    def reshard(self, recurse: bool = True) -> None: ...

    def _private(self, secret: int) -> None: ...


class Kind(enum.Enum):
    FULL = 1
    _HIDDEN = 2


@dataclasses.dataclass
class Base:
    offload: bool = False


@dataclasses.dataclass
class Derived(Base):
    dtype: str = ""
    _internal: int = 0


def test_names_are_arguments_methods_and_properties() -> None:
    assert set(names_of_class(Engine)) == {
        *("Engine(module)", "Engine(shards)", "Engine.size"),
        *("Engine.gather", "Engine.gather(module)", "Engine.reshard", "Engine.reshard(recurse)"),
    }
    assert "Engine(module)" not in set(names_of_class(Engine, constructor=False))
    assert list(names_of_function("wrap", lambda module, *rest, mesh=None: None)) == [
        *("wrap(module)", "wrap(mesh)"),
    ]


def test_names_are_fields_and_members() -> None:
    assert list(names_of_values(Derived)) == ["Derived.offload", "Derived.dtype"]
    assert list(names_of_values(Kind)) == ["Kind.FULL"]


TABLE = Table(Path(), {"Engine(shards)": ("wrap:root",)}, {"Engine.gather": "static"}, {})
PUBLIC = ["Engine(shards)", "Engine.gather", "Engine.gather(module)"]


def test_a_complete_table_has_no_faults() -> None:
    assert TABLE.faults(PUBLIC) == []


NEVER = {"Engine.gather": "<1"}
FAULTY = {
    "a new name": (TABLE, [*PUBLIC, "Engine.unshard"], "Engine.unshard: not in the table"),
    "a new argument": (TABLE, [*PUBLIC, "Engine(mesh)"], "Engine(mesh): not in the table"),
    "a name that is gone": (TABLE, PUBLIC[:1], "Engine.gather: listed, and this torch has it not"),
    "a name of another release": (
        dataclasses.replace(TABLE, releases=NEVER),
        PUBLIC,
        "Engine.gather: listed for other releases",
    ),
    "an excuse without a reason": (
        dataclasses.replace(TABLE, excused={"Engine.gather": " "}),
        PUBLIC,
        "Engine.gather: excused without a reason",
    ),
    "a feature that there is not": (
        dataclasses.replace(TABLE, drawn={"Engine(shards)": ("wrap:nothing",)}),
        PUBLIC,
        "Engine(shards): drawn as a feature that there is not",
    ),
    "a release of an unknown name": (
        dataclasses.replace(TABLE, releases={"Engine.other": ">=2"}),
        PUBLIC,
        "Engine.other: has releases",
    ),
}


@pytest.mark.parametrize(("table", "public", "fault"), FAULTY.values(), ids=FAULTY.keys())
def test_a_fault_is_named(table: Table, public: list[str], fault: str) -> None:
    assert [found for found in table.faults(public) if found.startswith(fault)]


def test_a_name_that_another_release_has_may_be_missing_here() -> None:
    assert dataclasses.replace(TABLE, releases=NEVER).faults(PUBLIC[:1]) == []


def test_what_no_case_combines_is_not_drawn() -> None:
    table = dataclasses.replace(TABLE, drawn={"x": ("mesh:2", "mesh:4"), "y": ("mesh:2",)})
    sample = [Drawn(make_case(), frozenset({mesh})) for mesh in ("mesh:2", "mesh:4")]
    assert table.undrawn(sample) == ["x: mesh:2 with mesh:4"]
