"""What follows from a Case without running it: widths, parameter shapes, owners of parameters.

:func:`inferred` is the one place where widths are inferred. It raises :class:`InvalidCase` where
the graph does not fit together, with the path and the two widths.
"""

from __future__ import annotations

import dataclasses
import functools
import keyword
import re
from collections.abc import Mapping

from fuzzshard.analysis.widths import DEFAULT_WIDTH, Inference
from fuzzshard.case.case import Case, Inputs, Tie, WrapGroup
from fuzzshard.case.graph import (
    Alias,
    Block,
    Module,
    TensorOp,
    join,
    modules_below,
    resolve,
    walk,
)
from fuzzshard.case.paths import is_within
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf, Role, Value
from fuzzshard.parts.part import Shape

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_RESERVED = {
    *(
        "self",
        "torch",
        "nn",
        "model",
        "forward",
        "train",
        "eval",
        "training",
        "to",
        "type",
        "half",
    ),
    *("float", "double", "cpu", "cuda", "apply", "compile", "modules", "parameters", "buffers"),
    *("children", "state_dict", "unshard", "reshard", "module", "path", "inputs"),
}
"""Names that would shadow what the generated source or ``nn.Module`` itself uses."""


@dataclasses.dataclass(frozen=True)
class Inferred:
    """What is inferred of a Case. All paths are canonical: aliases and ties are resolved."""

    modules: Mapping[str, Module]
    """Every module by path, parents first, in registration order; without aliases."""
    input_values: Mapping[str, tuple[Value, ...]]
    """What each module is called with."""
    output_values: Mapping[str, tuple[Value, ...]]
    """What each module returns."""
    parameters: Mapping[str, Shape]
    """Every distinct parameter by the FQN that ``named_parameters`` gives it, in that order."""
    called: frozenset[str]
    """Modules that a forward of the root calls."""
    owners: Mapping[str, int | None]
    """The wrap group (index into ``case.wrap``) that manages each parameter; None if no group
    does.
    """

    @functools.cached_property
    def leaves(self) -> Mapping[str, Leaf]:
        """The modules that are leaves."""
        return {path: module for path, module in self.modules.items() if isinstance(module, Leaf)}

    @functools.cached_property
    def updated(self) -> frozenset[str]:
        """The leaves that change their buffers."""
        return frozenset(path for path, leaf in self.leaves.items() if leaf.buffers == "updated")

    @functools.cached_property
    def hides_buffers(self) -> bool:
        """Whether some buffer is in no state dict."""
        return any(leaf.hides_buffers for leaf in self.leaves.values())

    @functools.cached_property
    def has_buffers(self) -> bool:
        """Whether there are any."""
        return any(leaf.buffers != "none" for leaf in self.leaves.values())

    def inner(self, role: Role) -> Mapping[str, str]:
        """Return the modules within leaves that engines replace in a role, by the leaves."""
        leaves = self.leaves.items()
        return {path: join(path, leaf.inner[role]) for path, leaf in leaves if role in leaf.inner}

    @functools.cached_property
    def by_method(self) -> Mapping[str, Block]:
        """The blocks of which callers call another method than ``forward``."""
        return {p: m for p, m in self.modules.items() if isinstance(m, Block) and m.has_method}

    @functools.cached_property
    def adds_in_place(self) -> bool:
        """Whether some block changes a tensor in place."""
        blocks = (module for module in self.modules.values() if isinstance(module, Block))
        nodes = (node for block in blocks for node in block.nodes)
        return any(isinstance(node, TensorOp) and node.op == "iadd" for node in nodes)

    def width(self, path: str) -> int:
        """Return the width of the first value that a module is called with."""
        values = self.input_values[path]
        return values[0].size if values else DEFAULT_WIDTH


