"""What a script looks at after an op, as statements that keep or return it."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import BatchNorm, Block
from fuzzshard.case.schedule import Forward, Op
from fuzzshard.model.source import result_expression
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.inputs import InputNames


def output_expressions(case: Case, op: Forward) -> list[str]:
    """The tensors of ``out``, the result of a forward."""
    found = facts(case)
    module = found.modules[op.target]
    count = len(found.output_values[op.target])
    if not isinstance(module, Block):
        return ["out"]
    return [result_expression(module, "out", i) for i in range(count)]


class Watch:
    """Writes dicts from names to tensors: one that is returned after the aim's op, or one after every op.

    Tensors that are kept while training goes on are copied. ``called`` and ``model`` are the variables of
    :class:`fuzzshard.reproducer.program.Program`, ``uses`` is its set of things to define, and ``sums`` says
    that it keeps gradients that are not averaged yet in ``local``.
    """

    def __init__(
        self,
        case: Case,
        aim: Aim,
        ops: Sequence[Op],
        inputs: InputNames,
        uses: set[str],
        *,
        called: str,
        model: str,
        sums: bool,
    ) -> None:
        self.case, self.aim, self.ops, self.inputs, self.uses = case, aim, ops, inputs, uses
        self.called, self.model, self.sums = called, model, sums

    def lines(self, index: int, oracles: tuple[str, ...]) -> list[str]:
        """Keeps or returns what the aim looks at after op ``index``."""
        keeps = self.aim.op is None
        lines = []
        for oracle in oracles:
            if not self.aim.watches(oracle, index):
                continue
            self.uses.add("snapshot" if keeps else "DTensor")
            pairs, entries = self._pairs(index, oracle), self._comprehension(index, oracle)
            if entries:
                lines.append(f"seen |= {entries}" if keeps else f"return {entries}")
            elif keeps:
                lines += [f'seen["op {index} {name}"] = snapshot({value})' for name, value in pairs]
            elif pairs:
                lines.append("return {" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}")
        return lines

    def loss(self, index: int) -> str:
        """The variable of the loss of the forward at ``index``."""
        forwards = [op for op in self.ops if isinstance(op, Forward)]
        return "loss" if len(forwards) == 1 else f"loss{index}"

    def _pairs(self, index: int, oracle: str) -> list[tuple[str, str]]:
        """Names and expressions of tensors that stand in variables of their own."""
        op = self.ops[index]
        match oracle:
            case "output":
                assert isinstance(op, Forward)
                where = op.target or "the root"
                return [
                    (f"output {i} of {where}", o) for i, o in enumerate(output_expressions(self.case, op))
                ]
            case "loss":
                return [("loss", self.loss(index))]
            case "input_gradient":
                return [(name, f"{variable}.grad") for name, variable in self.inputs.differentiable(index)]
            case _:
                return []

    def _comprehension(self, index: int, oracle: str) -> str:
        """A dict comprehension over parameters or buffers; empty for what :meth:`_pairs` names."""
        over = "n, p in params.items()"
        match oracle:
            case "local_gradient" if self.sums:
                local = "local[n] if p.grad is None else p.grad + local[n]"
                value = f"({local}) if n in local else p.grad"
            case "gradient" | "local_gradient":
                value = "p.grad"
            case "parameter":
                value = "p"
            case "registered_parameter":
                self.uses.add("names")
                value, over = f"{self.model}.get_parameter(n)", "n in names"
            case "buffer" if any(isinstance(m, BatchNorm) for m in facts(self.case).modules.values()):
                self.uses.add("buffer_names")
                value, over = "b", f"n, b in zip(buffer_names, {self.called}.buffers())"
            case _:
                return ""
        if self.aim.op is None:
            return f'{{f"op {index} {oracle} {{n}}": snapshot({value}) for {over}}}'
        return f"{{n: {value} for {over}}}"
