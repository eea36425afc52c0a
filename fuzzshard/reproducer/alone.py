"""Scripts that train one model, under the engine."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.engines.script import script_of
from fuzzshard.model.statements import at, indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.expected import recording_lines, warning_lines
from fuzzshard.reproducer.held import held_before, held_lines, outlives, shape_and_dtype
from fuzzshard.reproducer.program import Program
from fuzzshard.reproducer.seeded import model_lines
from fuzzshard.reproducer.wrapping import around_lines, engine_lines
from fuzzshard.reproducer.writer import Writer
from fuzzshard.verdict import MISSING


class Alone(Writer):
    """Runs the engine's model only: for what can be seen without a reference."""

    def __init__(self, case: Case, aim: Aim) -> None:
        called = script_of(aim.engine).variable
        super().__init__(case, aim, Program(case, aim, called=called, model="model"))
        self.uses |= {"replicas": {"snapshot"}}.get(aim.kind, set())
        if aim.kind == "registration" and not self._is_of_class:
            self.uses.add("describe")
        self._delays = self.delays()
        self._held = held_lines(self.program.scope) if aim.kind == "held" else []

    def main(self) -> str:
        """Everything that runs."""
        lines = self.start()
        if recording := recording_lines(self.aim):
            lines += ["", *recording, ""]
        run = [*self._build_lines(), *self.unmanaged_lines(), *held_before(self.program.scope)]
        if self.program.by_hand:
            run.append(f"by_hand = {self.by_hand('model')}")
        run += self.program.lines
        if self.aim.kind == "outlives":
            run = outlives(run, "model")
        return "\n".join([*lines, *self._delays, *run, *self.verdict()])

    def _build_lines(self) -> list[str]:
        """Builds the engine's model, by a function if that happens more than once."""
        called, engine = self.program.scope.called, self.aim.engine
        rebuilds = self.program.rebuilds
        made = model_lines(self.case, "model") if self.aim.seeded else None
        if made and rebuilds:
            made[0] = "torch.manual_seed(seed)"
        lines = engine_lines(self.case, engine, "model", seeds=rebuilds, made=made)
        lines += around_lines(self.case, engine, "model", called)
        if not rebuilds:
            return lines
        variables = ", ".join(dict.fromkeys((called, "model")))
        return [
            *("", "", "def make_model(seed):", *indented([*lines, f"return {variables}"]), "", ""),
            f"{variables} = make_model(seed={0 if self.aim.seeded else self.case.seed})",
        ]

    def verdict(self) -> list[str]:
        """What is looked at in the end."""
        match self.aim.kind:
            case "presence":
                lines = self._presence()
            case "type":
                one = self.program.watch.one()
                expected = shape_and_dtype(self.aim.expected)
                lines = [
                    f"expected, observed = {expected}, (list({one}.shape), {one}.dtype)",
                    'assert observed == expected, f"rank {rank}: expected {expected}, observed '
                    '{observed}"',
                ]
            case "registration" if self._is_of_class:
                sharded = self.aim.expected == "DTensor"
                text = (
                    f"rank {{rank}}: {self.aim.name}: expected a {self.aim.expected}, observed a"
                )
                lines = [
                    f"observed = {at('model', self.aim.name)}",
                    f'text = f"{text} {{type(observed).__name__}}"',
                    f"assert {'' if sharded else 'not '}isinstance(observed, DTensor), text",
                ]
            case "registration":
                text = (
                    f"rank {{rank}}: {self.aim.name}: expected {{expected}}, observed {{observed}}"
                )
                lines = [
                    f"expected = {self.aim.expected!r}",
                    f'observed = describe(model.get_parameter("{self.aim.name}"))',
                    f'assert observed == expected, f"{text}"',
                ]
            case "collectives":
                lines = [
                    "everyone = [None] * dist.get_world_size()",
                    "dist.all_gather_object(everyone, list(calls))",
                    'text = f"rank {rank}: expected {everyone[0]}\\nobserved {everyone[rank]}"',
                    "assert everyone[rank] == everyone[0], text",
                ]
            case "replicas":
                lines = [
                    "for name, p in params.items():",
                    "    observed = snapshot(p)",
                    "    expected = observed.clone()",
                    f"    dist.broadcast(expected, {self._first}{self.mesh.group_argument})",
                    '    both = f"rank {rank}, {name}: rank 0 '
                    'has\\n{expected}\\nobserved\\n{observed}\\n"',
                    "    torch.testing.assert_close(",
                    "        observed, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: "
                    "both + m",
                    "    )",
                ]
            case "held":
                lines = self._held
            case "warning":
                lines = warning_lines(self.program.scope)
            case "desync":
                lines = ["dist.barrier()"]
            case _:
                lines = []
        return [*lines, *helpers.END]

    @property
    def _is_of_class(self) -> bool:
        """Whether it is the class of a parameter that is wrong."""
        return self.aim.expected in ("DTensor", "Tensor", "Parameter")

    def _presence(self) -> list[str]:
        """A gradient or an optimizer state that must be there, or must not."""
        one, who = self.program.watch.one(), f"rank {{rank}}: {self.aim.name}"
        missing = self.aim.expected == MISSING
        if self.aim.oracles == ("resume",):
            expected = (
                "expected a state, observed None" if missing else "expected no state, observed one"
            )
            return [
                f"state = {one}",
                f'text = f"{who}: {expected}"',
                f"assert state is {'not ' * missing}None, text",
            ]
        if spec_of(self.aim.engine).has_units:
            return [
                f"here = torch.tensor(0.0 if {one} is None else 1.0, device=device)",
                "dist.all_reduce(here)",
                f'assert here > 0, "{self.aim.name}: expected a gradient, observed None on all '
                'ranks"',
            ]
        if missing:
            return [f'assert {one} is not None, f"{who}: expected a gradient, observed None"']
        return [f'assert {one} is None, f"{who}: expected no gradient, observed\\n{{{one}}}"']

    @property
    def _first(self) -> str:
        return "0" if self.mesh.flat else "dist.get_global_rank(group, 0)"
