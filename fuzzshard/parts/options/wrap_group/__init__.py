"""One call of ``fully_shard`` and its options. To add one: its file, and its field here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from fuzzshard.parts.option import (
    DrawingGroups,
    Option,
    Reasons,
    Told,
    WithOptions,
    options_of,
)
from fuzzshard.parts.options.communication import WORDS, CommunicationOption, Word
from fuzzshard.parts.options.communication import Trait as OfWords
from fuzzshard.parts.options.precision import Precision
from fuzzshard.parts.part import Shape, import_files

Trait = Literal["gathers_several"] | OfWords
"""What somebody else has to know of a group: that it gathers several tensors for one parameter."""
When = Literal["forward", "backward"]
Init = Literal["reset_parameters", "trunc_normal_", "kaiming_uniform_", "orthogonal_", "dirac_"]


class AfterForward(NamedTuple):
    """How a group is after forward: ``whole`` in any case or ``whole_as_root``, else sharded over
    so many ``ranks``.
    """

    whole: bool
    whole_as_root: bool
    ranks: int


def mesh_size(reshard_after_forward: bool | int | None) -> int | None:
    """Return the size of a smaller mesh, if that is what the value is; True is equal to 1."""
    return None if isinstance(reshard_after_forward, bool) else reshard_after_forward


class WrapGroup(WithOptions["GroupOption"], frozen=True, kw_only=True):
    """One call ``fully_shard(modules, ...)``; a list group has several modules."""

    modules: tuple[str, ...]
    reshard_after_forward: bool | int | None = None
    precision: Precision | None = None
    offload: Literal["pinned", "unpinned"] | None = None
    forward_prefetch: tuple[str, ...] = ()
    backward_prefetch: tuple[str, ...] = ()
    shard_dim: Literal["first", "last", "largest"] = "first"
    communication: tuple[CommunicationOption, ...] = ()
    all_gather_extension: Literal["negated", "signs_apart", "float8"] | None = None
    drawn: Init | None = None

    def told_by(self, method: str) -> Iterator[tuple[GroupOption, Any]]:
        """Yield the options that have a ``method`` of their own, each with its value."""
        return ((option, getattr(self, option.name)) for option in _with_own(method))

    def words(self) -> tuple[Word, ...]:
        """Return what it is told once all groups are there."""
        return tuple(WORDS[word] for word in self.communication)

    def telling(self, word: Any, *, on: bool) -> WrapGroup:
        """Return the group with a word of ``communication``, or without it."""
        others = tuple(each for each in self.communication if each != word)
        return replace(self, communication=(*others, word) if on else others)

    def does(self, trait: Trait) -> bool:
        """Return whether some option has a value that does so."""
        return any(trait in option.does(value) for option, value in self.told_by("does"))

    def after_forward(self, shard: int) -> AfterForward:
        """Return how it is after forward on a shard axis of this size."""
        value, size = self.reshard_after_forward, mesh_size(self.reshard_after_forward)
        ranks = size if size is not None and size > 1 else shard
        return AfterForward(value is False or size == 1, value is None, ranks)

    def dim_of(self, shape: Shape) -> int:
        """Return the dimension that it shards a parameter of this shape along."""
        if self.shard_dim == "largest":
            return shape.index(max(shape))
        return len(shape) - 1 if self.shard_dim == "last" else 0

    def prefetched(self, when: When) -> tuple[str, ...]:
        """Return the modules that are gathered ahead of a forward or backward of its module."""
        lists = (value for option, value in self.told() if option.prefetches == when)
        return tuple(path for paths in lists for path in paths)

    def prefetching(self, lists: Mapping[When, Iterable[str]]) -> WrapGroup:
        """Return the group with these modules gathered ahead, and no others."""
        named = {o.name: tuple(lists.get(o.prefetches, ())) for o in self.options if o.prefetches}
        return replace(self, **named)

    def of(self, modules: Iterable[str]) -> WrapGroup:
        """Return a group of other modules that is told the same, but for what is prefetched."""
        return replace(self.prefetching({}), modules=tuple(modules))

    def mended(self, shard: int, wrapped: frozenset[str]) -> WrapGroup:
        """Return the group as it fits once the mesh and the ``wrapped`` modules have changed."""
        return replace(self, **{o.name: o.mended(v, shard, wrapped) for o, v in self.told()})

    def preparing(self, model: str, parameters: Sequence[str]) -> list[str]:
        """Return what is done with its parameters before the call."""
        return [line for o, value in self.told() for line in o.prepares(value, model, parameters)]

    def rounding(self) -> str:
        """Return what modules compute with in place of a parameter ``p``, as an expression that
        gives one value for each of its elements; empty if it is the parameter.
        """
        texts = (option.rounding(value) for option, value in self.told_by("rounding"))
        return next((text for text in texts if text), "")


class GroupOption(Option):
    """One of them."""

    wants_even: ClassVar[bool] = False
    """Whether widths that a shard axis divides are drawn for it."""
    prefetches: ClassVar[When | None] = None
    """When the modules that it names are gathered ahead."""

    def does(self, value: Any) -> tuple[Trait, ...]:
        """Return what a group does that has this value."""
        return ()

    def rounding(self, value: Any) -> str:
        """Return what modules compute with in place of a parameter ``p``, if that is not it."""
        return ""

    def prepares(self, value: Any, model: str, parameters: Sequence[str]) -> list[str]:
        """Return what is done with parameters, given as expressions, before the call."""
        return []

    def misfits(self, value: Any, told: Told) -> Reasons:
        """Yield why it cannot be meant for a group, and what to do."""
        return iter(())

    def features(self, value: Any) -> Iterator[str]:
        """Yield the features of a value."""
        return self.named(value)

    def means(self, value: Any) -> Mapping[str, str]:
        """Return what some of its features mean for this value."""
        return {}

    def values(self, swarm: Any, shard: int) -> list[tuple[Any, int]]:
        """Return the values that the wrap plan may have, and how often each."""
        raise NotImplementedError

    def draw(self, drawing: DrawingGroups) -> Callable[[int, Any], Any]:
        """Draw what holds for all groups; return what draws the value of one by its index, and the
        value that it has.
        """
        raise NotImplementedError

    def mended(self, value: Any, shard: int, wrapped: frozenset[str]) -> Any:
        """Return the value that is meant once other modules are wrapped, on another mesh."""
        return value


@functools.cache  # these are asked at every op of a schedule
def _with_own(method: str) -> tuple[GroupOption, ...]:
    """Return the options that say something else than every one."""
    usual = getattr(GroupOption, method)
    return tuple(o for o in GROUP_OPTIONS if getattr(type(o), method) is not usual)


import_files(__name__, __path__)
GROUP_OPTIONS = options_of(WrapGroup, GroupOption)
"""In the order of their fields."""
