"""Every engine has one room, and nothing outside of it names the engine."""

from __future__ import annotations

import ast

import pytest
import shotgun

from fuzzshard.parts.engines import ENGINES, REFERENCE


@pytest.mark.parametrize("engine", ENGINES)
def test_no_module_outside_its_room_names_an_engine(engine: str) -> None:
    files = [file for file in shotgun.sources() if not shotgun.in_room(engine, file)]
    naming = [f for f in files if f"'{engine}'" in shotgun.names(ast.parse(f.read_text()))]
    assert files
    assert [file.relative_to(shotgun.ROOT).as_posix() for file in naming] == []


def test_every_engine_has_a_folder_with_its_class_and_its_script() -> None:
    engines = shotgun.ROOT / "fuzzshard/engines"
    for name in ENGINES:
        assert {"__init__.py", "engine.py", "script.py"} <= {
            file.name for file in (engines / name).iterdir()
        }
    folders = {file.parent.name for file in engines.glob("*/__init__.py")}
    assert folders == {*ENGINES, REFERENCE.name}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('engine == "replicate"', True),
        ('{"ddp": 1, "replicate": 2}', True),
        ('plan(output="replicate")', False),
        ('axes = ("replicate", "shard")', False),
        ('sizes = {"pp": 1, "replicate": 2}', False),
        ('Literal["fully_shard", "replicate", "DTensor"]', False),
    ],
)
def test_what_else_a_string_may_mean_does_not_count(line: str, named: bool) -> None:
    assert ("'replicate'" in shotgun.names(ast.parse(line))) is named
