"""Where a module means an option of an engine: the part of ``shotgun.py`` that reads syntax trees.

A word such as ``join`` or ``output`` is an option only where the part of a case that has it can be
meant. So an attribute counts where its owner can be that part: a name that is annotated with, made
of or taken from one (``for group in case.wrap``), and any owner that nothing is known of. It does
not count where the owner is known to be something else, or where it is called: no option can be.
A keyword counts in a call of the part's class and where fields are replaced. A string counts, for
the parts that the module names where several have such a field.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

HANDLES: Mapping[str, str] = {
    "ddp": "DDP",
    "fsdp1": "FSDP1",
    "optimizer": "Optimizer",
    "pipelining": "Pipelining",
    "precision": "Precision",
    "wrap": "WrapGroup",
}
"""The fields by which parts with options are reached, and their classes."""
PARTS = frozenset(HANDLES.values())
REPLACING = ("replace", "put", "change", "change_item")
"""Functions whose keywords are fields of any part."""
ELSE = frozenset[str]()
"""What an owner can be that is none of the parts."""
ANY = PARTS


MEANS_ELSE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "WrapGroup.reshard_after_forward": {
        "a flag that is switched": (
            *("parts/op", "parts/ops/set_flag"),
            "case/schedule_state",
        )
    },
    "WrapGroup.precision": {
        "a kind of mutations": ("mutate/__init__",),
        "a rung": (
            *("campaign/judge", "drafts/words", "oracles/rungs", "report/comparisons"),
            *("reproducer/from_finding", "verdict"),
        ),
        "a dimension of features": ("case/feature_names",),
    },
    "WrapGroup.offload": {
        "a dimension of features": ("case/feature_names",),
        "a word for a feature": ("case/feature_words",),
    },
    "FSDP1.offload": {
        "a dimension of features": ("case/feature_names",),
        "a word for a feature": ("case/feature_words",),
    },
    "FSDP1.precision": {
        "a dimension of features": ("case/feature_names",),
        "a kind of mutations": ("mutate/__init__",),
        "a rung": (
            *("campaign/judge", "oracles/rungs", "report/comparisons"),
            *("reproducer/from_finding", "verdict"),
        ),
    },
    "Optimizer.lr": {"a key of torch's own parameter groups": ("engines/reference/manner",)},
    "FSDP1.hook": {
        "a leak": ("oracles/after_run", "parts/oracles/leak"),
    },
    "DDP.hook": {
        "a leak": ("oracles/after_run", "parts/oracles/leak"),
    },
    "communication.hook": {"a leak": ("oracles/after_run", "parts/oracles/leak")},
    "communication.sum": {
        "a loss": ("parts/losses",),
    },
    "WrapGroup.communication": {
        "an oracle": ("parts/oracles/communication",),
        "a dimension of features": ("case/feature_names",),
    },
    "Precision.output": {"an oracle": ("parts/oracles/tensors",)},
    "DDP.buffers": {
        "what an op has changed, or an engine": (
            "parts/engine",
            "parts/engines",
            "parts/ops/abort",
            "parts/ops/forward",
            "parts/ops/states",
            "parts/oracles/tensors",
            "reproducer/forward_lines",
        ),
        "a method that no child can be called by": ("case/facts",),
    },
    "Optimizer.kind": {
        "a kind of input": ("case/features", "report/show", "training/trainer"),
        "a kind of expectation": ("case/schedule_state",),
    },
    "Optimizer.exclude": {
        "what a campaign is steered by": ("case/steering",),
        "a choice of swarms": ("parts/ops/add_param_group",),
    },
    "Optimizer.lr_scheduler": {
        "a choice of swarms": ("parts/ops/add_param_group",),
    },
}
"""What strings and names mean as well, and the modules in which they mean that and no option."""


class Mentions:
    """What a module mentions: ``(part, field)`` for each field that it reads or gives, and
    strings.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        words = {_last(n) for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)}
        words |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword | ast.arg) and n.arg}
        words |= {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        self.parts = frozenset(part for handle, part in HANDLES.items() if words & {handle, part})
        """Those that it names at all; an owner that nothing is known of is one of these."""
        self._bound: dict[str, frozenset[str]] = {}
        for _ in range(3):  # a name may be bound to one that is bound further down
            for node in ast.walk(tree):
                self._bind(node)
        self.fields = frozenset(self._fields(tree))
        self.strings = frozenset(
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        self.modules = frozenset(
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        )

    def _fields(self, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name, body=body) if name in PARTS:
                    for statement in body:
                        if isinstance(statement, ast.AnnAssign):
                            assert isinstance(statement.target, ast.Name)
                            yield name, statement.target.id
                case ast.Attribute(attr=attr, value=value) if id(node) not in self._calls:
                    yield from ((part, attr) for part in self._found(value))
                case ast.Call(keywords=keywords):
                    made = self._made(node)
                    yield from ((p, k.arg) for p in made for k in keywords if k.arg is not None)

    def _made(self, call: ast.Call) -> frozenset[str]:
        """The parts whose fields the keywords of a call can be."""
        name = _last(call.func)
        if name in PARTS:
            return frozenset((name,))
        if name not in REPLACING:
            return ELSE
        if name == "replace" and call.args:
            return self._found(call.args[0])
        return self.parts

    def _found(self, node: ast.expr) -> frozenset[str]:
        owners = self._owner(node)
        return owners & self.parts if owners == ANY else owners

    def _owner(self, node: ast.expr) -> frozenset[str]:
        """The parts that an expression can be, or that something in it can be."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Compare():
                return ELSE
            case ast.Name(id=name):
                return self._bound.get(name, ANY)
            case ast.Attribute(attr=attr) if attr in HANDLES:
                return frozenset((HANDLES[attr],))
            case ast.Subscript(value=value) | ast.Starred(value=value):
                return self._owner(value)
            case ast.Call(args=args):
                name = _last(node.func)
                if name in ("replace", "tuple", "list", "reversed", "enumerate") and args:
                    return self._owner(args[0])
                return frozenset((name,)) if name in PARTS else ANY
            case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
                return self._owner(element)
            case ast.BoolOp(values=values):
                return frozenset[str]().union(*map(self._owner, values))
            case ast.IfExp(body=body, orelse=orelse):
                return self._owner(body) | self._owner(orelse)
        return ANY

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                for alias in names:
                    self._bound[alias.asname or alias.name.partition(".")[0]] = ELSE
            case ast.arg(arg=name, annotation=annotation) if annotation is not None:
                self._add(name, _named(annotation))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                self._add(name, _named(annotation))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._add(name, self._owner(value))
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._add(name, self._owner(value))
            case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
                last = target.elts[-1] if isinstance(target, ast.Tuple) else target
                if isinstance(last, ast.Name):
                    self._add(last.id, self._owner(over))
                for other in target.elts[:-1] if isinstance(target, ast.Tuple) else ():
                    if isinstance(other, ast.Name):
                        self._add(other.id, ANY)

    def _add(self, name: str, owners: frozenset[str]) -> None:
        """One module may use a name for several things; what they all are is not known then."""
        self._bound[name] = self._bound.get(name, ELSE) | owners


def mentioned(part: str, field: str, shared: bool, module: Mentions) -> bool:
    """Whether a module means the option; with ``shared`` other parts have one of that name."""
    if (part, field) in module.fields:
        return True
    if field not in module.strings:
        return False
    return not shared or part in module.parts or not module.parts & PARTS


def _named(annotation: ast.expr) -> frozenset[str]:
    """The parts in an annotation; any, where it may be every kind of thing."""
    names = {_last(n) for n in ast.walk(annotation) if isinstance(n, ast.Name | ast.Attribute)}
    return ANY if names & {"Any", "object", "Part", "Struct", "T"} else PARTS & names


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
