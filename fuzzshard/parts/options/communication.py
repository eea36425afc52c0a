"""What a wrapped module may be told about its collectives and its memory. To add a word: its
class, and a line of the list.

No value changes, but where a group ``fills`` gradients.
"""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from typing_extensions import override

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
]
"""What somebody else has to know of a group: that parameters get zeros where they have no
gradient, that it keeps unsharded memory, that it goes by what unsharded parameters require in a
backward that makes none (what ``requires_grad_`` says of sharded ones between a forward and its
backward is not documented there), that reduce-scatters have a process group of their own, that it
shares streams.
"""


class Word(Option):
    """One word. Its ``call`` is of a method of ``FSDPModule``."""

    call: ClassVar[str]
    meaning: ClassVar[str]
    """What the feature of a group that is told so means."""
    gives: ClassVar[tuple[Trait, ...]] = ()
    """What a group does that is told so."""
    refuses: ClassVar[Mapping[CommunicationOption, str]] = {}
    """What the group must not be told as well, and why."""
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
        words = told.group.communication
        return next((why for word, why in self.refuses.items() if word in words), None)


class Sum(Word):
    """Collectives add up, and the group divides by itself."""

    name, anywhere = "sum", 0
    call = "set_force_sum_reduction_for_comms(True)"
    meaning = "a group that reduces with sums only"


class Allocate(Word):
    """The process group allocates what is sent."""

    name, anywhere = "allocate", 1
    call = "set_allocate_memory_from_process_group_for_comm(True)"
    meaning = "a group whose process group allocates what it sends"


class TwoBuffers(Word):
    """Two reduce-scatters may be in flight."""

    name, anywhere = "two_buffers", 3
    call = "set_reduce_scatter_max_input_buffers(2)"
    meaning = "a group that may have two reduce-scatters in flight"


class Hook(Word):
    """A hook that changes nothing."""

    name, anywhere = "hook", 2
    call = "set_all_reduce_hook(lambda output: None)"
    meaning = "a group with an all-reduce hook"


class HookStream(Word):
    """A hook that changes nothing, on a stream of its own."""

    name, anywhere = "hook_stream", 4
    call = (
        "set_all_reduce_hook(lambda output: None, stream=torch.get_device_module(device).Stream())"
    )
    meaning = "a group with an all-reduce hook and a stream for it"
    refuses = {"hook": "a group has one all-reduce hook"}

    @override
    def misfit(self, told: Told) -> str | None:
        if told.case.mesh.replicate is not None:
            return 'a stream "should only be set if not using native HSDP"'
        return super().misfit(told)


_GATHER = (
    "class PlainAllGather:  # as fully_shard does it by itself",
    "    def allocate(self, size, *, dtype, device):",
    "        return torch.empty(*size, dtype=dtype, device=device)",
    "",
    "    def __call__(self, output_tensor, input_tensor, group, async_op=False):",
    "        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)",
    "",
)


class CustomGather(Word):
    """It does what is done without it."""

    name, anywhere = "custom_gather", 5
    call = "set_custom_all_gather(PlainAllGather())"
    helper = _GATHER
    meaning = "a group with an all-gather of the user's"
    refuses = {"allocate": '"this cannot be used together" with allocate'}


_SCATTER = (
    "class PlainReduceScatter:  # as fully_shard does it by itself",
    "    def allocate(self, size, *, dtype, device):",
    "        return torch.empty(*size, dtype=dtype, device=device)",
    "",
    "    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):",
    "        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)",
    "",
)


class CustomScatter(Word):
    """It does what is done without it."""

    name, anywhere = "custom_scatter", 6
    call = "set_custom_reduce_scatter(PlainReduceScatter())"
    helper = _SCATTER
    meaning = "a group with a reduce-scatter of the user's"
    refuses = {"allocate": '"this cannot be used together" with allocate'}


class SeparateGroup(Word):
    """Reduce-scatters have a process group of their own."""

    name, anywhere = "separate_group", 7
    call = "set_separate_reduce_scatter_group(True)"
    meaning = "a group with a process group for its reduce-scatters"
    gives = ("own_group",)


class KeepStorage(Word):
    """Unsharded memory is kept; drawn seldom, as older releases have it not."""

    name, for_all = "keep_storage", 15
    call = "set_keep_unsharded_storage(True, recurse=False)"
    meaning = "a group that keeps its unsharded memory"
    gives = ("keeps",)


class ZerosForUnused(Word):
    """Parameters get zeros where they had no gradient."""

    name, anywhere = "zeros_for_unused", 8
    call = "set_reduce_scatter_unused_params(True, recurse=False)"
    meaning = "a group that reduces zeros for parameters without a gradient"
    gives = ("fills", "looks_at_unsharded")


class NoBackwardUnshard(Word):
    """Backward needs no parameters of the group."""

    name, where_it_fits = "no_backward_unshard", 90
    call = "set_unshard_in_backward(False)"
    meaning = "a group that is not unsharded in backward"
    gives = ("looks_at_unsharded",)

    @override
    def misfit(self, told: Told) -> str | None:
        if told.backward_needs_parameters:
            return "it is for parameters that backward does not need, as those of embeddings"
        return None


class ShareStreams(Word):
    """All groups that are told so share their streams: it is for several FSDP roots."""

    name, for_roots, of_several = "share_streams", 70, True
    call = "share_comm_ctx"
    meaning = "a group that shares the streams of others"
    gives = ("shares",)


WORDS = {word.name: word for word in found_in(Word, get_args(CommunicationOption))}
"""By name, in the order of the list above."""
