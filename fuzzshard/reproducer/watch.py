"""What a script looks at after an op, as statements that keep or return it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzshard.analysis.inferred import inferred
from fuzzshard.errors import UsageError
from fuzzshard.parts.op import Op
from fuzzshard.parts.oracle import TensorOracle
from fuzzshard.parts.statements import at

if TYPE_CHECKING:
    from fuzzshard.reproducer.scope import Scope

_LONGEST = 150


class Watch:
    """Returns one tensor after the op of the assertion, or keeps all in ``seen`` after every op:
    copies, as training goes on.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope, self.case, self.assertion = scope, scope.case, scope.assertion
        self._taken = False
        """Whether a state dict that was taken is still the model's."""

    def lines(self, op: Op) -> list[str]:
        """Keep or return what the assertion is about after ``op``."""
        self._taken = (self._taken or "dict" in op.looks) and not op.replaces_parameters
        if not self.assertion.trains_reference:
            return []
        index, engine = self.scope.now.index, self.scope.engine
        keeps = self._taken and not engine.has_units
        looks = [look for look in op.looks if keeps or look != "taken"]
        looks += ["outputs"] if op.call else []
        unsynced = op.takes and not (engine.applies_groups or self.scope.now.synced)
        hidden = "reduced" if unsynced else "local"
        wanted = [
            oracle
            for look in looks
            for oracle in self.assertion.watched(index)
            if look in oracle.looks and oracle.gradient != hidden
        ]
        if self.assertion.op is not None:
            return self._returned(wanted[0]) if wanted else []
        return [line for oracle in wanted for line in self._kept(index, oracle)]

    def _returned(self, oracle: TensorOracle) -> list[str]:
        """Return the one tensor; of a unit of FSDP1 the whole of it, of which a rank has a
        part.
        """
        if not (self.scope.engine.has_units and oracle.in_flat):
            return [f"return {self.one()}"]
        if oracle.is_state or oracle.gradient == "local":
            raise UsageError(
                f"a script cannot gather the {oracle.name} of a flat parameter of FSDP1",
                "replay the case",
            )
        value, called = at(self.scope.model, self.assertion.name), self.scope.called
        reduced = oracle.gradient == "reduced"
        return self.scope.script.gathered_lines(self.case, called, value, gradient=reduced)

    def _kept(self, index: int, oracle: TensorOracle) -> list[str]:
        apart = index in self.scope.averages and self.scope.averages[index].kept
        if (self.scope.engine.has_units and oracle.in_flat) or (
            apart and oracle.gradient == "reduced"
        ):
            return []
        start, entries = "seen |= ", oracle.entries(self, index)
        if not entries:
            pairs = oracle.pairs(self, index).items()
            return [f'seen["op {index} {name}"] = snapshot({value})' for name, value in pairs]
        if len(start + entries) <= _LONGEST:
            return [start + entries]
        first, *loops = entries[1:-1].split(" for ")
        return [f"{start}{{", f"    {first}", *(f"    for {loop}" for loop in loops), "}"]

    @property
    def parameter(self) -> str:
        """The variable of the parameter that is looked at from the start; empty if there is
        none.
        """
        op, oracles = self.assertion.op, self.assertion.oracles
        held = op is not None and any(oracle.held for oracle in oracles)
        name = self.assertion.name.rpartition(".")[2]
        return name if held and not self.scope.engine.has_units else ""

    @property
    def uses_parameters(self) -> bool:
        """Whether it looks at all of them."""
        in_flat = any(oracle.in_flat for oracle in self.assertion.oracles)
        return self.assertion.op is None and in_flat and not self.scope.engine.has_units

    def one(self) -> str:
        """Write the expression for the one tensor."""
        assert self.assertion.op is not None
        return self.assertion.oracles[0].one(self, self.assertion.op)

    def loss(self, index: int) -> str:
        """Return the variable of the loss of the forward at ``index``."""
        forwards = [op for op in self.scope.ops if op.call]
        return "loss" if len(forwards) == 1 else f"loss{index}"

    def outputs(self, index: int) -> dict[str, str]:
        """Return the expressions of the outputs of the forward at ``index``, by name."""
        call = self.scope.ops[index].call
        assert call is not None
        outputs = self.scope.outputs(call.target)
        return {f"output {i} of {call.target or 'the root'}": o for i, o in enumerate(outputs)}

    @property
    def has_buffers(self) -> bool:
        """Whether the model has any."""
        return inferred(self.case).has_buffers

    def entries(self, index: int, value: str, over: str, *, oracle: str, name: str = "{n}") -> str:
        """Write a dict comprehension: ``value`` for each ``name``."""
        return f'{{f"op {index} {oracle} {name}": snapshot({value}) for {over}}}'