def _all_parameters(model: Block, ties: tuple[Tie, ...], inference: Inference) -> dict[str, Shape]:
    """Parameters in ``named_parameters`` order with ties removed; checks the ties."""
    shapes: dict[str, Shape] = {}
    for path, module in walk(model):
        if isinstance(module, Leaf):
            width = inference.inputs[path][0].size
            shapes |= {join(path, n): s for n, s in module.parameters(width).items()}
    for tie in ties:
        for fqn in (tie.parameter, tie.source):
            if fqn not in shapes:
                raise InvalidCase(
                    f"tied parameter {fqn!r} does not exist or is tied already", "remove the tie"
                )
        if shapes[tie.parameter] != shapes[tie.source] or tie.parameter == tie.source:
            raise InvalidCase(
                f"cannot tie {tie.parameter!r} {shapes[tie.parameter]} to "
                f"{tie.source!r} {shapes[tie.source]}",
                "tie parameters of one shape",
            )
        if any(tie.parameter == other.source for other in ties):
            raise InvalidCase(
                f"tied parameter {tie.parameter!r} is the source of another tie",
                "tie to its source",
            )
        order = list(shapes)
        if order.index(tie.source) > order.index(tie.parameter):
            raise InvalidCase(
                f"tie source {tie.source!r} comes after {tie.parameter!r}", "swap the two"
            )
        del shapes[tie.parameter]
    return shapes


@functools.lru_cache(maxsize=512)  # schedules and most options make no difference
def _owners(
    model: Block,
    ties: tuple[Tie, ...],
    wrap: tuple[WrapGroup, ...],
    ignored: tuple[str, ...],
    parameters: tuple[str, ...],
) -> dict[str, int | None]:
    """``fully_shard`` manages the parameters of a module that an earlier call does not manage yet.

    A module or parameter registered at several places belongs to the group that is applied first
    (``_get_managed_modules`` in torch/distributed/fsdp/_fully_shard/_fsdp_init.py).
    """
    places: dict[str, list[str]] = {fqn: [fqn] for fqn in parameters}
    for tie in ties:
        places[tie.source].append(tie.parameter)
    for path, module in walk(model):
        if isinstance(module, Alias):
            for fqn in parameters:
                if is_within(fqn, module.target):
                    places[fqn].append(path + fqn[len(module.target) :])
    owners: dict[str, int | None] = dict.fromkeys(parameters)
    for index, group in enumerate(wrap):
        for fqn, paths in places.items():
            if any(is_within(p, each) for p in paths for each in ignored):
                continue
            if owners[fqn] is None and any(is_within(p, m) for p in paths for m in group.modules):
                owners[fqn] = index
    return owners


@functools.lru_cache(maxsize=512)
def inferred(case: Case) -> Inferred:
    """Infers everything; raises :class:`InvalidCase` where the graph does not fit together."""
    found = infer(case.model, case.inputs, case.ties)
    owners = _owners(case.model, case.ties, case.wrap, case.ignored, (*found.parameters,))
    return dataclasses.replace(found, owners=owners)


@functools.lru_cache(maxsize=512)  # cases that are drawn or shrunk differ in other things
def infer(model: Block, inputs: Inputs, ties: tuple[Tie, ...]) -> Inferred:
    """Infers what all cases with these have in common: everything but the owners."""
    _check_names(model)
    inference = Inference(model, inputs)
    called = inference.run()
    parameters = _all_parameters(model, ties, inference)
    return Inferred(
        modules={p: m for p, m in walk(model) if not isinstance(m, Alias)},
        input_values=inference.inputs,
        output_values=inference.outputs,
        parameters=parameters,
        called=called,
        owners=dict.fromkeys(parameters),
    )


def updates_buffers(case: Case, path: str) -> bool:
    """Return whether a module at or below ``path`` changes buffers, as its recomputation does."""
    return not inferred(case).updated.isdisjoint(modules_below(case.model, path))


def _check_names(root: Block) -> None:
    for path, module in walk(root):
        if isinstance(module, Alias) and resolve(root, path) is None:
            raise InvalidCase(
                f"alias {path!r} names {module.target!r}, which is not there", "remove it"
            )
        if not isinstance(module, Block):
            continue
        names = [c.name for c in module.children]
        methods = [module.method] if module.has_method else []
        local = [*module.inputs, *(n.name for n in module.nodes), *methods]
        for name in (*names, *local):
            if not _PLAIN_NAME.fullmatch(name) or name in _RESERVED or keyword.iskeyword(name):
                raise InvalidCase(f"{name!r} in block {path!r} is not a usable name", "rename it")
        if len(set(names)) < len(names):
            raise InvalidCase(f"block {path!r} registers a name twice", "rename a child")
        if module.method in names:
            raise InvalidCase(
                f"block {path!r} has a child and a method {module.method!r}", "rename one"
            )
