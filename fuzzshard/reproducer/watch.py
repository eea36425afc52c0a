"""What a script looks at after an op, as statements that keep or return it."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block
from fuzzshard.model.expressions import result_expression
from fuzzshard.model.statements import at
from fuzzshard.parts.op import Call, Op
from fuzzshard.reproducer.held import unreduced
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.scope import Scope

_WIDTH = 105
"""The most characters of a statement in a function."""

_OF_ONE_NAME = ("registered_parameter", "output", "loss", "input_gradient", "unreduced_gradient")

_STATES = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq", "step")}


def output_expressions(case: Case, op: Call) -> list[str]:
    """The tensors of ``out``, the result of a forward."""
    found = facts(case)
    module = found.modules[op.target]
    count = len(found.output_values[op.target])
    if not isinstance(module, Block):
        return ["out"]
    return [result_expression(module, "out", i) for i in range(count)]


class Watch:
    """Writes dicts from names to tensors: one that is returned after the aim's op, or one after
    every op.

    Tensors that are kept while training goes on are copied. ``sums`` says that gradients that are
    not averaged yet are kept in ``local``.
    """

    def __init__(self, scope: Scope, ops: Sequence[Op], inputs: InputNames, *, sums: bool) -> None:
        self.scope, self.ops, self.inputs, self.sums = scope, ops, inputs, sums
        self.case, self.aim = scope.case, scope.aim

    def lines(self, index: int, oracles: tuple[str, ...]) -> list[str]:
        """Keeps or returns what the aim looks at after op ``index``."""
        keeps = self.aim.op is None
        if not self.aim.trains_reference:
            return []
        if self.aim.oracles == ("unreduced_gradient",):
            return self._unreduced() if self.aim.watches(oracles[-1], index) else []
        if self.watched:
            wanted = any(self.aim.watches(oracle, index) for oracle in oracles)
            if (
                wanted
                and self.scope.engine.has_units
                and self.aim.oracles[0] in ("gradient", "parameter")
            ):
                return self._gathered()
            return [f"return {self.one()}"] if wanted else []
        lines = []
        for oracle in oracles:
            if not self.aim.watches(oracle, index):
                continue
            self.scope.uses.add("snapshot" if keeps else "DTensor")
            pairs, entries = self._pairs(index, oracle), self._comprehension(index, oracle)
            if entries:
                lines.append(f"seen |= {entries}" if keeps else f"return {entries}")
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
        if oracle in ("gradient", "local_gradient", "parameter"):
            return (
                not self.sums
                if not self.scope.engine.has_units
                else oracle != "local_gradient" and aim.error > 0
            )
        return oracle in _OF_ONE_NAME

    @property
    def parameter(self) -> str:
        """The variable of the parameter that is looked at from the start; empty if there is
        none.
        """
        is_held = (
            not self.scope.engine.has_units
            and self.watched
            and self.aim.oracles[0] in ("gradient", "local_gradient", "parameter")
        )
        return self.aim.name.rpartition(".")[2] if is_held else ""

    def one(self) -> str:
        """The expression for the one tensor."""
        name, index = self.aim.name, self.aim.op
        assert index is not None
        match self.aim.oracles[0]:
            case "gradient" | "local_gradient" if self.scope.engine.has_units:
                return f"{at(self.scope.model, name)}.grad"
            case "gradient" | "local_gradient":
                return f"{self.parameter}.grad"
            case "parameter":
                return self.parameter
            case "registered_parameter":
                return at(self.scope.model, name)
            case "input_gradient":
                return dict(self.inputs.differentiable())[name] + ".grad"
            case "resume":
                state, _, fqn = name.partition(" of ")
                return f'optimizer.state.get({at(self.scope.model, fqn)}, {{}}).get("{state}")'
            case oracle:
                return dict(self._pairs(index, oracle))[name]

    def _unreduced(self) -> list[str]:
        """What the reference has added up without averaging it, and what the engine holds in its
        place.
        """
        name = self.aim.name
        local = f'local["{name}"]' if self.sums else f"{at(self.scope.model, name)}.grad"
        returned = [local, unreduced(self.scope)]
        if not self.aim.seeded:
            returned = [f'{{"{name}": {value}}}' for value in returned]
        line = f"return {returned[0]} if model is reference else {returned[1]}"
        if len(line) < _WIDTH:
            return [line]
        return ["if model is reference:", f"    return {returned[0]}", f"return {returned[1]}"]

    def loss(self, index: int) -> str:
        """The variable of the loss of the forward at ``index``."""
        forwards = [op for op in self.ops if op.call]
        return "loss" if len(forwards) == 1 else f"loss{index}"

    def _pairs(self, index: int, oracle: str) -> list[tuple[str, str]]:
        """Names and expressions of tensors that stand in variables of their own."""
        op = self.ops[index]
        match oracle:
            case "output":
                assert op.call is not None
                outputs = output_expressions(self.case, op.call)
                return [
                    (f"output {i} of {op.call.target or 'the root'}", o)
                    for i, o in enumerate(outputs)
                ]
            case "loss":
                return [("loss", self.loss(index))]
            case "input_gradient":
                return [
                    (name, f"{variable}.grad") for name, variable in self.inputs.differentiable()
                ]
            case _:
                return []

    def _comprehension(self, index: int, oracle: str) -> str:
        """A dict comprehension over what has a name in the model; empty for what :meth:`_pairs`
        names.
        """
        if self.scope.engine.has_units and oracle in (
            "gradient",
            "local_gradient",
            "parameter",
            "resume",
        ):
            return self._whole(index, oracle)
        over = "n, p in params.items()"
        match oracle:
            case "local_gradient" if self.sums:
                local = "local[n] if p.grad is None else p.grad + local[n]"
                value = f"({local}) if n in local else p.grad"
            case "gradient" | "local_gradient":
                value = "p.grad"
            case "parameter" | "resume" if oracle == "parameter" or self._corrupts(index):
                value = "p"
            case "resume":
                names = _STATES[self.case.optimizer.kind.removesuffix("w")]
                return self._entries(
                    index,
                    "{k} of {n}",
                    "optimizer.state.get(p, {}).get(k)",
                    f"{over} for k in {names}",
                )
            case "registered_parameter":
                self.scope.uses.add("names")
                value, over = f"{self.scope.model}.get_parameter(n)", "n in names"
            case "state_dict":
                value, over = "t", "n, t in taken.items()"
            case "buffer" if facts(self.case).batch_norms:
                self.scope.uses.add("buffer_names")
                value, over = "b", f"n, b in zip(buffer_names, {self.scope.called}.buffers())"
            case _:
                return ""
        return self._entries(index, "{n}", value, over, oracle)

    def _entries(
        self, index: int, name: str, value: str, over: str, oracle: str = "resume"
    ) -> str:
        if self.aim.op is None:
            return f'{{f"op {index} {oracle} {name}": snapshot({value}) for {over}}}'
        return f"{{{'n' if name == '{n}' else f'f{chr(34)}{name}{chr(34)}'}: {value} for {over}}}"

    def _corrupts(self, index: int) -> bool:
        return self.ops[index].corrupts

    def _gathered(self) -> list[str]:
        """The whole of one parameter, of which a rank has a part, or of its gradient."""
        gradient = self.aim.oracles[0] == "gradient"
        value = at(self.scope.model, self.aim.name)
        called = self.scope.called
        return self.scope.script.gathered_lines(self.case, called, value, gradient=gradient)

    def _whole(self, index: int, oracle: str) -> str:
        """What a rank has of parameters, gathered from its shards."""
        known = "parameter" if oracle == "resume" and self._corrupts(index) else oracle
        value = self.scope.script.whole(self.case, self.scope.called, known)
        self.scope.uses |= {"whole"}
        if self.aim.op is None:
            return f'{{f"op {index} {oracle} {{n}}": t for n, t in {value}.items()}}'
        return value
