"""What statements of a script are written for: the case, what is looked at, and the variables
there are.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.edit import split
from fuzzshard.case.options import DelaySite, Expect
from fuzzshard.model.statements import indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Ranks
from fuzzshard.program import scope
from fuzzshard.program.mesh import MeshNames
from fuzzshard.reproducer.aim import Aim


def merged(lines: list[str]) -> list[str]:
    """``lines`` where an ``if`` that follows another one of the same condition goes on with its
    body.
    """
    result: list[str] = []
    condition = ""
    for line in lines:
        if line.startswith("if ") and line == condition:
            continue
        if not line.startswith(" "):
            condition = line if line.startswith("if ") else ""
        result.append(line)
    return result


def on_ranks(ranks: Ranks, lines: list[str]) -> list[str]:
    """``lines``, for some ranks only."""
    return lines if ranks == "all" or not lines else ["if dist.get_rank() > 0:", *indented(lines)]


class Scope(scope.Scope):
    """Also what is looked at."""

    def __init__(self, case: Case, aim: Aim, called: str, model: str) -> None:
        shared = aim.trains_reference
        names, engine = MeshNames(case), spec_of(aim.engine)
        trained = f"{called if engine.in_stages else model}.parameters()"
        super().__init__(case, engine, called, model, names, trained, shared=shared)
        self.aim = aim

    def part(self, fqn: str) -> str:
        """The expression for what ``fully_shard`` holds of a parameter."""
        return f"part({self.model}, {self._owner(fqn)})"

    def unreduced(self) -> str:
        """The expression for the unreduced gradient of the parameter that is looked at."""
        return f"unreduced({self.model}, {self._owner(self.aim.name)})"

    def _owner(self, fqn: str) -> str:
        """The arguments that say which parameter is meant."""
        module, name = split(fqn)
        return f'{self.at(module)}, "{name}"'

    @property
    def renamed(self) -> bool:
        """Whether the names that a wrapped model gives its parameters differ from the plain
        model's.
        """
        return bool(self.engine.wrapper) or self.has_wrapper_modules

    @property
    def has_flat_parameters(self) -> bool:
        """Whether the parameters of the engine's model are those of its units."""
        return self.engine.has_flat_parameters(self.case)

    def parameters(self, model: str) -> str:
        """A dict of the parameters of a model, by the names that the plain model gives them."""
        if self.has_flat_parameters or not self.renamed:
            return f"dict({model}.named_parameters())"
        return f"dict(zip(names, {model}.parameters()))"

    @override
    def either(self, plain: list[str], wrapped: list[str]) -> list[str]:
        if self.aim.kind != "compare":
            return wrapped
        condition = f"if {self.called} is reference:"
        lines = [condition, *indented(plain)] if plain else []
        others = ["else:" if plain else f"if {self.called} is not reference:", *indented(wrapped)]
        return [*lines, *(others if wrapped else [])]

    @property
    def expectations(self) -> tuple[Expect, ...]:
        """What the case expects of the engine."""
        return tuple(expect for expect in self.case.expect if expect.engine == self.aim.engine)

    def wait(self, site: DelaySite) -> list[str]:
        """The delays of the case at a point between the statements."""
        delays = [delay for delay in self.case.delays if delay.site == site]
        return [line for d in delays for line in on_ranks(d.ranks, [f"wait({d.milliseconds})"])]
