"""The smallest changes of a minimal case that make its finding go away: they say what it takes.

Every candidate is one edit away: an option at another of its values, a wrap plan that says the
same otherwise, or what a pass of the reducer offers. Only changes that a sentence can say count.
Shrinking makes a table of those that it has tried; a draft looks for some after which the case
passes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.codec import encode
from fuzzshard.case.describe import describe
from fuzzshard.case.dims import get_dims, set_dims
from fuzzshard.case.edit import with_item
from fuzzshard.corpus.entry import Culprit
from fuzzshard.parts.part import Part, choices
from fuzzshard.shrink.option_passes import parts
from fuzzshard.shrink.passes import Edit, put
from fuzzshard.shrink.repair import repaired
from fuzzshard.shrink.tiers import TIERS

MOST_CHANGES = 3
"""An edit that takes more along (a module with its group, its prefetch and its ops) names no
culprit.
"""

_NO_CAUSE = (
    *("seed", "engines", "observe", "values", "loss", "same_on_ranks"),
    *("flag", "value", "ranks", "engines_only"),
)
"""Fields that say what is looked at, with what numbers, or what an op is. Equal inputs hide
causes.
"""


def culprits(case: Case, outcome_of: Callable[[str, Case], str | None]) -> Iterator[Culprit]:
    """Yield every change of ``case`` that says something, with what is seen after it; the smallest
    ones first.

    ``outcome_of`` gets the words for a change and the changed case, and says what that shows: a
    status or another signature. It says None where nobody knows, and where the finding is still
    there.
    """
    for phrase, candidate in changes(case):
        if (outcome := outcome_of(phrase, candidate)) is not None:
            yield Culprit(change=phrase, outcome=outcome)


def subject(phrase: str) -> str:
    """Return what a phrase changes: of an option, one other value says enough."""
    new, _, old = phrase.partition(" in place of ")
    return new.partition("=")[0] if "=" in new else old or new


def changes(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield valid cases that are one edit away, each with its words and each of these once.

    Options come first. What takes several words comes after what one can say, and one rank comes
    last, which is right nearly always and so says little.
    """
    seen, said = {encode(case)}, set()
    longer: list[tuple[str, Case]] = []
    alone: list[tuple[str, Case]] = []
    of_passes = (edit for tier in TIERS for each in tier for edit in each.edits(case))
    for edit in itertools.chain(_options(case), _plans(case), _sizes(case), of_passes):
        candidate = repaired(edit(case))
        if candidate is None or encode(candidate) in seen:
            continue
        seen.add(encode(candidate))
        phrases = describe(case, candidate)
        phrase = "; ".join(phrases)
        if not 0 < len(phrases) <= MOST_CHANGES or phrase in said:
            continue
        said.add(phrase)
        if candidate.mesh.size == 1:
            alone.append((phrase, candidate))
        elif len(phrases) > 1:
            longer.append((phrase, candidate))
        else:
            yield phrase, candidate
    yield from longer
    yield from alone


def _options(case: Case) -> Iterator[Edit]:
    """Every option at every other value that its type names."""
    for part, change in (*parts(case), (case, put)):
        for name, value in _other_values(part):
            yield change(**{name: value})


def _other_values(part: Part) -> Iterator[tuple[str, object]]:
    for name, values in choices(type(part)).items():
        present = getattr(part, name)
        for value in values if name not in _NO_CAUSE and type(values[0]) is not tuple else ():
            if value != present or type(value) is not type(present):
                yield name, value


def _plans(case: Case) -> Iterator[Edit]:
    """Each module of a list group by itself, and a root that is wrapped."""
    for index, group in enumerate(case.wrap):
        if len(group.modules) > 1:
            alone = [replace(group, modules=(path,)) for path in group.modules]
            yield put(wrap=(*case.wrap[:index], *alone, *case.wrap[index + 1 :]))
            yield put(
                wrap=with_item(case.wrap, index, replace(group, modules=group.modules[::-1]))
            )
    if case.wrap and not any("" in group.modules for group in case.wrap):
        yield put(wrap=(*case.wrap, WrapGroup(modules=("",))))


def _sizes(case: Case) -> Iterator[Edit]:
    """Other meshes, and widths that the shard axis divides or does not."""
    for shard in (1, 2, 4):
        yield put(mesh=replace(case.mesh, shard=shard))
    if case.mesh.replicate is not None:
        yield put(mesh=replace(case.mesh, replicate=None))
        yield put(mesh=replace(case.mesh, replicate=2 if case.mesh.replicate == 1 else 1))
    dims = get_dims(case)
    for value, factor in itertools.product(sorted(set(dims.values())), (1, 2)):
        wide = case.mesh.shard * factor
        sizes = {key: wide for key, size in dims.items() if size == value}
        yield functools.partial(set_dims, sizes=sizes)
