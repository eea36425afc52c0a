"""What all scripts have in common: definitions, start, names."""

from __future__ import annotations

from collections.abc import Collection

from fuzzshard.case.case import Case
from fuzzshard.model.source import model_source
from fuzzshard.model.statements import indented
from fuzzshard.program.helpers import SOURCES, called
from fuzzshard.program.setup import materialize_lines
from fuzzshard.program.wrapping import prepared_lines
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.scope import Scope, averaging_lines
from fuzzshard.reproducer.values import constructed, model_lines

_SLICED = [
    'axes = tuple(axis for axis in world_mesh.mesh_dim_names if axis not in ("pp", "tp"))',
    "mesh = world_mesh[axes]",
]
"""The data-parallel mesh of any mesh."""
DESYNC_SECONDS = 30
"""After how long a lost collective ends the script by itself."""


class Writer:
    """What all scripts have in common; ``scope`` has the names of a subclass."""

    def __init__(self, case: Case, aim: Aim, scope: Scope) -> None:
        self.case, self.aim, self.scope = case, aim, scope
        self.lines = scope.lines()

    def text(self) -> str:
        """Write the script without its imports: the model, the functions it calls, what runs."""
        main, functions, sources = self.main(), self.functions(), self._sources()
        uses = called("\n".join([*functions, *main]), sources)
        parts = [model_source(self.case), *(sources[name] for name in uses)]
        parts = [*(part.strip() for part in parts if part), *functions]
        return "\n\n\n".join([*parts, "\n".join([*self._start(uses), *main])])

    def _sources(self) -> dict[str, str]:
        """Write functions by name; variables that come before everything else have none."""
        case = self.case
        averaging = indented(averaging_lines(case, None, "parameters"))
        plain = materialize_lines(case, constructed(case, "plain"))
        snapshot = helpers.SNAPSHOT if self.scope.engine.has_dtensors else helpers.PLAIN_SNAPSHOT
        return {
            "average": "\n".join(["def average(parameters):", *averaging]),
            "materialize": "\n".join(["def materialize(model):", *indented(plain)]),
            "snapshot": snapshot,
            "describe": helpers.DESCRIBE,
            **helpers.OF_PRIVATE_STATE,
            **SOURCES,
            "names": "",
            "buffer_names": "",
        }

    def built(self, plain: list[str] | None = None) -> list[str]:
        """Build the engine's model, by a function if that happens more than once; ``plain`` are
        statements that make the plain one.
        """
        case, aim, scope = self.case, self.aim, self.scope
        meta = case.init == "meta" and scope.engine.applies_groups
        if meta or scope.rebuilds or plain is None:
            seed = "seed" if scope.rebuilds else aim.seed
            plain = model_lines(case, "model", seed, meta=meta)
        lines = [*plain, *prepared_lines(case, aim.engine, "model")]
        lines += scope.script.wrap_lines(case, "model", scope.names)
        lines += scope.script.around_lines(case, "model", scope.called, scope.names)
        if not scope.rebuilds:
            return lines
        names, variables = scope.names, ", ".join(scope.made)
        given, told = ["seed"], [f"seed={aim.seed}"]
        if scope.moves:
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

    def _start(self, uses: Collection[str]) -> list[str]:
        """Join the process group, which making a mesh does too, and name tensors as the plain
        model does.
        """
        case, names, script = self.case, self.scope.names, self.scope.script
        has_mesh = script.takes_mesh(case) or not names.flat
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
        lines += [names.make()] if has_mesh else []
        lines += [*names.slices(), *script.start_lines(case)]
        if "names" in uses:
            lines.append("names = [name for name, _ in Model().named_parameters()]")
        if "buffer_names" in uses:
            lines.append("buffer_names = [name for name, _ in Model().named_buffers()]")
        return lines

    def main(self) -> list[str]:
        """Write everything that runs after the start."""
        raise NotImplementedError
