"""What scripts of DDP say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.analysis.inferred import inferred
from fuzzshard.parts.statements import call_lines
from fuzzshard.program.engine_script import EngineScript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuzzshard.case.case import Case
    from fuzzshard.program.mesh import MeshNames
    from fuzzshard.subject.subject import Variation


def initial_lines(case: Case, tensors: str) -> list[str]:
    """Return lines that zero ``tensors`` on all ranks but the first, whose values DDP copies."""
    if case.ddp.initial != "first_rank":
        return []
    return ["if rank > 0:", f"    for tensor in {tensors}:", "        tensor.data.zero_()"]


def arguments(case: Case, names: MeshNames) -> list[str]:
    """Return the arguments of DDP. Buffers are not broadcast, as under other engines, unless the
    case says so.
    """
    listed = case.ddp.arguments(buffers=bool(inferred(case).updated))
    if not case.ddp.device_mesh and not names.flat:
        listed.append(names.process_group)
    if case.inputs.on_host:
        listed.append('device_ids=None if device == "cpu" else [torch.cuda.current_device()]')
    return listed


class DDPScript(EngineScript):
    """Puts ``DistributedDataParallel`` around the model."""

    variable = "ddp"

    @override
    def moves_inputs(self, case: Case, target: str) -> bool:
        return not target

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        listed = [model, *arguments(case, names)]
        buffers = f", *{model}.buffers()" if case.ddp.buffers != "local" else ""
        tensors = f"(*{model}.parameters(){buffers})" if buffers else f"{model}.parameters()"
        return [
            *initial_lines(case, tensors),
            *call_lines(f"{variable} = DistributedDataParallel", listed),
            *case.ddp.lines(variable, names.group, wrapper=True),
            *(f"{context}.__enter__()" for context in case.ddp.contexts(variable)),
        ]

    @override
    def no_sync_lines(self, case: Case, entering: str) -> list[str]:
        return [entering, "    pass"] if case.ddp.no_sync == "again" else []

    @override
    def finalize_lines(self, case: Case, called: str) -> list[str]:
        """Waits for the reductions, where the case leaves that to the user."""
        return [f"{called}.finalize_backward()"] if case.ddp.manual_finalization else []

    @override
    def join_text(self, case: Case, called: str, arguments: str) -> str:
        return f"{called}.join({arguments})"

    @override
    def model_lines(self, blocks: Sequence[str], variation: Variation) -> list[str]:
        return ["ddp = DistributedDataParallel(model, find_unused_parameters=True)"]


SCRIPT = DDPScript()
