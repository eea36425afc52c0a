"""The source of torch's functions, before and after an edit, without importing torch."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import importlib.util
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fuzzshard.mending.mend import Edit, Mend, find_mend


class NotAsKnown(Exception):
    """A function of torch is not what a mend knows: it is gone, or lacks the lines to be
    replaced.
    """


@dataclasses.dataclass(frozen=True)
class Function:
    """A function as its file has it: its lines with decorators left out, and the number of the
    first one.
    """

    file: Path
    first_line: int
    lines: tuple[str, ...]


@functools.cache
def torch_folder() -> Path:
    """Return the folder of torch, which is not imported for that."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


@functools.lru_cache(maxsize=64)
def _parsed(file: Path) -> tuple[tuple[str, ...], ast.Module]:
    text = file.read_text()
    return tuple(text.splitlines()), ast.parse(text)


@functools.lru_cache(maxsize=64)
def _compiled(file: Path) -> types.CodeType:
    return compile(_parsed(file)[1], str(file), "exec", dont_inherit=True)


def forget_files() -> None:
    """Frees the syntax trees of the files that were read; what was found in them is kept."""
    _parsed.cache_clear()
    _compiled.cache_clear()


@functools.cache
def find_function(target: str) -> Function:
    """Return the function ``"module:qualified.name"``; raises :class:`NotAsKnown` for none."""
    module, _, qualified = target.partition(":")
    path = torch_folder().joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        raise NotAsKnown(f"there is no module {module}")
    lines, node = _parsed(file)
    found: ast.AST = node
    for name in qualified.split("."):
        matching = [child for child in _definitions(found) if child.name == name]
        if len(matching) != 1:
            raise NotAsKnown(f"{module} has {len(matching)} of {qualified}")
        found = matching[0]
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) or found.end_lineno is None:
        raise NotAsKnown(f"{target} is no function")
    return Function(file, found.lineno, lines[found.lineno - 1 : found.end_lineno])


@functools.cache
def filed_code(target: str) -> types.CodeType:
    """Return the code that Python makes of the function ``target`` of :func:`find_function`.

    It is compiled with its whole file: which names a module imports decides which instructions
    its functions have.
    """
    return code_within(_compiled(find_function(target).file), target.partition(":")[2].split("."))


def code_within(code: types.CodeType, names: Iterable[str]) -> types.CodeType:
    """Return the code that ``code`` defines by the first of ``names``, in which the next is
    defined, and so on.
    """
    for name in names:
        inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        code = next(constant for constant in inner if constant.co_name == name)
    return code


def _definitions(node: ast.AST) -> Iterable[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield what ``node`` defines: at its own level, and below conditions such as ``if
    TYPE_CHECKING``.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _definitions(child)


@functools.lru_cache(maxsize=1024)
def edited(lines: tuple[str, ...], edit: Edit) -> tuple[str, ...]:
    """Return ``lines`` with ``edit`` made. Raises :class:`NotAsKnown` unless they have its old
    lines once.
    """
    old = edit.old_lines
    places = [
        (start, depth)
        for start in range(len(lines) - len(old) + 1)
        if (depth := _depth([*lines[start : start + len(old)]], old)) is not None
    ]
    if len(places) != 1:
        raise NotAsKnown(f"{edit.target} has {len(places)} times {old[0].strip()!r}")
    ((start, depth),) = places
    new = [depth + line if line else line for line in edit.new_lines]
    return (*lines[:start], *new, *lines[start + len(old) :])


def _depth(lines: list[str], old: list[str]) -> str | None:
    """Return the indentation at which ``lines`` are ``old``, None where they are not."""
    first = lines[0]
    if not first.endswith(old[0]):
        return None
    depth = first[: len(first) - len(old[0])]
    return depth if not depth.strip() and lines == [depth + x if x else x for x in old] else None


def edited_functions(edits: Iterable[Edit]) -> dict[str, tuple[Function, tuple[str, ...]]]:
    """Return each function that ``edits`` are about, and its lines after all of them.

    Raises :class:`NotAsKnown` for one that is not what they know.
    """
    functions: dict[str, tuple[Function, tuple[str, ...]]] = {}
    for edit in edits:
        before, after = functions.get(edit.target) or ((f := find_function(edit.target)), f.lines)
        functions[edit.target] = before, edited(after, edit)
    return functions


@functools.cache
def why_not(mend: Mend) -> str:
    """Return why ``mend`` cannot be applied to the installed torch; empty where it can."""
    try:
        edited_functions(mend.edits_here())
    except NotAsKnown as error:
        return str(error)
    return ""


def unfit(names: Iterable[str]) -> dict[str, str]:
    """Return which mends with these ``names`` do not fit the installed torch, and why."""
    return {name: why for name in names if (why := why_not(find_mend(name)))}


def unfit_lines(reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each mend in what :func:`unfit` returned."""
    for name, why in reasons.items():
        yield f"not mended: {name}, as torch is not what it knows ({why})"


def clash(mends: Iterable[Mend]) -> str:
    """Return why those of ``mends`` that can be applied to the installed torch cannot be together,
    if so.
    """
    try:
        edited_functions(edit for mend in mends if not why_not(mend) for edit in mend.edits_here())
    except NotAsKnown as error:
        return str(error)
    return ""


def as_diff(mend: Mend) -> str:
    """Return the edits of ``mend`` as a unified diff against the source of the installed torch."""
    changed: dict[Path, list[tuple[Function, tuple[str, ...]]]] = {}
    for before, after in edited_functions(mend.edits_here()).values():
        changed.setdefault(before.file, []).append((before, after))
    parts: list[str] = []
    for file, functions in changed.items():
        old, _ = _parsed(file)
        new = list(old)
        for before, after in sorted(functions, key=lambda pair: -pair[0].first_line):
            start = before.first_line - 1
            new[start : start + len(before.lines)] = after
        name = file.relative_to(torch_folder().parent).as_posix()
        parts += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm="")
    return "".join(f"{line}\n" for line in parts)
