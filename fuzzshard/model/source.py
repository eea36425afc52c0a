"""Case -> the Python source of its model. The source that ran is the source the reproducer prints.

Needs no torch: the coordinator prints scripts, ranks execute the same text.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator

from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    TensorOp,
    join,
    resolve,
    walk,
)
from fuzzshard.model.expressions import (
    OP_HELPERS,
    call_expression,
    class_name,
    constructor,
    input_class,
    is_checkpointed_at_call,
    output_class,
    result_expression,
)
from fuzzshard.parts.statements import made_lines


class _BlockSource:
    """Writes one block as a class."""

    def __init__(self, case: Case, found: Inferred, path: str, block: Block) -> None:
        self.case, self.found, self.path, self.block = case, found, path, block
        self.results: dict[str, Block] = {}

    def source(self) -> str:
        init = textwrap.indent("\n".join(self.init_lines()), " " * 8)
        body = textwrap.indent("\n".join(self.forward_lines()), " " * 8)
        signature = ", ".join(self.block.inputs) if self.block.passing in _ARGUMENTS else "inputs"
        forwarded = ""
        if self.block.has_method:
            args = (
                ", ".join(f"{n}={n}" for n in self.block.inputs)
                if signature != "inputs"
                else "inputs"
            )
            forwarded = (
                f"\n    def forward(self, {signature}):\n        return "
                f"self.{self.block.method}({args})\n"
            )
        return (
            f"{self.structures()}"
            f"class {class_name(self.path)}(nn.Module):\n"
            f"    def __init__(self):\n        super().__init__()\n{init}\n\n"
            f"    def {self.block.method}(self, {signature}):\n{body}\n{forwarded}"
        ).replace("\n\n\n    def", "\n\n    def")

    def structures(self) -> str:
        """Return the classes of structured inputs and outputs."""
        outputs = [f"out{i}" for i in range(len(self.block.outputs))]
        parts = []
        if self.block.passing == "dataclass":
            parts.append(_dataclass(input_class(self.path), self.block.inputs))
        if self.block.returns == "dataclass":
            parts.append(_dataclass(output_class(self.path), outputs))
        if self.block.returns == "namedtuple":
            name = output_class(self.path)
            parts.append(f'{name} = collections.namedtuple("{name}", "{" ".join(outputs)}")\n\n\n')
        return "".join(parts)

    def init_lines(self) -> list[str]:
        lines = []
        if any(isinstance(node, Call) and node.alternatives for node in self.block.nodes):
            lines.append("self.path = 0")
        for child in self.block.children:
            if isinstance(child.module, Alias):
                continue
            path = join(self.path, child.name)
            width = self.found.width(path)
            made = constructor(child.module, width, class_name(path))
            lines += made_lines(f"self.{child.name}", made)
        if not self.path:
            for path, module in walk(self.case.model):
                if isinstance(module, Alias):
                    lines.append(f"self.{path} = self.{module.target}")
            lines += [f"self.{tie.parameter} = self.{tie.source}" for tie in self.case.ties]
        return lines

    def forward_lines(self) -> list[str]:
        lines = self.unpacking()
        for node in self.block.nodes:
            if isinstance(node, TensorOp):
                lines.append(f"{node.name} = {self.tensor_op(node)}")
                continue
            statements = self.call(node)
            if not node.grad:
                statements = ["with torch.no_grad():", *(f"    {line}" for line in statements)]
            lines += statements
        values = [self.read(v) for v in self.block.outputs]
        match self.block.returns:
            case "tensor":
                result = values[0]
            case "tuple":
                result = f"({', '.join(values)}{',' if len(values) == 1 else ''})"
            case "list":
                result = f"[{', '.join(values)}]"
            case "dict":
                result = "{" + ", ".join(f'"out{i}": {v}' for i, v in enumerate(values)) + "}"
            case "namedtuple" | "dataclass":
                result = f"{output_class(self.path)}({', '.join(values)})"
        return [*lines, f"return {result}"]

    def unpacking(self) -> list[str]:
        """Statements that take structured inputs apart."""
        names = self.block.inputs
        match self.block.passing:
            case "tuple":
                return [f"{', '.join(names)}{',' if len(names) == 1 else ''} = inputs"]
            case "dict":
                return [f'{name} = inputs["{name}"]' for name in names]
            case "dataclass":
                return [f"{name} = inputs.{name}" for name in names]
            case _:
                return []

    def call(self, node: Call) -> list[str]:
        calls = [f"{node.name} = {self.call_of(node, name)}" for name in node.modules]
        if len(calls) == 1:
            return calls
        lines = []
        for number, call in enumerate(calls):
            test = "if" if not number else "elif"
            lines += [f"{test} self.path == {number}:", f"    {call}"]
        return lines

    def call_of(self, node: Call, name: str) -> str:
        target = resolve(self.case.model, join(self.path, name))
        assert target is not None
        path, module = target
        if isinstance(module, Block):
            self.results[node.name] = module
        args = [self.read(a) for a in node.args]
        callee = f"self.{name}"
        checkpointed = is_checkpointed_at_call(self.case, path)
        return call_expression(
            module, callee, args, self.case.inputs.seq, path=path, checkpointed=checkpointed
        )

    def read(self, value: str) -> str:
        name, _, index = value.partition(".")
        return result_expression(self.results[name], name, int(index)) if index else name

    def tensor_op(self, node: TensorOp) -> str:
        args = [self.read(a) for a in node.args]
        match node.op:
            case "add":
                return " + ".join(args)
            case "mul":
                return " * ".join(args)
            case "concat":
                return f"torch.cat([{', '.join(args)}], dim=-1)"
            case "detach":
                return f"{args[0]}.detach()"
            case "iadd":
                return f"add_in_place({', '.join(args)})"
            case "attend":
                return f"attend({', '.join(args)}, {node.head_dim})"
            case _:
                return f"torch.{node.op}({args[0]})"


_ARGUMENTS = ("positional", "keyword")
"""The ways of passing by which ``forward`` has one parameter for every input."""


def _dataclass(name: str, fields: Iterable[str]) -> str:
    listed = "".join(f"    {field}: torch.Tensor\n" for field in fields)
    return f"@dataclasses.dataclass\nclass {name}:\n{listed}\n\n"


def _leaf_helpers(found: Inferred) -> Iterator[str]:
    for path, leaf in found.leaves.items():
        name = leaf.constructor(found.width(path)).partition("(")[0]
        yield from (text for text in leaf.helpers if f"class {name}(" in text)


def _tensor_op_helpers(found: Inferred) -> Iterator[str]:
    for module in found.modules.values():
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, TensorOp) and node.op in OP_HELPERS:
                yield OP_HELPERS[node.op]


@functools.lru_cache(maxsize=256)
def model_source(case: Case) -> str:
    """Return class definitions for the model, the root last as ``Model``.

    Expects ``torch`` and ``nn`` in scope, ``collections``, ``dataclasses`` and, as
    ``checkpointed``, ``torch.utils.checkpoint.checkpoint``.
    """
    found = inferred(case)
    helpers = dict.fromkeys(_leaf_helpers(found))
    helpers |= dict.fromkeys(_tensor_op_helpers(found))
    blocks = [(p, m) for p, m in found.modules.items() if isinstance(m, Block)]
    classes = [_BlockSource(case, found, path, block).source() for path, block in reversed(blocks)]
    return "\n\n".join(text.strip() + "\n" for text in (*helpers, *classes))
