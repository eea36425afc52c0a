"""``torch.distributed.pipelining``: ranks along the pipeline axis have stages of one model."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch.distributed import pipelining
from typing_extensions import override

from fuzzshard.analysis.stages import stages
from fuzzshard.analysis.tensor_parallel import passes_dtensors
from fuzzshard.case.case import Case
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.fully_shard.contract import CUT_SHARDS
from fuzzshard.engines.fully_shard.engine import FullyShard
from fuzzshard.engines.no_sync import NoSyncEngine
from fuzzshard.engines.refusals import Refusal
from fuzzshard.parts.ops.set_flag import flags_set


class Pipelining(NoSyncEngine):
    """Each stage is a root of ``fully_shard`` or within DDP, and one schedule runs all of them.

    What other stages have stays on this rank as it was made, and is neither trained nor looked at.
    """

    name: ClassVar[str] = "pipelining"
    refusals: ClassVar[tuple[Refusal, ...]] = (CUT_SHARDS,)
    reregisters: ClassVar[bool] = True
    registers: ClassVar[bool] = False
    _stages: Any = None
    _schedule: Any = None

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        takes_mesh = "get_mesh" in inspect.signature(pipelining.PipelineStage).parameters
        if passes_dtensors(case) and not takes_mesh:
            return "stages that pass DTensors on"
        name, *arguments = case.pipelining.arguments()
        schedule = getattr(pipelining, name)
        used = {argument.partition("=")[0] for argument in arguments}
        used |= {"finalize_gradients"} if flags_set(case.schedule) else set()
        of_step = (o.of_step for o, value in case.pipelining.told() if value != o.default)
        known = {*inspect.signature(schedule).parameters}
        known |= inspect.signature(schedule.step).parameters.keys()
        if missing := sorted(used.union(*of_step) - known):
            return f"{missing[0]} of {name}"
        within = DDP if case.pipelining.replicates else FullyShard
        return within.lacking(case)

    @override
    def execute(self, lines: Sequence[str], **variables: Any) -> dict[str, Any]:
        made = super().execute(lines, stages=self._stages, schedule=self._schedule, **variables)
        self._stages, self._schedule = made["stages"], made["schedule"]
        return made

    @override
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # steps are told themselves

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Return none that no schedule has finalized, which nobody may read."""
        return {} if self.unsynced else super().gradients()

    @override
    def take_parameters(self) -> None:
        self.trained = {
            fqn: self.parameter(fqn) for fqn in self.inferred.parameters if self._is_mine(fqn)
        }

    def _is_mine(self, name: str) -> bool:
        """Return whether a parameter or buffer belongs to a stage of this rank."""
        mine = {stage.stage_index for stage in self._stages}
        parts = (stage for stage in stages(self.case) if stage.number in mine)
        return any(name.partition(".")[0] in stage.names for stage in parts)

    @override
    @classmethod
    def plain_name(cls, key: str) -> str:
        _, _, name = key.partition(".")  # the number of a stage
        return super().plain_name(name)

    @override
    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, b) for name, b in super().buffers() if self._is_mine(name))


ENGINE = Pipelining
