"""Where each leaf, op, oracle, option and engine is named, counted by the benchmark."""

from __future__ import annotations

import ast
from pathlib import Path

import options_named
import pytest
import shotgun

from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.oracle import Oracle
from fuzzshard.parts.oracles import ORACLES

Trees = dict[Path, ast.Module]
Mentions = dict[Path, options_named.Mentions]
Named = dict[Path, frozenset[str]]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """The parsed sources."""
    return {file: ast.parse(file.read_text()) for file in shotgun.sources()}


@pytest.fixture(scope="module")
def named(trees: Trees) -> Named:
    """What each source names."""
    return {file: shotgun.names(tree) for file, tree in trees.items()}


@pytest.fixture(scope="module")
def mentions(trees: Trees) -> Mentions:
    """What each source may mean by its words."""
    return {file: options_named.Mentions(tree) for file, tree in trees.items()}


@pytest.fixture(scope="module")
def rooms(named: Named) -> dict[str, list[Path]]:
    """The sources that name each oracle."""
    return shotgun.rooms_of_oracles(named)


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.name)
def test_an_oracle_is_named_in_its_room_and_by_what_judges_it_on_ranks(
    oracle: Oracle, rooms: dict[str, list[Path]]
) -> None:
    files = [file.relative_to(shotgun.ROOT).as_posix() for file in rooms[oracle.name]]
    assert f"{type(oracle).__module__.replace('.', '/')}.py" in files
    others = [file for file in files if not file.startswith("fuzzshard/parts/oracles/")]
    assert all(file.startswith(("fuzzshard/oracles/", "fuzzshard/training/")) for file in others)
    assert len(files) <= 2


@pytest.mark.parametrize(
    ("kind", "folder"), [("leaf", "leaves"), ("loss", "losses"), ("op", "ops")]
)
def test_a_part_is_named_in_its_room_and_where_all_are_listed(
    kind: str, folder: str, named: Named
) -> None:
    for name, files in shotgun.count(shotgun.vocabulary()[kind], named).items():
        assert len(files) <= 2, (name, files)
        others = [file for file in files if file.name != "__init__.py"]
        assert [folder in (file.parent.name, file.stem) for file in others] == [True]


def test_every_word_that_means_something_else_stands_where_it_is_said_to(named: Named) -> None:
    for name, meanings in shotgun.MEANS_ELSE.items():
        for module in (module for modules in meanings.values() for module in modules):
            places = (f"{module}.py", f"fuzzshard/{module}.py")
            files = [shotgun.ROOT / place for place in places if (shotgun.ROOT / place) in named]
            assert [file for file in files if f"'{name}'" in named[file]], (name, module)


def test_oracles_have_places_of_their_own() -> None:
    assert len({oracle.place for oracle in ORACLES}) == len(ORACLES)


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("def f(spec: DDP): return spec.join", True),
        ("x = case.ddp.join", True),
        ("x = [g.join for g in case.wrap]", False),
        ("case.ddp; x = ', '.join(names)", False),
        ("case.ddp; x = thread.join", True),
        ("case.ddp; thread.join()", False),
        ("def f(case, path: Path): return case.ddp, path.join", False),
        ("x = thread.join", False),
        ("x = DDP(join='off')", True),
        ("x = replace(case.ddp, join='off')", True),
        ("x = replace(case.fsdp1, join='off'), case.ddp", False),
        ("class DDP: join: str = ''", True),
        ("case.ddp; x = {'join': 1}", True),
    ],
)
def test_a_word_counts_where_it_can_be_the_option(line: str, means: bool) -> None:
    module = options_named.Mentions(ast.parse(line))
    assert options_named.mentioned("DDP", "join", True, module) is means


def test_every_word_that_means_no_option_stands_where_it_is_said_to(mentions: Mentions) -> None:
    by_module = {shotgun.short(file): each for file, each in mentions.items()}
    for option, meanings in options_named.MEANS_ELSE.items():
        part, _, name = option.partition(".")
        for module in (module for modules in meanings.values() for module in modules):
            assert options_named.mentioned(part, name, False, by_module[module]), (option, module)


def test_an_option_is_named_in_its_room_and_in_its_list_alone(mentions: Mentions) -> None:
    rooms = {
        option: [shotgun.short(file) for file in files]
        for option, files in shotgun.rooms_of_options(mentions).items()
    }
    assert len(rooms) >= 58
    for option, files in rooms.items():
        part, _, name = option.partition(".")
        own = f"parts/options/{shotgun.folder(part)}"
        assert own in files or f"{own}/__init__" in files, option
        assert {*files} <= {own, f"{own}/__init__", f"{own}/{name}"}, (option, files)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_module_outside_its_room_names_an_engine(engine: str, named: Named) -> None:
    files = [file for file in named if not shotgun.in_room(engine, file)]
    naming = [file for file in files if f"'{engine}'" in named[file]]
    assert files
    assert [file.relative_to(shotgun.ROOT).as_posix() for file in naming] == []


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
