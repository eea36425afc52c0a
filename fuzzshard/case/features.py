"""Which features a Case really has, computed from the Case and not from what drew it.

Features name what can interact: two bugs that need the same features are reached by the same draws.
The campaign counts features, pairs and triples of them; tests of the generator bound their frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.feature_names import FEATURES
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    Linear,
    RawParameter,
    join,
    resolve,
    value_node,
    walk,
)
from fuzzshard.case.paths import enclosing, is_within
from fuzzshard.case.schedule import Backward, Forward, SetFlag, SetMode, SetRequiresGrad, Step, ZeroGrad

ALL_FEATURES: tuple[str, ...] = tuple(FEATURES)
"""Every feature, grouped by dimension; :data:`FEATURES` says what each is."""


def features(case: Case) -> frozenset[str]:
    """The features of a valid Case; raises :class:`InvalidCase` where its graph does not fit together."""
    found = facts(case)
    return frozenset(
        (
            *_leaves(found),
            *_dims(case, found),
            *_edges(case, found),
            *_reuse(case),
            *_wrapping(case, found),
            *_freezing(case, found),
            *_mesh(case),
            *_schedule(case),
            *_settings(case),
        )
    )


def _leaves(found: Facts) -> Iterator[str]:
    for module in found.modules.values():
        match module:
            case Linear(bias=False):
                yield "leaf:linear_no_bias"
            case RawParameter(matrix=True):
                yield "leaf:raw_matrix"
            case Block() | Alias():
                pass
            case leaf:
                yield f"leaf:{leaf.__struct_config__.tag}"


def _dims(case: Case, found: Facts) -> Iterator[str]:
    rows = {shape[0] for shape in found.parameters.values()}
    if any(n % case.mesh.shard for n in rows):
        yield "dim:uneven"
    if min(rows) < case.mesh.shard:
        yield "dim:smaller_than_mesh"
    if 1 in rows:
        yield "dim:one"
    if all(n & (n - 1) == 0 for n in rows):
        yield "dim:power_of_two"


def _edges(case: Case, found: Facts) -> Iterator[str]:
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
            yield f"edge:{module.returns}"
        for node in module.nodes:
            if node.name not in read_nodes:
                yield "edge:unused_value"
            if not isinstance(node, Call):
                yield f"edge:{names.get(node.op, node.op)}"
            elif _unread_results(case, path, node, set(reads)):
                yield "edge:unused_output"
    if len(found.called) < len(found.modules):
        yield "edge:unused_module"
    for op in case.schedule:
        if isinstance(op, Forward) and op.grad and _ignores_outputs(op, found):
            yield "edge:unused_output"


def _ignores_outputs(op: Forward, found: Facts) -> bool:
    return op.outputs is not None and len(set(op.outputs)) < len(found.output_values[op.target])


def _unread_results(case: Case, path: str, call: Call, reads: set[str]) -> bool:
    target = resolve(case.model, join(path, call.module))
    if target is None or not isinstance(block := target[1], Block) or len(block.outputs) < 2:
        return False
    return any(f"{call.name}.{i}" not in reads for i in range(len(block.outputs)))


def _reuse(case: Case) -> Iterator[str]:
    wrapped = {module: i for i, group in enumerate(case.wrap) for module in group.modules}
    for tie in case.ties:
        above = [enclosing(fqn, wrapped) for fqn in (tie.parameter, tie.source)]
        first, second = (None if path is None else wrapped[path] for path in above)
        if first is not None and first == second:
            yield "reuse:tied_in_group"
        elif first != second:
            yield "reuse:tied_across_groups"
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


def _wrapping(case: Case, found: Facts) -> Iterator[str]:
    wrapped = [m for group in case.wrap for m in group.modules]
    if len(case.wrap) > 1:
        yield "wrap:several_groups"
    if any(len(group.modules) > 1 for group in case.wrap):
        yield "wrap:list_group"
    if any(a and a != b and is_within(b, a) for a in wrapped for b in wrapped):
        yield "wrap:nested"
    if wrapped:
        yield "wrap:root" if "" in wrapped else "wrap:root_not_wrapped"
    if None in found.owners.values():
        yield "wrap:parameter_in_no_group"
    for group in case.wrap:
        raf = group.reshard_after_forward
        yield f"reshard:{str(raf).lower()}" if raf is None or isinstance(raf, bool) else "reshard:int"
    for checkpoint in case.checkpoints:
        yield f"checkpoint:{checkpoint.implementation}"


def _freezing(case: Case, found: Facts) -> Iterator[str]:
    for freeze in case.freezes:
        yield "freeze:parameter" if freeze.target in found.parameters else "freeze:module"
        yield "freeze:after_wrap" if freeze.after_wrap else "freeze:before_wrap"
    kinds: dict[int, set[bool]] = {}
    for fqn, owner in found.owners.items():
        if owner is not None:
            frozen = any(is_within(fqn, freeze.target) for freeze in case.freezes)
            kinds.setdefault(owner, set()).add(frozen)
    if any(len(kind) == 2 for kind in kinds.values()):
        yield "freeze:mixed_group"
    for op in case.schedule:
        if isinstance(op, SetRequiresGrad):
            yield "freeze:toggled_on" if op.value else "freeze:toggled_off"


def _mesh(case: Case) -> Iterator[str]:
    yield f"mesh:{case.mesh.size}" if case.mesh.size <= 4 else "mesh:larger"
    if case.mesh.replicate is not None:
        yield "mesh:axis_of_one" if 1 in (case.mesh.shard, case.mesh.replicate) else "mesh:hsdp"


def _schedule(case: Case) -> Iterator[str]:
    modules = frozenset(m for group in case.wrap for m in group.modules) or frozenset(("",))
    off: dict[str, set[str]] = {}
    pending = steps = backwards = 0
    training, zeroed, unsynced = True, True, False
    for op in case.schedule:
        match op:
            case SetMode(train=training):
                pass
            case SetFlag():
                chosen = {m for m in modules if (is_within(m, op.target) if op.recurse else m == op.target)}
                before = off.get(op.flag, set())
                off[op.flag] = before - chosen if op.value else before | chosen
            case Forward():
                pending += op.grad
                yield from _forward(op, training=training)
            case Backward():
                if pending > 1:
                    yield "reuse:two_forwards"
                    if op.which != "all":
                        yield f"schedule:backward_{op.which}"
                pending = 0 if op.which == "all" else pending - 1
                backwards += 1
                if backwards > 1:
                    yield "schedule:microbatches"
                unsynced = bool(off.get("requires_gradient_sync"))
                yield from _backward(off, modules)
            case Step():
                steps, backwards = steps + 1, 0
                if steps > 1:
                    yield "schedule:several_steps"
                    if not zeroed:
                        yield "schedule:no_zero_grad"
                if unsynced:
                    yield "schedule:step_unsynced"
                zeroed = False
            case ZeroGrad(set_to_none=to_none):
                zeroed = True
                yield f"schedule:zero_grad_to_{'none' if to_none else 'zero'}"


def _forward(op: Forward, *, training: bool) -> Iterator[str]:
    if not op.grad:
        yield "schedule:no_grad_forward"
    if not training:
        yield "schedule:eval_forward"
    if op.target:
        yield "schedule:non_root_forward"


def _backward(off: dict[str, set[str]], modules: frozenset[str]) -> Iterator[str]:
    if silent := off.get("requires_gradient_sync"):
        yield "schedule:no_sync" if silent == modules else "schedule:partial_sync"
    if off.get("requires_all_reduce"):
        yield "schedule:no_all_reduce"
    if off.get("is_last_backward"):
        yield "schedule:not_last_backward"
    if off.get("reshard_after_backward"):
        yield "schedule:no_reshard"


def _settings(case: Case) -> Iterator[str]:
    yield f"optimizer:{case.optimizer.kind}"
    if case.optimizer.momentum:
        yield "optimizer:momentum"
    if case.optimizer.weight_decay:
        yield "optimizer:weight_decay"
    yield f"dtype:{case.dtype}"
    yield f"values:{case.values}"
    yield f"loss:{case.loss}"
    if case.inputs.seq:
        yield "input:sequence"
    if len(case.inputs.tensors) > 1:
        yield "input:several"
    for tensor in case.inputs.tensors:
        if tensor.kind == "ids":
            yield "input:ids"
        if tensor.requires_grad:
            yield "input:requires_grad"
