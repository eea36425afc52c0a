"""Scripts that train one model, under the engine."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.oracle import MISSING, SAME_TYPE, TensorType
from fuzzshard.program.script import script_of
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.expected import RECORD_WARNINGS, warning_lines
from fuzzshard.reproducer.optimizer import made_by_saves
from fuzzshard.reproducer.scope import Scope
from fuzzshard.reproducer.writer import Writer


class Alone(Writer):
    """Runs the engine's model only: for what can be seen without a reference."""

    def __init__(self, case: Case, aim: Aim) -> None:
        called = script_of(aim.engine).variable
        super().__init__(case, aim, Scope(case, aim, called=called, model="model"))
        self._verdict = self.verdict()

    @override
    def main(self) -> list[str]:
        scope, rule = self.scope, self.aim.rule
        before = RECORD_WARNINGS if self.aim.kind == "heard" else rule.before(scope)
        run = rule.within(scope, [*self.built(), *rule.before_run(scope), *self.lines])
        return [*(["", *before, ""] if before else []), *run, *self._verdict]

    def verdict(self) -> list[str]:
        """What is looked at in the end."""
        match self.aim.kind:
            case "presence":
                lines = self._presence()
            case "type":
                one, due = self.scope.watch.one(), TensorType.read(self.aim.expected)
                assert due is not None
                expected, observed = due.dtype, f"{one}.dtype"
                if self.aim.oracles[0].of_forward:
                    expected, observed = due.expression, f"(list({one}.shape), {one}.dtype)"
                lines = [f"expected, observed = {expected}, {observed}", SAME_TYPE]
            case "alone":
                lines = self.aim.rule.after(self.scope)
            case "heard":
                lines = warning_lines(self.scope)
            case "desync":
                lines = ["dist.barrier()"]
            case _:
                lines = []
        return [*lines, *helpers.END]

    def _presence(self) -> list[str]:
        """A gradient or an optimizer state that must be there, or must not."""
        one, who = self.scope.watch.one(), f"rank {{rank}}: {self.aim.name}"
        missing = self.aim.expected == MISSING
        if self.aim.oracles[0].is_state:
            expected, holds = "a state, observed None", "state is not None"
            if not missing:
                expected, holds = "no state, observed\\n{state}", "state is None"
                if (initial := made_by_saves(self.case, self.aim.name)) is not None:
                    expected = f"none but the initial {initial}, observed\\n{{state}}"
                    holds += f" or (state == {initial}).all()"
            return [
                f"state = {one}",
                f'text = f"{who}: expected {expected}"',
                f"assert {holds}, text",
            ]
        spec = spec_of(self.aim.engine)
        if spec.has_units or (spec.in_stages and missing):
            return [
                f"here = torch.tensor(0.0 if {one} is None else 1.0, device=device)",
                "dist.all_reduce(here)",
                f'assert here > 0, "{self.aim.name}: expected a gradient, observed None on all '
                'ranks"',
            ]
        if missing:
            return [f'assert {one} is not None, f"{who}: expected a gradient, observed None"']
        return [f'assert {one} is None, f"{who}: expected no gradient, observed\\n{{{one}}}"']
