"""``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.option import meanings_of
from fuzzshard.parts.options.pipelining import PIPELINING_OPTIONS

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


_OF_STAGES = tuple(c.name for op in OPS for c in op.choices if c.of_stages)


class PipelineParallel(EngineSpec):
    """Ranks along the pipeline axis have stages of the model, under ``fully_shard`` or DDP."""

    name = "pipelining"
    title = "`torch.distributed.pipelining`"
    tag = "pipelining"
    nicknames = ("pp", "pipeline")
    meaning = "a pipeline schedule runs, with fully_shard or DDP in its stages"
    options = "pipelining"
    meanings = meanings_of(PIPELINING_OPTIONS)
    choice = Choice(
        "pipelining",
        11,
        place=100,
        brings=_OF_STAGES,
        # what a chain of stages has no place for, or runs at once in place of op by op
        excludes=(
            *("several_inputs", "input_grad", "several_outputs", "list_group", "root_not_wrapped"),
            *("structured_passing", "structured_returns", "method", "alternatives"),
            *("alias", "tie", "ignored"),
            *("meta", "compile", "rank_batches", "finalize", "toggle"),
            *("microbatches", "two_forwards", "partial_loss", "backward_order"),
            *("no_sync", "partial_sync", "no_all_reduce", "not_last_backward", "no_reshard"),
            *("no_zero_grad", "losses_only", "any_moment"),
            "non_root_forward",
            *(c.name for op in OPS for c in op.choices if c.name not in _OF_STAGES),
        ),
    )
    in_stages = True

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        for option, value in case.pipelining.told():
            yield from option.named(value)

    @override
    def check(self, case: Case, found: Facts) -> None:
        if self.name in case.engines and case.mesh.pipeline is None:
            raise InvalidCase(
                "a pipeline schedule runs along the pipeline axis of a mesh",
                "set mesh.pipeline, or leave out this engine",
            )
