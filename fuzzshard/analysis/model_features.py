"""Features of the model of a Case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.adapters import adapters
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Alias, Block, Call, join, resolve, value_node, walk
from fuzzshard.case.paths import enclosing


def leaf_features(found: Inferred) -> Iterator[str]:
    """Yield kinds of leaves."""
    for path, leaf in found.leaves.items():
        width = found.width(path)
        yield from (f"leaf:{kind.name}" for kind in leaf.kinds if kind.of(leaf, width))


def dim_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield how the rows of parameters relate to the shard axis."""
    rows = {shape[0] for shape in found.parameters.values()}
    if any(n % case.mesh.shard for n in rows):
        yield "dim:uneven"
    if min(rows, default=case.mesh.shard) < case.mesh.shard:
        yield "dim:smaller_than_mesh"
    if 1 in rows:
        yield "dim:one"
    if rows and all(n & (n - 1) == 0 for n in rows):
        yield "dim:power_of_two"


def edge_features(case: Case, found: Inferred) -> Iterator[str]:
    """Yield what the forward DAGs have, and how blocks take and return values."""
    names = {"add": "residual"}
    for path, module in found.modules.items():
        if not isinstance(module, Block):
            continue
        reads = Counter((*(a for n in module.nodes for a in n.args), *module.outputs))
        read_nodes = {value_node(v) for v in reads}
        if max(reads.values()) > 1:
            yield "edge:branch"
        if path:
            yield "edge:nested_block"
        if len(module.outputs) > 1:
            yield "edge:several_outputs"
        if module.returns != "tensor":
            yield f"returns:{module.returns}"
        if module.passing != "positional":
            yield f"passing:{module.passing}"
        if module.has_method:
            yield "edge:method"
        for node in module.nodes:
            if node.name not in read_nodes:
                yield "edge:unused_value"
            if not isinstance(node, Call):
                yield f"edge:{names.get(node.op, node.op)}"
                continue
            if node.alternatives:
                yield "edge:alternatives"
            if not node.grad:
                yield "edge:no_grad_call"
            if _unread_results(case, path, node, set(reads)):
                yield "edge:unused_output"
    if any(adapters(case.model)):
        yield "edge:adapter"
    if len(found.called) < len(found.modules):
        yield "edge:unused_module"
    for call in (op.call for op in case.schedule):
        if call and call.grad:
            outputs = len(found.output_values[call.target])
            if len(set(call.used(outputs))) < outputs:
                yield "edge:unused_output"


def _unread_results(case: Case, path: str, call: Call, reads: set[str]) -> bool:
    target = resolve(case.model, join(path, call.module))
    if target is None or not isinstance(block := target[1], Block) or len(block.outputs) < 2:
        return False
    return any(f"{call.name}.{i}" not in reads for i in range(len(block.outputs)))


def reuse_features(case: Case) -> Iterator[str]:
    """Yield what is used twice."""
    wrapped = {module: i for i, group in enumerate(case.wrap) for module in group.modules}
    for tie in case.ties:
        above = [enclosing(fqn, wrapped) for fqn in (tie.parameter, tie.source)]
        first, second = (None if path is None else wrapped[path] for path in above)
        yield "reuse:tied_in_group" if first == second else "reuse:tied_across_groups"
    with_grad: dict[str, set[bool]] = {}
    for path, module in walk(case.model):
        if isinstance(module, Alias):
            yield "reuse:alias"
        if not isinstance(module, Block):
            continue
        calls = [n for n in module.nodes if isinstance(n, Call)]
        if len({c.module for c in calls}) < len(calls):
            yield "reuse:repeated_call"
        for call in calls:
            if target := resolve(case.model, join(path, call.module)):
                with_grad.setdefault(target[0], set()).add(call.grad)
    if any(len(kinds) == 2 for kinds in with_grad.values()):
        yield "reuse:no_grad_retraversal"
