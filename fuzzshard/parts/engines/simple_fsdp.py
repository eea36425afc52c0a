"""SimpleFSDP: parameters are DTensors, and modules redistribute them when they read them."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.leaves import KINDS
from fuzzshard.parts.op import Choice


class SimpleFSDP(EngineSpec):
    """Shards each parameter by itself, whatever its wrap groups are (arXiv 2411.00284).

    All-gathers and reduce-scatters are nodes of the autograd graph, which torch.compile traces.
    """

    name = "simple_fsdp"
    title = "SimpleFSDP"
    tag = "SimpleFSDP"
    meaning = "parameters are DTensors that modules redistribute when they read them"
    choice = Choice(
        "simple_fsdp",
        10,
        place=102,
        # what only groups of fully_shard have, or what reads no attribute of its module
        excludes=(
            *("no_sync", "partial_sync", "no_all_reduce", "divide_factor"),
            *(kind.name for kind, leaf in KINDS.items() if leaf.lists_parameters),
        ),
    )
    differentiates_twice = True

    @property
    @override
    def has_dtensors(self) -> bool:
        return True
