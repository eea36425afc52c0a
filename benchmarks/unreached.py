"""Why branches of torch are never reached: the table ``unreached.toml``, held against what a run
has missed.

An entry names branches by file, function and source text, with ``*`` for anything, and never by
line, so that it holds for other versions of torch. ``to`` is the text of the line that the branch
would have led to. The first entry that matches counts.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.text import Text

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, UsageError

TABLE = Path(__file__).with_name("unreached.toml")
END = "the end of the function"
UNEXPLAINED = "UNEXPLAINED"
KINDS = {
    "check": "torch's check of itself, or of a use that is no experiment",
    "device": "needs a device or a backend that the run does not have",
    "private": "only private API leads there",
    "dead": "nothing leads there",
    "seldom": "drawn, but so rarely that a run of this size may miss it",
    "gap": "a user can reach it, and no case does",
}


class Missed(Protocol):
    """A file with the branches that were not reached: (line, target, source)."""

    path: str
    missing: list[tuple[int, int, str]]


@dataclasses.dataclass(frozen=True)
class Reason:
    """One entry of the table."""

    kind: str
    reason: str
    file: str = "*"
    function: str = "*"
    source: str = "*"
    to: str = "*"

    def matches(self, branch: Branch) -> bool:
        """Whether the entry is about ``branch``."""
        pairs = zip(
            (branch.file, branch.function, branch.source, branch.to),
            (self.file, self.function, self.source, self.to),
            strict=True,
        )
        return all(
            fnmatch.fnmatchcase(text, pattern.replace("[", "[[]")) for text, pattern in pairs
        )


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch that no case has taken; ``source`` and ``to`` are the texts of its lines."""

    file: str
    function: str
    line: int
    source: str
    to: str


def load_reasons(path: Path = TABLE) -> list[Reason]:
    """The table; raises :class:`UsageError` where an entry makes no sense."""
    try:
        reasons = [Reason(**entry) for entry in tomllib.loads(path.read_text())["branch"]]
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise UsageError(f"{path.name} is not a table of branches: {error}", "mend it") from None
    for reason in reasons:
        if reason.kind not in KINDS:
            raise UsageError(
                f"{path.name} has the kind {reason.kind!r}", f"use one of {', '.join(KINDS)}"
            )
    return reasons


class Explanations:
    """The branches that a run has missed, each with its reason or with none."""

    def __init__(self, root: Path, files: Sequence[Missed], reasons: Sequence[Reason]) -> None:
        branches = [branch for file in files for branch in missed_branches(root, file)]
        self.reasons = {b: next((r for r in reasons if r.matches(b)), None) for b in branches}
        used = {id(reason) for reason in self.reasons.values()}
        self.idle = [reason for reason in reasons if id(reason) not in used]

    @property
    def unexplained(self) -> list[Branch]:
        """Those for which the table has nothing."""
        return [branch for branch, reason in self.reasons.items() if reason is None]

    @property
    def exit_code(self) -> int:
        """That of a command that has found something, if there are any."""
        return EXIT_FINDING if self.unexplained else EXIT_CLEAN

    def rows(self) -> list[dict[str, object]]:
        """All of it for machines."""
        return [
            {
                **dataclasses.asdict(branch),
                "kind": reason.kind if reason else UNEXPLAINED,
                "reason": reason.reason if reason else "",
            }
            for branch, reason in self.reasons.items()
        ]

    def summary(self) -> str:
        """How many branches there are of each kind."""
        counts = Counter(reason.kind for reason in self.reasons.values() if reason)
        kinds = [f"{counts[kind]} {kind} ({text})" for kind, text in KINDS.items() if counts[kind]]
        unexplained = [f"{len(self.unexplained)} {UNEXPLAINED}"]
        return f"never reached: {len(self.reasons)} branches: " + ", ".join(kinds + unexplained)

    def print_to(self, console: Console) -> None:
        """The list by file and function."""
        place = ("", "")
        for branch, reason in self.reasons.items():
            if (branch.file, branch.function) != place:
                place = branch.file, branch.function
                console.print(Text(f"\n{branch.file}: {branch.function}", style="bold"))
            why = f"{reason.kind}: {reason.reason}" if reason else UNEXPLAINED
            text = Text(f"  {branch.line:5} {branch.source}  ->  {branch.to}\n        ")
            console.print(text.append(why, style="dim" if reason else "bold red"), soft_wrap=True)
        for reason in self.idle:
            console.print(
                Text(f"matched nothing this time: {reason.file} {reason.function} {reason.source}")
            )


def missed_branches(root: Path, file: Missed) -> Iterator[Branch]:
    """The branches of one file below ``root``; a conditional that spans lines is one text."""
    source = (root / file.path).read_text()
    lines, functions = source.splitlines(), list(_functions(ast.parse(source)))

    def text(line: int) -> str:
        return lines[line - 1].partition("  #")[0].strip()

    for line, target, _ in file.missing:
        inside = [(end - begin, name) for name, begin, end in functions if begin <= line <= end]
        to = text(target) if target > 0 else END
        yield Branch(file.path, min(inside)[1] if inside else "", line, text(line), to)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Every function with its class or enclosing function, and the lines it is on."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node.lineno, node.end_lineno or node.lineno
            yield from _functions(node, f"{name}.")
        else:
            yield from _functions(node, prefix)
