"""Why engines do not run a case: what their tables say of its features."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from fnmatch import filter as matching
from typing import NamedTuple

from fuzzshard.analysis.conditions import CONDITIONS
from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.features import features
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.exclusion import Exclusion


def exclusion(case: Case, engine: str) -> Exclusion | None:
    """Return why the contract of an engine does not cover a case, or None."""
    reasons = (_on_mesh(each, engine) for each in case.on_meshes)
    return next(filter(None, reasons), None)


@functools.lru_cache(maxsize=256)
def _on_mesh(case: Case, engine: str) -> Exclusion | None:
    present = features(case)
    if engine not in case.engines:
        present = present.union(spec_of(engine).features(case, inferred(case)))
    fitting = (r for r in rows_of(engine) if all(t.holds(case, present) for t in r.terms))
    return next((row.says for row in fitting), None)


class Term(NamedTuple):
    """Some features of which a case has one, or others of which it lacks one; or a condition."""

    has: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    condition: Callable[[Case], bool] | None = None

    def holds(self, case: Case, present: Collection[str]) -> bool:
        """Return whether it holds for a case with these features."""
        if self.condition is not None:
            return self.condition(case)
        return not (self.has.isdisjoint(present) and self.lacks <= {*present})


class Row(NamedTuple):
    """One row of the table of an engine."""

    terms: tuple[Term, ...]
    says: Exclusion


@functools.cache
def rows_of(engine: str) -> tuple[Row, ...]:
    """Return the table of an engine; rows that only ask for features come first."""
    rows = [
        Row(tuple(sorted(map(_term, key.split(" & ")), key=_is_asked_last)), row)
        for key, row in spec_of(engine).excludes.items()
    ]
    return tuple(sorted(rows, key=lambda row: _is_asked_last(row.terms[-1])))


def _is_asked_last(term: Term) -> bool:
    return term.condition is not None


def _term(text: str) -> Term:
    """Read one; raises :class:`KeyError` for what is no feature and no condition."""
    if ":" not in text:
        return Term(condition=CONDITIONS[text])
    has, lacks = set[str](), set[str]()
    for word in text.split("|"):
        found = matching(FEATURES, word.removeprefix("!"))
        if not found:
            raise KeyError(word)
        (lacks if word.startswith("!") else has).update(found)
    return Term(frozenset(has), frozenset(lacks))
