"""What a script looks at after an op, as statements that keep or return it."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import BatchNorm, Block
from fuzzshard.case.schedule import Forward, Op
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.inputs import InputNames


def output_expressions(case: Case, op: Forward) -> list[str]:
    """The tensors of ``out``, the result of a forward."""
    found = facts(case)
    module = found.modules[op.target]
    count = len(found.output_values[op.target])
    match module.returns if isinstance(module, Block) else "tensor":
        case "tensor":
            return ["out"]
        case "tuple":
            return [f"out[{i}]" for i in range(count)]
        case _:
            return [f'out["out{i}"]' for i in range(count)]


class Watch:
    """Writes dicts from names to tensors: one that is returned after the aim's op, or one after every op.

    Tensors that are kept while training goes on are copied. ``called`` and ``model`` are the variables of
    :class:`fuzzshard.reproducer.program.Program`, and ``uses`` is its set of things to define.
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
    ) -> None:
        self.case, self.aim, self.ops, self.inputs, self.uses = case, aim, ops, inputs, uses
        self.called, self.model = called, model
        self._take = "snapshot({})" if aim.op is None else "{}"

    def lines(self, index: int, oracles: tuple[str, ...]) -> list[str]:
        """Keeps or returns what the aim looks at after op ``index``."""
        keeps = self.aim.op is None
        lines = []
        for oracle in oracles:
            if self.aim.watches(oracle, index) and (entries := self._entries(index, oracle)):
                self.uses.add("snapshot" if keeps else "DTensor")
                lines.append(f"seen |= {entries}" if keeps else f"return {entries}")
        return lines

    def loss(self, index: int) -> str:
        """The variable of the loss of the forward at ``index``."""
        forwards = [op for op in self.ops if isinstance(op, Forward)]
        return "loss" if len(forwards) == 1 else f"loss{index}"

    def _entries(self, index: int, oracle: str) -> str:
        """The dict; empty where there is nothing to look at."""
        op = self.ops[index]
        match oracle:
            case "output":
                assert isinstance(op, Forward)
                where = op.target or "the root"
                outputs = output_expressions(self.case, op)
                return self._dict(index, [(f"output {i} of {where}", o) for i, o in enumerate(outputs)])
            case "loss":
                return self._dict(index, [("loss", self.loss(index))])
            case "input_gradient":
                tensors = self.inputs.differentiable(index)
                return self._dict(index, [(name, f"{variable}.grad") for name, variable in tensors])
            case "gradient":
                return self._comprehension(index, oracle, "p.grad", "n, p in params.items()")
            case "parameter":
                return self._comprehension(index, oracle, "p", "n, p in params.items()")
            case "registered_parameter":
                self.uses.add("names")
                return self._comprehension(index, oracle, f"{self.model}.get_parameter(n)", "n in names")
            case _:
                if not any(isinstance(m, BatchNorm) for m in facts(self.case).modules.values()):
                    return ""
                self.uses.add("buffer_names")
                pairs = f"n, b in zip(buffer_names, {self.called}.buffers())"
                return self._comprehension(index, oracle, "b", pairs)

    def _dict(self, index: int, entries: list[tuple[str, str]]) -> str:
        when = f"op {index} " if self.aim.op is None else ""
        pairs = [f'"{when}{name}": {self._take.format(value)}' for name, value in entries]
        return "{" + ", ".join(pairs) + "}" if pairs else ""

    def _comprehension(self, index: int, oracle: str, value: str, pairs: str) -> str:
        label = f'f"op {index} {oracle} {{n}}"' if self.aim.op is None else "n"
        return f"{{{label}: {self._take.format(value)} for {pairs}}}"
