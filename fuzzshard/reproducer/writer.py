"""Writes a script: definitions, the start, what runs and what is asserted then."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from fuzzshard.analysis.arrivals import ignored_modules
from fuzzshard.analysis.dtypes import has_precision
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.model.source import model_source
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.statements import indented
from fuzzshard.program.engine_script import engine_script
from fuzzshard.program.helpers import SOURCES, called
from fuzzshard.program.setup import checkpoint_lines, materialize_lines
from fuzzshard.program.wrapping import prepared_lines
from fuzzshard.reproducer.assertion import Assertion
from fuzzshard.reproducer.scope import UNWRAPPED, Scope
from fuzzshard.reproducer.values import constructed, model_lines
from fuzzshard.reproducer.verdicts import verdict

_SLICED = [
    'axes = tuple(axis for axis in world_mesh.mesh_dim_names if axis not in ("pp", "tp"))',
    "mesh = world_mesh[axes]",
]
"""The data-parallel mesh of any mesh."""
_END = [
    "dist.destroy_process_group()",
    "os._exit(0)  # threads of gloo that still hold tensors can abort a normal exit",
]
"""A gloo thread drops the tensors of a finished collective at any time, for which it takes the
GIL; in an interpreter that is shutting down this ends in ``std::terminate`` (seen with torch 2.13,
1 exit in 50)."""
DESYNC_SECONDS = 30
"""After how long a lost collective ends the script by itself."""


class Writer:
    """One script. It trains the engine's model, or the plain model and then that by one function,
    and compares what it returns.

    Raises :class:`UsageError` where a plain model cannot train as the case says.
    """

    def __init__(self, case: Case, assertion: Assertion) -> None:
        self.case, self.assertion, engine = case, assertion, spec_of(assertion.engine)
        variable, model = engine_script(assertion.engine).variable, "model"
        if assertion.trains_reference:
            _check_reference(case, assertion)
            variable = variable if engine.in_stages else "model"
            model = "inner" if engine.wrapper else "model"
        self.scope = Scope(case, assertion, called=variable, model=model)
        self.lines = self.scope.lines()
        returns = any(line.lstrip().startswith("return ") for line in self.lines)
        if assertion.trains_reference and assertion.op is not None and not returns:
            raise UsageError(
                f"op {assertion.op} has nothing that a script could compare", "replay the case"
            )

    def text(self) -> str:
        """Write the script without its imports: the model, the functions it calls, what runs."""
        functions = [self._train()] if self.assertion.trains_reference else []
        main = [
            *(self._both() if functions else self._alone()),
            *verdict(self.scope),
            *_END,
        ]
        sources, start = self._sources(), self._start()
        uses = called("\n".join([*functions, *start, *main]), sources)
        parts = [model_source(self.case), *(sources[name] for name in uses)]
        parts = [*(part.strip() for part in parts if part), *functions]
        return "\n\n\n".join([*parts, "\n".join([*start, *_named(uses), *main])])

    def _alone(self) -> list[str]:
        """Train the engine's model."""
        scope, rule = self.scope, self.assertion.rule
        before = rule.before(scope)
        run = rule.within(scope, self._built(), self.lines)
        return [*(["", *before, ""] if before else []), *run]

    def _both(self) -> list[str]:
        """Train the plain model and the engine's."""
        case, is_copied = self.case, self.case.init != "meta" and not self.scope.rebuilds
        copied = ["model = copy.deepcopy(reference)"] if is_copied else []
        return [
            *model_lines(case, "reference", self.assertion.seed),
            *copied,
            *checkpoint_lines(case, "reference", reference=True),
            f"expected = train({', '.join(['reference'] * len(self._given))})",
            *self._built([] if is_copied else None),
            *(self._here() if self.scope.engine.in_stages else []),
            f"observed = train({', '.join(self._given)})",
        ]

    @property
    def _given(self) -> tuple[str, ...]:
        """The variables of the model; all of them where they are made anew."""
        return self.scope.made if self.scope.rebuilds else self.scope.models

    def _train(self) -> str:
        """Write the function that trains."""
        lines = self.lines
        if self.scope.model == "inner" and any(re.search(r"\binner\b", line) for line in lines):
            lines = [UNWRAPPED, *lines]
        if self.scope.rebuilds:
            lines = ["global reference", *lines]
        if self.assertion.op is None:
            lines = [*lines, "return seen"]
        return "\n".join([f"def train({', '.join(self._given)}):", *indented(lines)])

    def _here(self) -> list[str]:
        """Name the parameters of this rank's stages."""
        wrapped = any(c.implementation == "wrapper" for c in self.case.checkpoints)
        name = 'name.replace("_checkpoint_wrapped_module.", "")' if wrapped else "name"
        if self.case.pipelining.replicates:
            name += '.removeprefix("module.")'
        return [f"here = {{{name} for s in stages for name, _ in s.submod.named_parameters()}}"]

    def _sources(self) -> dict[str, str]:
        """Write functions by name; variables that come before everything else have none."""
        case = self.case
        averaging = indented(self.scope.averaging_lines(None, "parameters"))
        plain = materialize_lines(case, constructed(case, "plain"))
        return {
            "average": "\n".join(["def average(parameters):", *averaging]),
            "materialize": "\n".join(["def materialize(model):", *indented(plain)]),
            **SOURCES,
            "names": "",
            "buffer_names": "",
        }

    def _built(self, plain: list[str] | None = None) -> list[str]:
        """Build the engine's model, by a function if that happens more than once; ``plain`` are
        statements that make the plain one.
        """
        case, assertion, scope = self.case, self.assertion, self.scope
        meta = case.init == "meta" and scope.engine.applies_groups
        if meta or scope.rebuilds or plain is None:
            seed = "seed" if scope.rebuilds else assertion.seed
            plain = model_lines(case, "model", seed, meta=meta)
        lines = [*plain, *prepared_lines(case, assertion.engine, "model")]
        lines += scope.script.wrap_lines(case, "model", scope.called, scope.names)
        if not scope.rebuilds:
            return lines
        names, variables = scope.names, ", ".join(scope.made)
        given, told = ["seed"], [f"seed={assertion.seed}"]
        if not names.flat:
            lines = [*(_SLICED if scope.moves else names.slices()[:1]), *lines]
        if scope.moves:
            given.append(names.variable)
            told.append(f"{names.variable}={names.variable}")
        lines = [*lines, f"return {variables}"]
        return [
            *("", "", f"def make_model({', '.join(given)}):", *indented(lines), "", ""),
            f"{variables} = make_model({', '.join(told)})",
        ]

    def _start(self) -> list[str]:
        """Make the mesh, which joins the process group."""
        case, names = self.case, self.scope.names
        lines = [f'device = "cuda" if torch.cuda.device_count() >= {case.mesh.size} else "cpu"']
        if self.assertion.kind == "desync":
            limit = f"timeout=timedelta(seconds={DESYNC_SECONDS})"
            lines += [
                f'dist.init_process_group("nccl" if device == "cuda" else "gloo", {limit})',
                'if device == "cuda":',
                "    torch.cuda.set_device(dist.get_rank())",
            ]
        return [*lines, names.make(), *names.slices()]


def _named(uses: Collection[str]) -> Iterator[str]:
    """Name tensors as the plain model does."""
    if "names" in uses:
        yield "names = [name for name, _ in Model().named_parameters()]"
    if "buffer_names" in uses:
        yield "buffer_names = [name for name, _ in Model().named_buffers()]"


def _check_reference(case: Case, assertion: Assertion) -> None:
    if has_precision(case) and not assertion.error:
        raise UsageError("no script emulates mixed precision on a plain model", "replay the case")
    if ignored_modules(case, by_replicate=spec_of(assertion.engine).ignores_modules):
        raise UsageError("no script averages what replicate() ignores", "replay the case")
