"""The input tensors of a script: one variable for every tensor, defined where it is first used."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.facts import facts
from fuzzshard.case.schedule import Forward, Op

Batch = tuple[str, int]


class InputNames:
    """Names the tensors of the batches that ``ops`` use: ``x`` where there is one, else ``x3_1``."""

    def __init__(self, case: Case, ops: Sequence[Op]) -> None:
        self.case = case
        self.first: dict[Batch, int] = {}
        for index, op in enumerate(ops):
            if isinstance(op, Forward):
                self.first.setdefault((op.target, op.batch), index)
        self._defined: set[Batch] = set()

    @property
    def leading(self) -> tuple[int, ...]:
        """The leading dimensions of every tensor: the batch, and the sequence if there is one."""
        inputs = self.case.inputs
        return (inputs.batch, inputs.seq) if inputs.seq else (inputs.batch,)

    def arguments(self, op: Forward) -> list[str]:
        """The variables that a forward passes."""
        return self._variables((op.target, op.batch))

    def definitions(self, op: Forward, uses: set[str]) -> list[str]:
        """Statements for the tensors of a batch, unless an earlier forward had it."""
        key = (op.target, op.batch)
        if key in self._defined:
            return []
        self._defined.add(key)
        specs = self._specs(op.target)
        lines = []
        for index, (variable, spec) in enumerate(zip(self._variables(key), specs, strict=True)):
            name = f'{self.case.seed}, "input", "{op.target}", {index}, {op.batch}, rank'
            if spec.kind == "ids":
                uses.add("ids")
                made = f"ids({spec.size}, {self.leading}, {name}).to(device)"
            else:
                made = f"values({(*self.leading, spec.size)}, {name}).to(device)"
            lines.append(f"{variable} = {made}{'.requires_grad_()' if spec.requires_grad else ''}")
        return lines

    def differentiable(self, last: int) -> list[tuple[str, str]]:
        """Labels and variables of the inputs that require a gradient and exist after op ``last``."""
        found = []
        for (target, batch), index in self.first.items():
            specs = self._specs(target)
            for i, (variable, spec) in enumerate(zip(self._variables((target, batch)), specs, strict=True)):
                if index <= last and spec.requires_grad:
                    found.append((f"input {i} of batch {batch}", variable))
        return found

    def _variables(self, key: Batch) -> list[str]:
        target, batch = key
        stem = "x" if len(self.first) == 1 else f"x{batch}{'_' if target else ''}{target.replace('.', '_')}"
        count = len(self._specs(target))
        return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]

    def _specs(self, target: str) -> Sequence[TensorSpec]:
        if not target:
            return self.case.inputs.tensors
        values = facts(self.case).input_values[target]
        return [TensorSpec(kind="ids" if v.ids else "float", size=v.size) for v in values]
