"""What scripts of ``torch.distributed.pipelining`` say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.analysis.stages import Stage, stages, trains
from fuzzshard.analysis.tensor_parallel import passes_dtensors
from fuzzshard.engines.ddp.script import DDPScript
from fuzzshard.engines.fully_shard.script import FullyShardScript
from fuzzshard.parts.options.pipelining import ScheduleClass
from fuzzshard.parts.statements import call_lines, indented
from fuzzshard.program.engine_script import EngineScript

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.program.mesh import MeshNames


_RETURNED = {
    "outputs": ([], "out = ", ""),
    "both": (["losses = []"], "out = ", ", losses=losses"),
    "losses": (["losses = []"], "", ", losses=losses, return_outputs=False"),
    "nothing": ([], "", ", return_outputs=False"),
}
"""What is made before a step, what it is assigned to, and what it is given, by what it returns."""


class PipeliningScript(EngineScript):
    """Puts children of the root into stages, each under ``fully_shard`` or DDP; ``parts`` are
    those of this rank, by their numbers.
    """

    variable: ClassVar[str] = "parts"
    made: ClassVar[tuple[str, ...]] = ("stages",)
    sources = "".join(
        f"from torch.distributed.pipelining import {name}\n"
        for name in ("PipelineStage", *ScheduleClass.texts.values())
    )
    sources += "from torch.distributed.pipelining.microbatch import TensorChunkSpec\n"
    has_dtensors = True

    def __init__(self) -> None:
        self.sharded, self.replicated = FullyShardScript(), DDPScript()

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        lines = ['pp = world_mesh["pp"].get_group()', "stages = []"]
        for stage in stages(case):
            made = self._stage_lines(stage, len(stages(case)), model, names)
            if case.mesh.pipeline == 1:
                lines += made
            else:
                lines += [f"if pp.rank() == {stage.rank}:", *indented(made)]
        parts = "{str(stage.stage_index): stage.submod for stage in stages}"
        return [*lines, f"parts = nn.ModuleDict({parts})"]

    def _stage_lines(self, stage: Stage, count: int, model: str, names: MeshNames) -> list[str]:
        children = ", ".join(f"{name}={model}.{name}" for name in stage.names)
        place = f"part, {stage.number}, {count}, torch.device(device), group=pp"
        if passes_dtensors(stage.case):
            place += ', get_mesh=lambda *key, mesh=world_mesh["tp"]: mesh'
        lines = self.sharded.wrap_lines(stage.case, "part", "part", names)
        if stage.case.pipelining.replicates:
            lines = []
            if trains(stage.case):
                lines = self.replicated.wrap_lines(stage.case, "part", "part", names)
        return [
            *call_lines("part = nn.Sequential", [f"collections.OrderedDict({children})"]),
            *lines,
            *call_lines("stages.append", [f"PipelineStage({place})"]),
        ]

    @override
    def schedule_lines(self, case: Case, count: int) -> list[str]:
        made, *options = case.pipelining.arguments()
        given = [
            "stages" if case.pipelining.stages_per_rank > 1 else "stages[0]",
            str(count),
            "loss_fn=loss_fn",
            *options,
        ]
        return call_lines(f"schedule = {made}", given)

    @override
    def run_lines(
        self, case: Case, batches: Sequence[str], *, mode: str, finalizes: bool
    ) -> list[str]:
        count, first = len(batches), "if stages[0].is_first else"
        named = case.pipelining.by_keyword
        split = case.pipelining.split_dim if not named else 0  # arguments alone are told it
        whole = f"torch.cat([{', '.join(batches)}]{f', {split}' if split else ''})"
        batch = f'batch = {{"input": {whole}}} {first} {{}}' if named else ""
        batch = batch or f"batch = [{whole}] {first} []"
        given = f"{'**' if named else '*'}batch, target=torch.arange({count})"
        if case.pipelining.gives_microbatches:
            each = ", ".join(f'{{"input": {b}}}' if named else f"({b},)" for b in batches)
            batch = f"microbatches = [{each}] {first} None"
            kind = "kwarg_mbs" if named else "arg_mbs"
            given = f"{kind}=microbatches, target_mbs=[*torch.arange({count}).split(1)]"
        if not mode:
            losses, out, returned = _RETURNED[case.pipelining.returned]
            given += returned + ("" if finalizes else ", finalize_gradients=False")
            return [batch, *losses, f"{out}schedule.step({given})"]
        call = f"out = schedule.eval({given}, losses=losses)"
        return [batch, "losses = []", f"with torch.{mode}():", f"    {call}"]


SCRIPT = PipeliningScript()
