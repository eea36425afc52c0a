"""Puts mends on this process's torch, and takes them off.

An edited function keeps its identity: its code object is exchanged, so whoever has imported it by
name, and every hook that is bound to it, runs the edited lines.
"""

from __future__ import annotations
import __future__

import ast
import functools
import gc
import importlib
import inspect
import operator
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fuzzshard.mending.mend import Edit, Mend, find_mend
from fuzzshard.mending.source import (
    Function,
    code_within,
    edited_functions,
    filed_code,
    forget_files,
    why_not,
)
from fuzzshard.mending.trips import noted_runs


class Mended:
    """Which mends torch has in this process, changed from one case to the next."""

    def __init__(self) -> None:
        self._on: tuple[tuple[str, ...], bool] = ((), False)
        self._undo: list[Callable[[], None]] = []
        self._may_run: set[str] = set()
        self._found: dict[str, types.FunctionType | None] = {}

    def switch(self, names: tuple[str, ...], *, compiles: bool) -> bool:
        """Makes ``names`` (:func:`fuzzshard.mending.mend.find_mend`) the mends that torch has, and
        no others.

        Returns whether these are others than before, so that what torch remembers is not what it
        would do.

        Those of the compilers, whose import takes a second, are left out unless the case
        ``compiles``. So is one whose target is not as it knows it; the coordinator says so.
        """
        if (names, compiles) == self._on:
            return False
        while self._undo:
            self._undo.pop()()
        mends = {name: find_mend(name) for name in names}
        mends = {
            name: mend
            for name, mend in mends.items()
            if (compiles or mend.component != "compile") and self.takes(mend)
        }
        editing = _editing(mends)
        for target, (before, after) in edited_functions(_edits_of(mends)).items():
            function = self._found[target]
            assert function is not None
            code = function.__code__
            self._undo.append(functools.partial(setattr, function, "__code__", code))
            noting = () if compiles else editing[target]  # Dynamo would trace it
            function.__code__ = compiled(target, before, after, code, noting)
        self._may_run = {n for n, m in mends.items() if compiles or m.apply is not None}
        for mend in mends.values():
            if mend.apply is not None:
                mend.apply(self._patch)
        self._on = names, compiles
        return True

    def ran(self) -> tuple[str, ...]:
        """Return the mends that this case may have been different without: those of which an
        edited function has run, and those that nobody knows it of.
        """
        return tuple(sorted(self._may_run | noted_runs()))

    def takes(self, mend: Mend) -> bool:
        """Return whether ``mend`` fits torch's files, and the functions that it edits are theirs.

        A preloaded file may have put others in their place, and whoever imports torch may change
        its source.
        """
        if why_not(mend):
            return False
        for target in {edit.target for edit in mend.edits_here()}:
            if target not in self._found:
                function = function_of(target)
                as_filed = function is not None and function.__code__ == filed_code(target)
                self._found[target] = function if as_filed else None
            if self._found[target] is None:
                return False
        return True

    def _patch(self, owner: Any, name: Any, value: Any) -> None:
        is_dict = isinstance(owner, dict)  # which C++ code of torch may hold as it is
        items = owner if is_dict else vars(owner)
        put, remove = (operator.setitem, operator.delitem) if is_dict else (setattr, delattr)
        if name in items:
            self._undo.append(functools.partial(put, owner, name, items[name]))
        else:
            self._undo.append(functools.partial(remove, owner, name))
        put(owner, name, value)


def prepare(names: tuple[str, ...]) -> None:
    """Reads and compiles what mends edit, once for all processes that are forked from this one;
    but for those of the compilers.
    """
    mends = {name: find_mend(name) for name in names}
    mends = {n: m for n, m in mends.items() if m.component != "compile" and not why_not(m)}
    editing = _editing(mends)
    for target, (before, after) in edited_functions(_edits_of(mends)).items():
        if (function := function_of(target)) is not None:
            compiled(target, before, after, function.__code__, editing[target])
            filed_code(target)
    forget_files()


def function_of(target: str) -> types.FunctionType | None:
    """Return the function itself, below its decorators, and below what a preloaded file has put in
    its place.

    None where such a file has left nothing of it, or torch does not have the name.
    """
    module, _, qualified = target.partition(":")
    found: Any = importlib.import_module(module)
    names = vars(found)

    def is_it(each: Any) -> bool:
        if type(each) is not types.FunctionType or each.__globals__ is not names:
            return False
        return each.__code__.co_qualname == qualified

    for name in qualified.split("."):
        found = inspect.getattr_static(found, name, None)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
    function = inspect.unwrap(found)
    return function if is_it(function) else next(filter(is_it, gc.get_objects()), None)


@functools.lru_cache(maxsize=1024)
def compiled(
    target: str,
    before: Function,
    after: tuple[str, ...],
    like: types.CodeType,
    noting: tuple[str, ...] = (),
) -> types.CodeType:
    """Return the code of ``after``, as if it stood where ``before`` stands: same file, names and
    closures.

    ``like`` is the code that torch has there. Whenever it runs, it notes that the mends ``noting``
    do (:func:`fuzzshard.mending.trips.note_run`).
    """
    *classes, name = target.partition(":")[2].split(".")
    source = textwrap.dedent("\n".join(after))
    # Within classes of the same names, so that super() and private names mean what they meant.
    for owner in reversed(classes):
        source = f"class {owner}:\n" + textwrap.indent(source, " ")
    source = "\n" * (before.first_line - 1 - len(classes)) + source
    flags = like.co_flags & __future__.annotations.compiler_flag
    tree = ast.parse(source, like.co_filename)
    function: Any = tree.body[0]
    for _ in classes:
        function = function.body[0]
    start = int(ast.get_docstring(function) is not None)
    # without a name of its own in the function
    note = "__import__('fuzzshard.mending.trips').mending.trips.note_run"
    calls = ast.parse("".join(f"{note}({mend!r})\n" for mend in noting)).body
    for node in (node for call in calls for node in ast.walk(call)):
        ast.copy_location(node, function)
    function.body[start:start] = calls
    code = compile(tree, like.co_filename, "exec", flags=flags, dont_inherit=True)
    return code_within(code, (*classes, name))


def _edits_of(mends: Mapping[str, Mend]) -> Iterator[Edit]:
    return (edit for mend in mends.values() for edit in mend.edits_here())


def _editing(mends: Mapping[str, Mend]) -> dict[str, tuple[str, ...]]:
    """Return the names of those that edit a function, for each function."""
    names: dict[str, dict[str, None]] = {}
    for name, mend in mends.items():
        for edit in mend.edits_here():
            names.setdefault(edit.target, {})[name] = None
    return {target: tuple(found) for target, found in names.items()}
