"""Setters of ``FSDPModule`` that are called during training, with the other value, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.ops.set_requires_grad import GOES_BY_BEFORE, SetRequiresGrad
from fuzzshard.parts.options.communication import WORDS, CommunicationOption

_OF_ONE: tuple[CommunicationOption, ...] = tuple(
    word for word in get_args(CommunicationOption) if not WORDS[word].of_several
)


class Tell(op.OnGroups, tag="tell", frozen=True, kw_only=True):
    """The wrapped modules below ``target``, or it alone, are told a ``word`` of the option
    ``communication`` from now on; or, where that is not ``on``, the opposite.
    """

    word: CommunicationOption
    on: bool = True
    target: str = ""
    recurse: bool = True

    sets_mode = True
    says = "{at}.{op.setter}"
    meanings = {
        "op:tell": "what a group is told about its communication during training",
        "op:tell_opposite": "the same, with the value that it has by default",
    }
    choices = (op.Choice("tell", 8, 112, new=True, brings=("communication",)),)

    @property
    def setter(self) -> str:
        """The call on a wrapped module."""
        word = WORDS[self.word]
        return word.call if self.on else word.opposite

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.tell(self.word, self.on, self.below)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if WORDS[self.word].of_several or not self.setter:
            yield f"nothing says the opposite of {self.word} for one group", "remove the op"
        yield from at.telling_misfits(self.word, self.below, on=self.on)
        since = at.ops[at.pending[0].place :] if at.pending else []
        looks = "looks_at_unsharded" in WORDS[self.word].gives
        if looks and any(isinstance(each, SetRequiresGrad) for each in since):
            yield GOES_BY_BEFORE

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:tell" if self.on else "op:tell_opposite"
        yield f"communication:{self.word}"

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        return scope.on_groups(self.below, lambda module: [f"{module}.{self.setter}"])

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Draw one word, which groups are told up to three times."""
        if moment == "between_steps" and "tell" in run.swarm and run.wrapped:
            (each,) = cls.drawn(run)
            for _ in range(1 + run.tape.below(3)):
                run.early(25).append(each)
                each = replace(each, on=not each.on or not WORDS[each.word].opposite)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[Tell, ...]:
        """Draw a word that some group has, for that group; or any word."""
        had = [
            (word, op.Below(group.modules[0], recurse=False))
            for group in run.case.wrap
            for word in group.communication
            if word in _OF_ONE
        ]
        if had and run.tape.chance(50):
            word, below = run.tape.pick(had)
        else:
            word, below = run.tape.pick(_OF_ONE), run.any_wrapped(35)
        on = run.tape.chance(50) or not WORDS[word].opposite
        return (cls(word=word, on=on, target=below.target, recurse=below.recurse),)


def words_told(schedule: Iterable[op.Op]) -> frozenset[CommunicationOption]:
    """Return the words that groups are told during training."""
    return frozenset(each.word for each in schedule if isinstance(each, Tell))
