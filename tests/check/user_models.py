"""Subjects by the functions that their files define."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from fuzzshard.checking.report import Report
from fuzzshard.subject.subject import Subject

HERE = Path(__file__).parent
Checked = Callable[..., Report]
"""What the fixture ``checked`` is."""

FIELDS = ("loss", "parallelize", "optimizer", "train_step", "loss_weight")

SPECIFIC = ("build", "batch", "loss")
"""Of these a file may have some for each of its models."""


def functions_of(path: Path) -> dict[str, str]:
    """The names of the functions in a file, as a subject names them, each under its own name."""
    defined = ast.parse(path.read_text()).body
    return {f.name: f"{path}:{f.name}" for f in defined if isinstance(f, ast.FunctionDef)}


def path_of(name: str) -> Path:
    """The file of a model."""
    return HERE / "subjects" / f"{name}.py"


def model(name: str, **others: str) -> Subject:
    """The subject that ``subjects/NAME.py`` defines; ``others`` are names of other functions in
    that file, or empty.
    """
    return _subject(functions_of(path_of(name)), others)


def models_in(path: Path) -> dict[str, Subject]:
    """The subjects of a file, by the names of their builds; ``batch_vit`` and ``loss_vit`` are for
    ``build_vit``.
    """
    functions = functions_of(path)
    found = {}
    for build in (name for name in functions if name.startswith("build")):
        kind = build.removeprefix("build")
        own = {f: functions[f + kind] for f in SPECIFIC if f + kind in functions}
        found[build] = _subject(functions | own, {})
    return found


def mistake(name: str, **others: str) -> Subject:
    """The subject of ``mistakes/NAME.py``; what it does not define itself is of ``tiny.py``."""
    own = functions_of(HERE / "mistakes" / f"{name}.py")
    tiny = functions_of(HERE / "mistakes" / "tiny.py")
    if "batch" in own and "build" in own:
        del tiny["loss"]
    return _subject(tiny | own, others)


def _subject(functions: dict[str, str], others: dict[str, str]) -> Subject:
    named = {"build": functions["build"], "inputs": functions["batch"]}
    named |= {field: functions[field] for field in FIELDS if field in functions}
    named |= {field: functions.get(name, "") for field, name in others.items()}
    return Subject(**named)


def words_of(subject: Subject) -> list[str]:
    """A subject as the command line has it."""
    options = dict(subject.functions)
    words = [options.pop("build")]
    for field, name in options.items():
        words += [f"--{field.replace('_', '-')}", name]
    return words
