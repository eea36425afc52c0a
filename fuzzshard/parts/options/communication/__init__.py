"""What a wrapped module may be told about its collectives and its memory. To add a word: its file,
and a line here.

No value changes, but where a group ``fills`` gradients.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from fuzzshard.parts.option import Mapping, Option, Told, found_in

CommunicationOption = Literal[
    "sum",
    "allocate",
    "two_buffers",
    "hook",
    "hook_stream",
    "custom_gather",
    "custom_scatter",
    "separate_group",
    "keep_storage",
    "zeros_for_unused",
    "no_backward_unshard",
    "share_streams",
]

Trait = Literal[
    "fills",
    "keeps",
    "looks_at_unsharded",
    "own_group",
    "shares",
    "uses_group_memory",
    "has_hook",
]
"""What somebody else has to know of a group: that parameters get zeros where they have no
gradient, that it keeps unsharded memory, that it goes by what unsharded parameters require in a
backward that makes none (what ``requires_grad_`` says of sharded ones between a forward and its
backward is not documented there), that reduce-scatters have a process group of their own, that it
shares streams, that the process group allocates, that it has an all-reduce hook.
"""


class Word(Option):
    """One word. Its ``call`` is of a method of ``FSDPModule``."""

    call: ClassVar[str]
    meaning: ClassVar[str]
    """What the feature of a group that is told so means."""
    gives: ClassVar[tuple[Trait, ...]] = ()
    """What a group does that is told so."""
    refuses: ClassVar[Mapping[Trait, str]] = {}
    """What the group must not have, and why."""
    helper: ClassVar[tuple[str, ...]] = ()
    """The class that the call needs, as source."""
    of_several: ClassVar[bool] = False
    """Whether the call is of a function that takes all groups that are told so."""
    anywhere: ClassVar[int | None] = None
    """Its place among those that are drawn for any group."""
    for_all: ClassVar[int] = 0
    for_roots: ClassVar[int] = 0
    where_it_fits: ClassVar[int] = 0
    """In which percent of the cases all groups, all of several FSDP roots, or a group that it fits
    are told so.
    """

    def misfit(self, told: Told) -> str | None:
        """Return why it cannot be meant for a group, or None."""
        return next((why for trait, why in self.refuses.items() if told.group.does(trait)), None)


WORDS = {
    word.name: word for word in found_in(__name__, __path__, Word, get_args(CommunicationOption))
}
"""By name, in the order of the list above."""
