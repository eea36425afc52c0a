"""The option of wrap groups whose words are in :mod:`fuzzshard.parts.options.communication`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.op import Choice
from fuzzshard.parts.option import DrawingGroups, Reasons, Tape, Told
from fuzzshard.parts.options.communication import SOURCES, WORDS
from fuzzshard.parts.options.wrap_group import GroupOption, Trait, WrapGroup

Words = tuple[str, ...]
_ANYWHERE = sorted(
    (name for name, word in WORDS.items() if word.anywhere is not None),
    key=lambda name: WORDS[name].anywhere or 0,
)


def _some(tape: Tape) -> Words:
    """Draw one word, or any of them."""
    return tuple(tape.some(_ANYWHERE, 30)) if tape.chance(50) else (tape.pick(_ANYWHERE),)


class Communication(GroupOption):
    """What a wrapped module is told about its collectives, once all are wrapped."""

    name, place = "communication", 3
    sources = SOURCES
    extension = Choice("communication", 10, place=101)
    meanings = {f"communication:{name}": word.meaning for name, word in WORDS.items()}

    @override
    def does(self, value: Words) -> tuple[Trait, ...]:
        return tuple(trait for word in value for trait in WORDS[word].gives)

    @override
    def features(self, value: Words) -> Iterator[str]:
        return (f"communication:{word}" for word in value)

    @override
    def misfits(self, value: Words, told: Told) -> Reasons:
        if len(set(value)) < len(value):
            yield "a group names an option of its communication twice", "remove one"
        for word in value:
            if (reason := WORDS[word].misfit(told)) is not None:
                yield f"option {word} of a group: {reason}", "remove the option"

    @override
    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        tape, groups = drawing.tape, drawing.case.wrap
        if not groups:
            return lambda index, present: present
        alike, words = tape.chance(50), _some(tape)
        told = [words if alike else _some(tape) for _ in groups]
        for name, word in WORDS.items():
            if word.for_all and tape.chance(word.for_all):
                told = [(*words, name) for words in told]
        roots = {*drawing.roots}
        for name, word in WORDS.items() if len(roots) > 1 else ():
            if word.for_roots and tape.chance(word.for_roots):
                told = [(*w, name) if i in roots else w for i, w in enumerate(told)]
        wrap = tuple(
            replace(group, communication=words) for group, words in zip(groups, told, strict=True)
        )
        return lambda index, present: _fitting(drawing, wrap, index)


def _fitting(drawing: DrawingGroups, wrap: tuple[WrapGroup, ...], index: int) -> Words:
    """Return the words of a group without what does not fit it, and often with what few groups can
    have.
    """
    words: Words = wrap[index].communication
    told = drawing.told(wrap, index)
    for name, word in WORDS.items():
        often = word.where_it_fits
        if often and word.misfit(told) is None and drawing.tape.chance(often):
            words = (*words, name)
    kept: Words = ()
    for each in words:
        more = (*kept, each)
        group = replace(wrap[index], communication=more)
        told = drawing.told((*wrap[:index], group, *wrap[index + 1 :]), index)
        if all(WORDS[word].misfit(told) is None for word in more):
            kept = more
    return kept
