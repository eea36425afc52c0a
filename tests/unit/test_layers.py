"""The layers of ARCHITECTURE.md: who may import whom."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import fuzzshard
from fuzzshard.parts.engines import ENGINES

ROOT = Path(fuzzshard.__file__).parent

RANK_MODULES = (
    "instruments/streams/accesses.py",
    "instruments/streams/cuda.py",
    "instruments/streams/proof.py",
    "instruments/streams/recorder.py",
    "instruments/streams/simulated.py",
    "instruments/streams/watching.py",
    "model/build.py",
    "model/values.py",
    "subject/vary.py",
    "subject/compare.py",
    "subject/training.py",
    "subject/likeness.py",
    "subject/operators.py",
    "subject/record.py",
    "subject/resume.py",
    "subject/run.py",
    "subject/steps.py",
    "world/doubled_gradients.py",
    "world/experiment.py",
    "world/flight_recorder.py",
    "world/join.py",
    "world/comparison.py",
    "world/proofs.py",
    "world/rank.py",
)
ON_RANKS = (*RANK_MODULES, "engines/", "training/", "oracles/", "mends/")
"""What runs on ranks alone, and so may import torch; mends do so in functions only."""

ALLOWED = {
    "contracts": {"errors"},
    "parts": {"errors"},
    "case": {"errors", "parts"},
    "analysis": {"case", "contracts", "errors", "parts"},
    "mending": {"contracts", "errors"},
    "program": {"analysis", "case", "errors", "model", "parts"},
    "subject": {
        *("analysis", "case", "engines", "errors", "instruments", "oracles", "parts", "program"),
    },
    "strategies": {"analysis", "case", "errors", "parts"},
}
"""Packages that import no others of ours."""


def imports(file: Path) -> Iterator[str]:
    """The absolute names of the modules that ``file`` imports when it runs, anywhere in it."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@functools.cache
def modules() -> dict[str, set[str]]:
    """What each module imports, by its path in the package."""
    files = sorted({*ROOT.rglob("*.py"), *(ROOT / "strategies").glob("*.py")})
    return {file.relative_to(ROOT).as_posix(): set(imports(file)) for file in files}


def test_only_what_runs_on_ranks_imports_torch() -> None:
    importing = {
        m for m, names in modules().items() if any(n.partition(".")[0] == "torch" for n in names)
    }
    assert importing
    assert {m for m in importing if not m.startswith(ON_RANKS)} == set()


def test_one_module_imports_ray() -> None:
    assert [
        m for m, names in modules().items() if any(n.partition(".")[0] == "ray" for n in names)
    ] == ["fleet/cluster.py"]


def test_nothing_listens_but_the_store_of_torch_that_ranks_meet_in() -> None:
    listens = re.compile(r"\.(?:bind|listen)\(|create_server|socketserver|http\.server")
    assert [
        file.relative_to(ROOT).as_posix()
        for file in sorted(ROOT.rglob("*.py"))
        if listens.search(file.read_text())
    ] == ["world/join.py"]


def test_what_the_coordinator_asks_of_an_engine_imports_no_torch() -> None:
    asked = [
        module
        for module in modules()
        if module.startswith("engines/") and module.endswith(("__init__.py", "script.py"))
    ]
    assert len(asked) > len(ENGINES)
    below = {"analysis", "case", "errors", "model", "parts", "program"}
    for module in asked:
        names = [name.split(".") for name in modules()[module]]
        assert "torch" not in {name[0] for name in names}
        ours = [name for name in names if name[0] == "fuzzshard"]
        assert all(name[1] in below or name[-1] == "script" for name in ours)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_lower_layer_imports_no_higher_one(package: str) -> None:
    ours = {
        name.split(".")[1]
        for module, names in modules().items()
        if module.startswith(f"{package}/")
        for name in names
        if name.startswith("fuzzshard.")
    }
    assert ours >= {package}
    assert ours - {package} <= ALLOWED[package]


def test_no_packages_import_one_another() -> None:
    graph = nx.DiGraph()
    for module, names in modules().items():
        ours = {name.split(".")[1] for name in names if name.startswith("fuzzshard.")}
        graph.add_edges_from((module.partition("/")[0].removesuffix(".py"), name) for name in ours)
    graph.remove_edges_from(nx.selfloop_edges(graph))
    assert "world" in graph
    assert list(nx.simple_cycles(graph)) == []


def test_a_mend_knows_of_ours_what_a_mend_is() -> None:
    names = {
        n for module, names in modules().items() if module.startswith("mends/") for n in names
    }
    ours = {name for name in names if name.startswith("fuzzshard")}
    assert ours
    assert all(name.startswith("fuzzshard.mending") for name in ours)


@pytest.mark.parametrize(
    ("package", "unknown"), [("oracles", "subprocess"), ("engines", "hypothesis")]
)
def test_what_a_layer_knows_nothing_of(package: str, unknown: str) -> None:
    names = {
        n for module, names in modules().items() if module.startswith(f"{package}/") for n in names
    }
    assert names
    assert not any(n.partition(".")[0] in (unknown, "multiprocessing") for n in names)


def test_nothing_but_contracts_goes_by_the_version_of_torch() -> None:
    reading = [file for file in ROOT.rglob("*.py") if "torch.__version__" in file.read_text()]
    assert [file.relative_to(ROOT).as_posix() for file in reading] == [
        "world/join.py"
    ]  # says which it is


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_outside_its_folder_compares_with_the_name_of_an_engine(engine: str) -> None:
    """What else ``fully_shard`` is, a function of torch, is in tables and not compared with."""
    others = (
        file
        for file in ROOT.rglob("*.py")
        if not file.is_relative_to(ROOT / "engines" / engine) and f'"{engine}"' in file.read_text()
    )
    comparing = [
        file
        for file in others
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        and any(getattr(each, "value", None) == engine for each in (node.left, *node.comparators))
    ]
    assert comparing == []
