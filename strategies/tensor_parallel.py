"""Tensor-parallel plans: layers by themselves, pairs of them, and norms between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, Literal, NamedTuple, TypeGuard

from msgspec.structs import replace

from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.layouts import layouts_within
from fuzzshard.analysis.tensor_parallel import plan_misfits, values_of
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve
from fuzzshard.case.options import TensorParallel
from fuzzshard.case.paths import is_within
from fuzzshard.parts.leaf import Leaf
from fuzzshard.parts.part import choices
from fuzzshard.strategies.precision import computes
from fuzzshard.strategies.tape import Tape

_DIMS: tuple[tuple[Literal[0, 1, -1] | None, int], ...] = ((None, 1), (0, 2), (1, 3), (-1, 3))
"""The dims that values are sharded along, with weights: operators reduce any dim but the first."""


_INITIAL: tuple[tuple[Any, int], ...] = (
    ("equal", 12),
    ("first_rank", 2),
    ("last_rank", 3),
    ("own", 3),
)
"""Whose values layers get, with weights."""
_SPLITTING = ("colwise", "rowwise")
_OF_BLOCKS = ("prepare", "prepare_output")
_OF_NORMS = ("rows", "sequence")


class _Use(NamedTuple):
    """A leaf or an elementwise function that a value goes through; ``path`` of a leaf that has
    parameters.
    """

    path: str
    module: Module | None
    value: str


def tensor_parallel(tape: Tape, case: Case, found: Inferred) -> tuple[TensorParallel, ...]:
    """Return a plan in which every module gets the layouts it wants; empty where there is nothing
    to split.

    A pair is a column parallel layer, elementwise functions, and a row parallel one that takes
    sharded features. Between two layers a norm may be sharded along the sequence.
    """
    if case.mesh.tensor is None:
        return ()
    plans = _tied(tape, case, found)
    of_ties = [fqn for tie in case.ties for fqn in (tie.parameter, tie.source)]
    tied = {path for path in found.leaves if any(is_within(fqn, path) for fqn in of_ties)}
    # chains with a norm first, of which a layer may be in a pair too
    for chain in sorted(_chains(case, found), key=_num_layers, reverse=True):
        parts = [use for use in chain if use.path]
        if any(use.path in plans or use.path in tied for use in parts):
            continue
        if len(parts) == 2 and tape.chance(85):
            plans |= _pair(tape, case, found, parts[0].path, parts[1].path)
        elif len(parts) == 3 and len(chain) == 3 and tape.chance(85):
            plans |= _sequence(tape, case, found, [use.path for use in parts])
    alone = [
        path
        for path, module in found.modules.items()
        if _is_split(module) and path not in plans and path not in tied
    ]
    for path in alone if not plans else tape.some(alone, 40):
        plans[path] = _alone(tape, path)
    for path, leaf in found.leaves.items():
        is_free = "dtensor" in leaf.styles and path not in plans and path not in tied
        if is_free and tape.chance(50 if leaf.has_parameters else 100):
            dim, axes = tape.weighted(_DIMS), found.input_values[path][0].dims(case.inputs.seq)
            is_even = case.inputs.batch % (case.mesh.tensor or 1) == 0
            within = 0 if dim == axes else dim
            maps = (within is None or (within == 0 and is_even)) and tape.chance(50)
            result: Any = tape.pick(choices(TensorParallel)["result"])
            plans[path] = TensorParallel(
                module=path,
                style="dtensor",
                dim=within,
                result=result,
                grad_placements=result != "style" and tape.chance(40),
                local_map=maps,
            )
    chosen = tuple(plans[path] for path in found.modules if path in plans)
    if computes(replace(case, tensor_parallel=chosen), found):
        chosen = _otherwise(tape, case, found, chosen)
        return _preparing(tape, case, found, _from_ranks(tape, chosen, tied))
    return tuple(_by_rows(path, found.leaves[path]) for path in alone)


def _preparing(
    tape: Tape, case: Case, found: Inferred, plans: tuple[TensorParallel, ...]
) -> tuple[TensorParallel, ...]:
    """``plans`` with blocks that have some of their arguments or results prepared, if there are
    any.
    """
    blocks = (p for p, module in found.modules.items() if isinstance(module, Block))
    for path in (path for path in blocks if plans and tape.chance(80)):
        for style in tape.some(_OF_BLOCKS, 75):
            made = replace(case, tensor_parallel=plans)
            for tried in _of_block(tape, made, found, path, style):
                made = replace(case, tensor_parallel=tried)
                if not any(plan_misfits(made, found)) and computes(made, found):
                    plans = tried
                    break
    return plans


def _of_block(
    tape: Tape, case: Case, found: Inferred, path: str, style: Any
) -> Iterator[tuple[TensorParallel, ...]]:
    """Yield plans with some values of a block prepared, the rarest first. Only of plain ones a
    plan has to say how they lie.
    """
    plans, block = case.tensor_parallel, found.modules[path]
    assert isinstance(block, Block)
    plan = TensorParallel(
        module=path,
        style=style,
        dim=tape.weighted(_DIMS),
        local_output=not tape.chance(70),
    )
    names, _ = values_of(plan, block, found)
    options = [*dict.fromkeys(names)]
    chosen = tuple(tape.some(options, 60) or options[:1])
    for name in chosen:
        maker = _maker(case, path, block, name, style)
        split = [p for p in plans if p.module == maker and p.style in _SPLITTING]
        parts = _layouts(case, split[0].module, found, even=True)[1:] if split else []
        if parts and tape.chance(80):
            along = tape.pick(parts)
            others = (
                replace(p, output=along, local_output=True) if p in split else p for p in plans
            )
            yield *others, replace(plan, prepared=(name,), input=along)
    calls = (call for call in layouts_within(case, found).items() if call[0][0] == path)
    values = [args if style == "prepare" else results for (_, args), results in calls]
    lie = [v for each in values for n, v in zip(names, each, strict=True) if n in chosen]
    plain = {value.sharded for value in lie if not value.is_dtensor}
    anything = (None, *(along for along in _OF_NORMS if along != "sequence" or case.inputs.seq))
    along = plain.pop() if plain else tape.pick(anything)
    plan = replace(plan, prepared=chosen, input=along or "default")
    yield *plans, plan
    yield *plans, replace(plan, dim=None, local_output=True)


def _maker(case: Case, path: str, block: Block, value: str, style: str) -> str | None:
    """Return the module whose result is a value of a block: one within it, or one beside it."""
    if style == "prepare":
        path, _, name = path.rpartition(".")
        outer, place = resolve(case.model, path), block.inputs.index(value)
        block = outer[1] if outer and isinstance(outer[1], Block) else block
        calls = (node for node in block.nodes if isinstance(node, Call) and node.module == name)
        value = next((node.args[place] for node in calls), "")
    makers = [n.module for n in block.nodes if isinstance(n, Call) and n.name == value]
    target = resolve(case.model, join(path, makers[0])) if makers else None
    return target[0] if target else None


def _num_layers(chain: list[_Use]) -> int:
    return sum(bool(use.path) for use in chain)


def _tied(tape: Tape, case: Case, found: Inferred) -> dict[str, TensorParallel]:
    """Modules that share a weight are both split along its rows, or not at all."""
    plans: dict[str, TensorParallel] = {}
    for tie in case.ties if len(case.ties) == 1 else ():
        paths = [fqn.removesuffix(".weight") for fqn in (tie.source, tie.parameter)]
        if all(_is_split(found.modules.get(path)) for path in paths) and tape.chance(60):
            plans |= {path: _by_rows(path, found.leaves[path]) for path in paths}
    return plans


def _is_split(module: Module | None) -> TypeGuard[Leaf]:
    """Return whether a module has a weight that may be split by rows or by columns."""
    return isinstance(module, Leaf) and "colwise" in module.styles


def _by_rows(path: str, leaf: Leaf) -> TensorParallel:
    if leaf.styles[0] == "rowwise":
        return TensorParallel(module=path, style="rowwise", input="replicate")
    return TensorParallel(module=path, style="colwise", output="replicate")


def _alone(tape: Tape, path: str) -> TensorParallel:
    """Full activations before and after; the defaults of a style are sharded on one side."""
    if tape.chance(50):
        return TensorParallel(module=path, style="rowwise", input="replicate")
    return TensorParallel(module=path, style="colwise", output="replicate")


def _pair(
    tape: Tape, case: Case, found: Inferred, first: str, second: str
) -> dict[str, TensorParallel]:
    """Return plans in which the second layer takes the layout that the first one gives. Of a
    DTensor it need not know: it "is already a DTensor" then (``SequenceParallel``).
    """
    local, takes_ids = not tape.chance(50), "ids" in found.leaves[second].takes
    if tape.chance(50):
        if takes_ids or not _splits(case, found, first):
            return {}
        return {
            first: TensorParallel(module=first, style="colwise", local_output=local),
            second: TensorParallel(module=second, style="rowwise"),
        }
    between = tape.pick(_layouts(case, first, found, even=local))
    taken = between if local or takes_ids else tape.pick(("default", "replicate", between))
    return {
        first: _styled(tape, first, input="replicate", output=between, local_output=local),
        second: _styled(tape, second, input=taken, output="replicate"),
    }


def _styled(tape: Tape, path: str, **layouts: Any) -> TensorParallel:
    style: Any = tape.pick(_SPLITTING)
    return TensorParallel(module=path, style=style, **layouts)


def _layouts(case: Case, path: str, found: Inferred, *, even: bool) -> list[Any]:
    """Return the layouts that the result of a module may have; ``even``: in equal parts."""
    ranks = case.mesh.tensor or 1
    sizes = {"rows": case.inputs.batch, "features": found.output_values[path][0].size}
    sizes |= {"sequence": case.inputs.seq} if case.inputs.seq else {}
    return ["replicate", *(name for name, n in sizes.items() if not (even and n % ranks))]


def _sequence(
    tape: Tape, case: Case, found: Inferred, paths: list[str]
) -> dict[str, TensorParallel]:
    first, norm, second = paths
    parts = [along for along in _layouts(case, first, found, even=True) if along in _OF_NORMS]
    if not parts:
        return {}
    along = tape.pick(parts[::-1])
    local = not tape.chance(40)
    return {
        first: TensorParallel(
            module=first, style="rowwise", input="replicate", output=along, local_output=local
        ),
        norm: TensorParallel(module=norm, style="sequence", input=along, local_output=local),
        second: TensorParallel(module=second, style="colwise", input=along, output="replicate"),
    }


def _from_ranks(
    tape: Tape, plans: tuple[TensorParallel, ...], tied: Set[str]
) -> tuple[TensorParallel, ...]:
    """Return ``plans`` with layers that get their values from one rank, or each from its own."""
    initial = tape.weighted(_INITIAL)
    split = (plan for plan in plans if plan.style in _SPLITTING and plan.module not in tied)
    chosen = tape.some([*split], 70) if initial != "equal" else []
    return tuple(replace(plan, initial=initial) if plan in chosen else plan for plan in plans)


def _otherwise(
    tape: Tape, case: Case, found: Inferred, plans: tuple[TensorParallel, ...]
) -> tuple[TensorParallel, ...]:
    """Return ``plans`` in which some layers give DTensors of any layout to those that take them,
    and some count dims from the end.
    """
    for index, plan in enumerate(plans):
        if plan.style not in (*_SPLITTING, "sequence"):
            continue
        output = tape.pick(_layouts(case, plan.module, found, even=False))
        tried = replace(plan, output=output, local_output=False)
        options = [tried] if plan.style in _SPLITTING and tape.chance(40) else []
        counted = [replace(p, from_end=True) for p in (*options, plan) if tape.chance(40)]
        for changed in (*counted, *options):
            others = (*plans[:index], changed, *plans[index + 1 :])
            made = replace(case, tensor_parallel=others)
            if not any(plan_misfits(made, found)) and computes(made, found):
                plans = others
                break
    return plans


def _splits(case: Case, found: Inferred, path: str) -> bool:
    """Return whether the features of a result are split evenly: a local result does not tell the
    sizes of others.
    """
    return found.output_values[path][0].size % (case.mesh.tensor or 1) == 0


def _chains(case: Case, found: Inferred) -> list[list[_Use]]:
    """Runs of leaves and elementwise functions, each the only reader of the one before: layer to
    layer.
    """
    calls: Counter[str] = Counter()
    blocks = [(p, m) for p, m in found.modules.items() if isinstance(m, Block)]
    for path, block in blocks:
        for node in block.nodes:
            for name in node.modules if isinstance(node, Call) else ():
                if target := resolve(case.model, join(path, name)):
                    calls[target[0]] += 1
    return [chain for path, block in blocks for chain in _chains_of(case, path, block, calls)]


def _chains_of(case: Case, path: str, block: Block, calls: Counter[str]) -> list[list[_Use]]:
    readers = Counter([*(a for n in block.nodes for a in n.args), *block.outputs])
    after = {n.args[0]: n for n in block.nodes if len(n.args) == 1}
    chains = []
    for node in block.nodes:
        start = _use(case, path, node, calls)
        if start is None or not _is_split(start.module):
            continue
        chain = [start]
        while (
            len(chain) < 4
            and readers[chain[-1].value] == 1
            and (reader := after.get(chain[-1].value))
        ):
            use = _use(case, path, reader, calls)
            if use is None:
                break
            chain.append(use)
            if _is_split(use.module) and "ids" not in use.module.takes:
                chains.append(chain)
                break
    return chains


def _use(case: Case, path: str, node: Any, calls: Counter[str]) -> _Use | None:
    if isinstance(node, TensorOp):
        return _Use("", None, node.name) if node.op in ("relu", "tanh") else None
    if node.alternatives or not node.grad:
        return None
    target = resolve(case.model, join(path, node.module))
    if target is None or not isinstance(target[1], Leaf):
        return None
    if "elementwise" in target[1].styles or target[1].drops == 0:
        return _Use("", None, node.name)
    splits = {"colwise", "sequence"}.intersection(target[1].styles)
    return _Use(*target, node.name) if splits and calls[target[0]] == 1 else None
