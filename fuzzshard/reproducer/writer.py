"""What all scripts have in common: definitions, start, names."""

from __future__ import annotations

import textwrap

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.model.source import model_source
from fuzzshard.model.statements import assignment
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.helpers import SOURCES
from fuzzshard.program.imports import named
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.script import script_of
from fuzzshard.program.setup import freeze_lines
from fuzzshard.reproducer import held, helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.delays import delay_lines
from fuzzshard.reproducer.program import Program

DESYNC_SECONDS = 30
"""After how long a lost collective ends the script by itself."""


class Writer:
    """What all scripts have in common; ``program`` is the schedule under the names of a
    subclass.
    """

    def __init__(self, case: Case, aim: Aim, program: Program) -> None:
        self.case, self.aim, self.program = case, aim, program
        self.uses = program.uses
        self.mesh = MeshNames(case)
        self.shards = spec_of(aim.engine).applies_groups

    def definitions(self) -> list[str]:
        """The model, the helpers, ``build``."""
        case, program = self.case, self.program
        self.uses |= named("\n".join(program.lines))
        seed_of = bool(self.uses & {"seed_of", "ids"})
        found = [model_source(case), *([helpers.seed_source()] if seed_of else [])]
        if not self.aim.seeded:
            found.append(helpers.values_source(case, seed_of=seed_of, casts=program.casts))
        averaging = textwrap.indent(
            "\n".join(helpers.averaging_lines(case, None, "parameters")), "    "
        )
        sources = {
            "ids": helpers.IDS,
            "average": f"def average(parameters):\n{averaging}",
            "backward": helpers.backward_source(
                case,
                roots=bool(program.sync.roots),
                divisors=bool(program.sync.divisors),
                dtensors=bool(case.tensor_parallel) and self.shards,
            ),
            "snapshot": helpers.SNAPSHOT if self.shards else helpers.PLAIN_SNAPSHOT,
            "whole": helpers.WHOLE,
            "interrupt": helpers.INTERRUPT,
            "interrupt_backward": helpers.INTERRUPT_BACKWARD,
            "describe": helpers.DESCRIBE,
            "wait": helpers.WAIT,
            **held.SOURCES,
            **SOURCES,
        }
        found += [source for name, source in sources.items() if name in self.uses]
        if self.aim.seeded:
            return [source.strip() for source in found]
        freezes = freeze_lines(case, "model", after_wrap=False)
        found.append(helpers.build_source(case, freezes, seeds=program.rebuilds))
        if case.init == "meta" and self.shards:
            found.append(helpers.materialize_source(case, seeds=program.rebuilds))
        return [source.strip() for source in found]

    def start(self) -> list[str]:
        """Joins the process group; making a mesh joins it too."""
        case = self.case
        script = script_of(self.aim.engine)
        has_mesh = script.takes_mesh(case) or not self.mesh.flat
        limit = (
            f", timeout=timedelta(seconds={DESYNC_SECONDS})" if self.aim.kind == "desync" else ""
        )
        lines = [f'device = "cuda" if torch.cuda.device_count() >= {case.mesh.size} else "cpu"']
        if limit or not has_mesh:
            lines += [
                f'dist.init_process_group("nccl" if device == "cuda" else "gloo"{limit})',
                'if device == "cuda":',
                "    torch.cuda.set_device(dist.get_rank())",
            ]
        lines += [self.mesh.make()] if has_mesh else []
        lines += self.mesh.slices()
        return [*lines, *script.start_lines(case), *self._names()]

    def _names(self) -> list[str]:
        """The names that the plain model gives its tensors."""
        lines = []
        if "names" in self.uses:
            lines.append("names = [name for name, _ in Model().named_parameters()]")
        if "backward" in self.uses and (roots := self.program.sync.roots):
            lines += ["# The FSDP root of every parameter, as the number of a wrap group:"]
            lines += assignment("roots", roots)
        if "buffer_names" in self.uses:
            lines.append("buffer_names = [name for name, _ in Model().named_buffers()]")
        return lines

    def delays(self) -> list[str]:
        """The delays of collectives."""
        lines = delay_lines(self.case)
        self.uses.update({"wait"} if lines else set())
        return lines

    def by_hand(self, model: str) -> str:
        """The gradients that the engine's model averages by hand: those that no group manages."""
        if not self.unmanaged():
            return "[]" if self.program.sync.plain else "{}"
        if self.program.sync.plain:
            return f"[{model}.get_parameter(n) for n in unmanaged]"
        return f"{{n: {model}.get_parameter(n) for n in unmanaged}}"

    def unmanaged(self) -> tuple[str, ...]:
        """The parameters that no ``fully_shard`` call manages."""
        owners = facts(self.case).owners
        return (
            tuple(name for name, owner in owners.items() if owner is None) if self.shards else ()
        )

    def unmanaged_lines(self) -> list[str]:
        """Names them, where gradients are averaged by hand."""
        unmanaged = self.unmanaged() if self.program.by_hand else ()
        return assignment("unmanaged", unmanaged) if unmanaged else []

    def main(self) -> str:
        """Everything that runs."""
        raise NotImplementedError
