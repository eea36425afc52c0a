"""What scripts of ``replicate`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from fuzzshard.analysis.arrivals import ignored_modules, ignored_parameters
from fuzzshard.engines.ddp.script import arguments, initial_lines
from fuzzshard.parts.statements import at, call_lines
from fuzzshard.program.engine_script import EngineScript

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fuzzshard.case.case import Case
    from fuzzshard.program.mesh import MeshNames
    from fuzzshard.subject.subject import Variation


class ReplicateScript(EngineScript):
    """Hooks the model itself."""

    sources = "from torch.distributed._composable.replicate import replicate\n"

    @override
    def moves_inputs(self, case: Case, target: str) -> bool:
        return not target

    @override
    def wrap_lines(self, case: Case, model: str, variable: str, names: MeshNames) -> list[str]:
        ignored = [at(model, path) for path in ignored_modules(case, by_replicate=True)]
        told = [f"ignored_modules=[{', '.join(ignored)}]"] if ignored else []
        tensors = f"{model}.parameters()"
        if alone := sorted(ignored_parameters(case, by_replicate=True)):
            tensors = f"{{*{tensors}}} - {{{', '.join(at(model, fqn) for fqn in alone)}}}"
        return [
            *initial_lines(case, tensors),
            *call_lines("replicate", [model, *told, *arguments(case, names)]),
            *case.ddp.lines(model, names.group, wrapper=False),
        ]

    @override
    def sync_line(self, called: str, synced: bool) -> str:
        return f"{called}.set_requires_gradient_sync({synced})"

    @override
    def model_lines(self, blocks: Sequence[str], variation: Variation) -> list[str]:
        return ["replicate(model)"]


SCRIPT = ReplicateScript()
