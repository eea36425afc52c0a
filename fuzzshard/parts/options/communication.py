"""What a wrapped module may be told about its collectives and its memory. To add a word: its
place in the list, and what it means.

No value changes, but where a group ``fills`` gradients.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from fuzzshard.parts.option import Told

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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Word:
    """One word. Its ``call`` is of a method of ``FSDPModule``; or, ``of_several``, of a function
    that takes all groups that are told so.

    ``meaning`` is that of the feature of a group that is told so, ``gives`` what such a group
    does. It must not be told together
    with one that it ``refuses``, nor where ``forbids`` says why. ``anywhere`` is its place among
    those that are drawn for any group. In ``for_all``, ``for_roots`` and ``where_it_fits`` percent
    of the cases all groups, all of several FSDP roots, or a group that it fits are told so.
    """

    call: str
    meaning: str
    gives: tuple[Trait, ...] = ()
    refuses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    forbids: Callable[[Told], str | None] = lambda told: None
    of_several: bool = False
    anywhere: int | None = None
    for_all: int = 0
    for_roots: int = 0
    where_it_fits: int = 0

    @property
    def opposite(self) -> str:
        """The call with the value that a group has by default; empty where that is none that a
        user may give.
        """
        given = re.search(r"\((True|False|2)\b", self.call)
        return self.call.replace(given[1], _DEFAULTS[given[1]], 1) if given else ""

    def misfit(self, told: Told) -> str | None:
        """Return why it cannot be meant for a group, or None."""
        words = told.group.communication
        refused = next((why for word, why in self.refuses.items() if word in words), None)
        return self.forbids(told) or refused


_DEFAULTS = {"True": "False", "False": "True", "2": "1"}


def _without_replicas(told: Told) -> str | None:
    if told.case.mesh.replicate is None:
        return None
    return 'a stream "should only be set if not using native HSDP"'


def _for_embeddings(told: Told) -> str | None:
    if told.backward_needs_parameters:
        return "it is for parameters that backward does not need, as those of embeddings"
    return None


SOURCES = """
class PlainAllGather:  # as fully_shard does it by itself
    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

class PlainReduceScatter:  # as fully_shard does it by itself
    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
"""
"""The classes of which users give instances."""

WORDS: Mapping[str, Word] = {
    "sum": Word(
        call="set_force_sum_reduction_for_comms(True)",
        meaning="a group that reduces with sums only",
        anywhere=0,
    ),
    "allocate": Word(
        call="set_allocate_memory_from_process_group_for_comm(True)",
        meaning="a group whose process group allocates what it sends",
        anywhere=1,
    ),
    "two_buffers": Word(
        call="set_reduce_scatter_max_input_buffers(2)",
        meaning="a group that may have two reduce-scatters in flight",
        anywhere=3,
    ),
    "hook": Word(
        call="set_all_reduce_hook(lambda output: output.mul_(1))",
        meaning="a group with an all-reduce hook",
        anywhere=2,
    ),
    "hook_stream": Word(
        call="set_all_reduce_hook(lambda output: output.mul_(1), "
        "stream=torch.get_device_module(device).Stream())",
        meaning="a group with an all-reduce hook and a stream for it",
        refuses={"hook": "a group has one all-reduce hook"},
        forbids=_without_replicas,
        anywhere=4,
    ),
    "custom_gather": Word(
        call="set_custom_all_gather(PlainAllGather())",
        meaning="a group with an all-gather of the user's",
        refuses={"allocate": '"this cannot be used together" with allocate'},
        anywhere=5,
    ),
    "custom_scatter": Word(
        call="set_custom_reduce_scatter(PlainReduceScatter())",
        meaning="a group with a reduce-scatter of the user's",
        refuses={"allocate": '"this cannot be used together" with allocate'},
        anywhere=6,
    ),
    "separate_group": Word(
        call="set_separate_reduce_scatter_group(True)",
        meaning="a group with a process group for its reduce-scatters",
        gives=("own_group",),
        anywhere=7,
    ),
    "keep_storage": Word(
        call="set_keep_unsharded_storage(True, recurse=False)",
        meaning="a group that keeps its unsharded memory",
        gives=("keeps",),
        for_all=30,  # of few cases, as older releases have it not
    ),
    "zeros_for_unused": Word(
        call="set_reduce_scatter_unused_params(True, recurse=False)",
        meaning="a group that reduces zeros for parameters without a gradient",
        gives=("fills", "looks_at_unsharded"),
        anywhere=8,
    ),
    "no_backward_unshard": Word(
        call="set_unshard_in_backward(False)",
        meaning="a group that is not unsharded in backward",
        gives=("looks_at_unsharded",),
        forbids=_for_embeddings,
        where_it_fits=90,
    ),
    "share_streams": Word(
        call="share_comm_ctx",
        meaning="a group that shares the streams of others",
        gives=("shares",),
        of_several=True,
        for_roots=70,
    ),
}
"""By name, in the order of the list above."""

if TYPE_CHECKING:
    CommunicationOption = str
else:  # what msgspec decodes goes by the words
    CommunicationOption = Literal[*WORDS]
