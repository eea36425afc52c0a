"""The input tensors of a script: one variable for every tensor, defined where it is first used."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.batches import rows_of_batch
from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.facts import facts
from fuzzshard.parts.op import Call, Op
from fuzzshard.reproducer.seeded import input_expression, seed_line

Batch = tuple[str, int]


def tuple_text(items: Sequence[str]) -> str:
    """A tuple of expressions as one."""
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


class InputNames:
    """Names the tensors of the batches that ``ops`` use: ``x`` where there is one, else
    ``x3_1``.
    """

    def __init__(self, case: Case, ops: Sequence[Op]) -> None:
        self.case = case
        self._forwards = [op.begins for op in ops if op.begins]
        self._batches = {(op.target, op.batch) for op in self._forwards}
        self._defined: dict[Batch, None] = {}
        self.cast = ""
        """The dtype that everything was cast to last, if it was."""
        self._rank = 0 if case.inputs.same_on_ranks else "rank"

    def shape(self, batch: int, *sizes: int) -> list[str]:
        """The dimensions of a tensor of a batch: rows, the sequence if there is one, then
        ``sizes``.
        """
        rows, seq = rows_of_batch(self.case, batch), self.case.inputs.seq
        own = f"{list(rows)}[rank]" if len(set(rows)) > 1 else str(rows[0])
        return [own, *([str(seq)] if seq else []), *map(str, sizes)]

    def arguments(self, op: Call, *, moves: bool, shared: bool) -> list[str]:
        """What a forward passes; inputs on the host are moved by hand unless the engine ``moves``
        them.

        The lines may be ``shared`` with the reference, which moves none.
        """
        variables = self.variables(op)
        if not self.case.inputs.on_host or (moves and not shared):
            return variables
        moved = [f"{variable}.to(device)" for variable in variables]
        if not moves:
            return moved
        return [
            f"({m} if model is reference else {v})" for m, v in zip(moved, variables, strict=True)
        ]

    def variables(self, op: Call) -> list[str]:
        """The input tensors of a forward."""
        return self._variables((op.target, op.batch))

    def change_dtype(self, dtype: str) -> None:
        """From now on inputs are of another dtype, and made anew."""
        self.cast = dtype
        self._defined.clear()

    def name(self, kind: str, op: Call, index: int) -> str:
        """What the values of an input or a target are made from: the arguments after their
        shape.
        """
        dtype = f", dtype=torch.{self.cast}" if self.cast else ""
        return (
            f'{self.case.seed}, "{kind}", "{op.target}", {index}, {op.batch}, {self._rank}{dtype}'
        )

    def definitions(self, op: Call) -> list[str]:
        """Statements for the tensors of a batch, unless an earlier forward had it."""
        key = (op.target, op.batch)
        if key in self._defined:
            return []
        self._defined[key] = None
        specs = self._specs(op.target)
        lines = []
        for index, (variable, spec) in enumerate(zip(self._variables(key), specs, strict=True)):
            name = self.name("input", op, index)
            if spec.kind == "ids":
                shape = tuple_text(self.shape(op.batch))
                made = f"ids({spec.size}, {shape}, {name.partition(', dtype')[0]})"
            else:
                made = f"values({tuple_text(self.shape(op.batch, spec.size))}, {name})"
            made += "" if self.case.inputs.on_host else ".to(device)"
            lines.append(f"{variable} = {made}{'.requires_grad_()' if spec.requires_grad else ''}")
        return lines

    def seeded(self) -> list[str]:
        """Statements that draw the tensors of all batches, in the first call; none later."""
        lines = [] if self._defined else [seed_line(self.case)]
        for key in dict.fromkeys((op.target, op.batch) for op in self._forwards):
            if key not in self._defined:
                self._defined[key] = None
                lines += [
                    f"{variable} = {input_expression(self.case, spec, self.shape(key[1]))}"
                    for variable, spec in zip(
                        self._variables(key), self._specs(key[0]), strict=True
                    )
                ]
        return lines

    def differentiable(self) -> list[tuple[str, str]]:
        """Labels and variables of the inputs that require a gradient and are defined by now."""
        found = []
        for target, batch in self._defined:
            specs = self._specs(target)
            for i, (variable, spec) in enumerate(
                zip(self._variables((target, batch)), specs, strict=True)
            ):
                if spec.requires_grad:
                    label = f"input {i} of batch {batch}{' of ' + target if target else ''}"
                    found.append((label, variable))
        return found

    def _variables(self, key: Batch) -> list[str]:
        target, batch = key
        stem = (
            "x"
            if len(self._batches) == 1
            else f"x{batch}{'_' if target else ''}{target.replace('.', '_')}"
        )
        count = len(self._specs(target))
        return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]

    def _specs(self, target: str) -> Sequence[TensorSpec]:
        if not target:
            return self.case.inputs.tensors
        values = facts(self.case).input_values[target]
        return [TensorSpec(kind="ids" if v.ids else "float", size=v.size) for v in values]
