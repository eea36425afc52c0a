"""What all scripts have in common: definitions, start, names."""

from __future__ import annotations

from collections.abc import Collection

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.model.source import model_source
from fuzzshard.model.statements import assignment, indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.program.helpers import SOURCES, called
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.script import script_of
from fuzzshard.program.setup import freeze_lines
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.delays import delay_lines
from fuzzshard.reproducer.program import Program

_SLICED = [
    'axes = tuple(axis for axis in world_mesh.mesh_dim_names if axis not in ("pp", "tp"))',
    "mesh = world_mesh[axes]",
]
"""The data-parallel mesh of any mesh."""
DESYNC_SECONDS = 30
"""After how long a lost collective ends the script by itself."""


class Writer:
    """What all scripts have in common; ``program`` is the schedule under the names of a
    subclass.
    """

    def __init__(self, case: Case, aim: Aim, program: Program) -> None:
        self.case, self.aim, self.program = case, aim, program
        self.mesh = MeshNames(case)
        self.delays = delay_lines(case)
        self.spec = spec_of(aim.engine)

    def text(self) -> str:
        """Write the script without its imports: the model, the functions it calls, what runs."""
        case, rebuilds = self.case, self.program.rebuilds
        main, functions, sources = self.main(), self.functions(), self._sources()
        uses = called("\n".join([*functions, *main]), sources)
        helping = [sources[name] for name in uses]
        if not self.aim.seeded:
            seed_of, casts = "seed_of" in uses, self.program.casts
            helping.insert(seed_of, helpers.values_source(case, seed_of=seed_of, casts=casts))
            freezes = freeze_lines(case, "model")
            helping.append(helpers.build_source(case, freezes, seeds=rebuilds))
            if case.init == "meta" and self.spec.applies_groups:
                helping.append(helpers.materialize_source(case, seeds=rebuilds))
        parts = [part.strip() for part in (model_source(case), *helping) if part]
        return "\n\n\n".join([*parts, *functions, "\n".join([*self.start(uses), *main])])

    def _sources(self) -> dict[str, str]:
        """Write functions by name; variables that come before everything else have none."""
        case, program = self.case, self.program
        averaging = indented(helpers.averaging_lines(case, None, "parameters"))
        return {
            "seed_of": helpers.seed_source(),
            "ids": helpers.IDS,
            "average": "\n".join(["def average(parameters):", *averaging]),
            "backward": helpers.backward_source(
                case,
                roots=bool(program.sync.roots),
                divisors=bool(program.sync.divisors),
                dtensors=bool(case.tensor_parallel) and self.spec.has_dtensors,
            ),
            "snapshot": helpers.SNAPSHOT if self.spec.has_dtensors else helpers.PLAIN_SNAPSHOT,
            "whole": helpers.WHOLE,
            "interrupt": helpers.INTERRUPT,
            "interrupt_backward": helpers.INTERRUPT_BACKWARD,
            "describe": helpers.DESCRIBE,
            "wait": helpers.WAIT,
            **helpers.OF_PRIVATE_STATE,
            **SOURCES,
            "names": "",
            "buffer_names": "",
        }

    def made_anew(self, lines: list[str], variables: str) -> list[str]:
        """Build an engine's model with ``lines`` that make ``variables``, by a function that is
        called again later.
        """
        seed, names = 0 if self.aim.seeded else self.case.seed, self.mesh
        given, told = ["seed"], [f"seed={seed}"]
        if self.program.moves:
            lines = [*([] if names.flat else _SLICED), *lines]
            given.append(names.variable)
            told.append(f"{names.variable}={names.variable}")
        lines = [*lines, f"return {variables}"]
        return [
            *("", "", f"def make_model({', '.join(given)}):", *indented(lines), "", ""),
            f"{variables} = make_model({', '.join(told)})",
        ]

    def functions(self) -> list[str]:
        """Write functions of this script alone."""
        return []

    def start(self, uses: Collection[str]) -> list[str]:
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
        return [*lines, *script.start_lines(case), *self._names(uses)]

    def _names(self, uses: Collection[str]) -> list[str]:
        """The names that the plain model gives its tensors."""
        lines = []
        if "names" in uses:
            lines.append("names = [name for name, _ in Model().named_parameters()]")
        if "backward" in uses and (roots := self.program.sync.roots):
            lines += ["# The FSDP root of every parameter, as the number of a wrap group:"]
            lines += assignment("roots", roots)
        if "buffer_names" in uses:
            lines.append("buffer_names = [name for name, _ in Model().named_buffers()]")
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
        if not (self.spec.applies_groups or self.spec.in_stages):
            return ()
        return tuple(name for name, owner in facts(self.case).owners.items() if owner is None)

    def unmanaged_lines(self) -> list[str]:
        """Names them, where gradients are averaged by hand."""
        unmanaged = self.unmanaged() if self.program.by_hand else ()
        return assignment("unmanaged", unmanaged) if unmanaged else []

    def main(self) -> list[str]:
        """Everything that runs after the start."""
        raise NotImplementedError
