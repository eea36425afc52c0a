"""``torch.distributed.pipelining``: ranks along the pipeline axis have stages of one model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from typing_extensions import override

from fuzzshard.analysis.stages import loss_scale, passes_dtensors, stages
from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.fully_shard.engine import FullyShard


class Pipelining(Engine):
    """Each stage is a root of ``fully_shard`` or within DDP, and one schedule runs all of them.

    What other stages have stays on this rank as it was made, and is neither trained nor looked at.
    """

    name: ClassVar[str] = "pipelining"
    reregisters: ClassVar[bool] = True
    registers: ClassVar[bool] = False

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        takes_mesh = "get_mesh" in inspect.signature(PipelineStage).parameters
        if passes_dtensors(case) and not takes_mesh:
            return "stages that pass DTensors on"
        within = DDP if case.pipelining.does("wraps_stages") else FullyShard
        return within.lacking(case)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        lines = self.scope.script.wrap_lines(self.case, "model", self.scope.names)
        made = self.execute(lines)
        self._stages = made["stages"]
        self._schedule: Any = None
        parts: nn.Module = made[self.scope.called]
        return parts

    @override
    def take_parameters(self) -> None:
        self.trained = {
            fqn: self.parameter(fqn) for fqn in self.inferred.parameters if self._is_mine(fqn)
        }

    def _is_mine(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to a stage of this rank."""
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

    @override
    def iterate(
        self,
        inputs: Sequence[torch.Tensor],
        terms: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    ) -> None:
        self._run(inputs, terms, self.scope.script.iteration_lines)

    @override
    def evaluate(
        self,
        inputs: Sequence[torch.Tensor],
        terms: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        mode: str,
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        lines = functools.partial(self.scope.script.evaluation_lines, mode=mode)
        made = self._run(inputs, terms, lines)
        if made["out"] is None:
            return (), ()
        scale = loss_scale(self.case, len(inputs))
        return made["out"].chunk(len(inputs)), [loss / scale for loss in made["losses"]]

    def _run(
        self,
        inputs: Sequence[torch.Tensor],
        terms: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        lines_of: Callable[[Case, Sequence[str]], list[str]],
    ) -> dict[str, Any]:
        """Run the schedule, which is made where there is none yet."""
        script, count = self.scope.script, len(inputs)
        self._terms = terms
        variables = {f"x{i}": tensor for i, tensor in enumerate(inputs)}
        lines = script.schedule_lines(self.case, count) if self._schedule is None else []
        lines += lines_of(self.case, [*variables])
        variables |= {"stages": self._stages, "schedule": self._schedule}
        made = self.execute(lines, **variables, loss_fn=self._loss)
        self._schedule = made["schedule"]
        return made

    def _loss(self, output: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return loss_scale(self.case, len(self._terms)) * self._terms[int(place)](output)


ENGINE = Pipelining
