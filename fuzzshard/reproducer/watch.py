"""What a script looks at after an op, as statements that keep or return it."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.facts import facts
from fuzzshard.model.statements import at
from fuzzshard.parts.op import Op
from fuzzshard.parts.oracle import TensorOracle
from fuzzshard.program.forward import output_texts
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.scope import Scope

_LONGEST = 150


def _comprehension_lines(start: str, entries: str) -> list[str]:
    """A statement that ends with a dict comprehension, over several lines where it is long."""
    if len(start + entries) <= _LONGEST:
        return [start + entries]
    first, *loops = entries[1:-1].split(" for ")
    return [f"{start}{{", f"    {first}", *(f"    for {loop}" for loop in loops), "}"]


class Watch:
    """Writes dicts from names to tensors: one that is returned after the aim's op, or one after
    every op.

    Tensors that are kept while training goes on are copied. ``sums`` says that gradients that are
    not averaged yet are kept in ``local``.
    """

    def __init__(self, scope: Scope, ops: Sequence[Op], inputs: InputNames, *, sums: bool) -> None:
        self.scope, self.ops, self.inputs, self.sums = scope, ops, inputs, sums
        self.case, self.aim = scope.case, scope.aim
        self.may_be_parts = not all(plan.local_output for plan in self.case.tensor_parallel)
        """Whether what is returned may be DTensors."""

    def lines(self, index: int, looks: Sequence[str], *, local: bool = False) -> list[str]:
        """Keeps or returns what the aim looks at after op ``index``, which may have changed
        ``looks``; gradients of parameters have ``local`` parts in them or are reduced.
        """
        keeps = self.aim.op is None
        if not self.aim.trains_reference:
            return []
        wanted = [
            oracle
            for look in looks
            for oracle in self.aim.watched(index)
            if look in oracle.looks and oracle.gradient != ("reduced" if local else "local")
        ]
        if len(self.aim.oracles) == 1 and wanted and (own := wanted[0].returned(self)):
            return own
        if self.watched:
            if wanted and self.scope.engine.has_units and wanted[0].handle == "variable":
                return self._gathered()
            return [f"return {self.one()}"] if wanted else []
        lines = []
        for oracle in wanted:
            self.may_be_parts |= not keeps
            pairs, entries = oracle.pairs(self, index), self._comprehension(index, oracle)
            if entries:
                lines += _comprehension_lines("seen |= " if keeps else "return ", entries)
            elif keeps:
                lines += [
                    f'seen["op {index} {name}"] = snapshot({value})' for name, value in pairs
                ]
            elif pairs:
                lines.append(
                    "return {" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
                )
        return lines

    @property
    def watched(self) -> bool:
        """Whether the script looks at one tensor, which an expression names."""
        aim = self.aim
        if not aim.seeded or aim.op is None or not aim.oracles or not aim.name:
            return False
        oracle = aim.oracles[0]
        if oracle.handle == "variable":
            return (
                not self.sums
                if not self.scope.engine.has_units
                else oracle.gradient != "local" and aim.error > 0
            )
        return bool(oracle.handle)

    @property
    def parameter(self) -> str:
        """The variable of the parameter that is looked at from the start; empty if there is
        none.
        """
        is_held = (
            not self.scope.engine.has_units
            and self.watched
            and self.aim.oracles[0].handle == "variable"
        )
        return self.aim.name.rpartition(".")[2] if is_held else ""

    def one(self) -> str:
        """The expression for the one tensor."""
        assert self.aim.op is not None
        return self.aim.oracles[0].one(self, self.aim.op)

    def loss(self, index: int) -> str:
        """The variable of the loss of the forward at ``index``."""
        forwards = [op for op in self.ops if op.call]
        return "loss" if len(forwards) == 1 else f"loss{index}"

    def outputs(self, index: int) -> list[tuple[str, str]]:
        """Names and expressions of the outputs of the forward at ``index``."""
        call = self.ops[index].call
        assert call is not None
        outputs = output_texts(self.case, call.target)
        return [(f"output {i} of {call.target or 'the root'}", o) for i, o in enumerate(outputs)]

    @property
    def has_buffers(self) -> bool:
        """Whether the model has any."""
        found = facts(self.case)
        return bool(found.batch_norms) or found.hides_buffers

    @property
    def flat_gradients(self) -> bool:
        """Whether gradients are those of flat parameters."""
        return self.scope.engine.has_flat_parameters(self.case)

    def entries(self, index: int, value: str, over: str, *, oracle: str, name: str = "{n}") -> str:
        """A dict comprehension: ``value`` for each ``name``."""
        if self.aim.op is None:
            return f'{{f"op {index} {oracle} {name}": snapshot({value}) for {over}}}'
        return f"{{{'n' if name == '{n}' else f'f{chr(34)}{name}{chr(34)}'}: {value} for {over}}}"

    def _comprehension(self, index: int, oracle: TensorOracle) -> str:
        if self.scope.engine.has_units and oracle.in_flat:
            return self._whole(index, oracle)
        return oracle.entries(self, index)

    def _gathered(self) -> list[str]:
        """The whole of one parameter, of which a rank has a part, or of its gradient."""
        value = at(self.scope.model, self.aim.name)
        called, gradient = self.scope.called, self.aim.has("reduced")
        return self.scope.script.gathered_lines(self.case, called, value, gradient=gradient)

    def _whole(self, index: int, oracle: TensorOracle) -> str:
        """What a rank has of parameters, gathered from its shards."""
        arguments = oracle.gathered_by(self, index)
        value = f"whole({self.scope.called}{arguments})"
        if self.aim.op is None:
            return f'{{f"op {index} {oracle.name} {{n}}": t for n, t in {value}.items()}}'
        return value
