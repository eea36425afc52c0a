"""Which features a Case really has, computed from the Case and not from what drew it.

Features name what can interact: two bugs that need the same features are reached by the same draws.
The campaign counts features, pairs and triples of them; tests of the generator bound their frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, enclosing, facts, is_within
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
from fuzzshard.case.schedule import Backward, Forward, SetFlag, SetMode, SetRequiresGrad, Step, ZeroGrad

_DOCUMENTED: dict[str, str] = {
    "leaf:linear": "an nn.Linear with a bias",
    "leaf:linear_no_bias": "an nn.Linear without",
    "leaf:layer_norm": "an nn.LayerNorm",
    "leaf:rms_norm": "an nn.RMSNorm",
    "leaf:batch_norm": "an nn.BatchNorm1d: buffers",
    "leaf:embedding": "an nn.Embedding",
    "leaf:conv1d": "an nn.Conv1d",
    "leaf:raw_parameter": "a module that owns a vector nn.Parameter",
    "leaf:raw_matrix": "a module that owns a matrix nn.Parameter",
    "leaf:mlp": "a two-layer perceptron",
    "leaf:attention": "self-attention",
    "leaf:dropout": "an nn.Dropout",
    "leaf:activation": "a module without parameters",
    "dim:uneven": "some parameter's dim 0 is not divisible by the shard axis",
    "dim:smaller_than_mesh": "some parameter's dim 0 is smaller than the shard axis",
    "dim:one": "some parameter's dim 0 is 1",
    "dim:power_of_two": "every parameter's dim 0 is a power of two",
    "edge:residual": "an addition",
    "edge:mul": "an elementwise product",
    "edge:concat": "a concatenation",
    "edge:detach": "a detached value",
    "edge:relu": "a relu between modules",
    "edge:tanh": "a tanh between modules",
    "edge:branch": "a value that is read twice",
    "edge:several_outputs": "a block that returns several values",
    "edge:unused_output": "an output that is not read or does not enter the loss",
    "edge:unused_value": "a node that nothing reads",
    "edge:unused_module": "a module that no forward of the root calls",
    "edge:nested_block": "a block within a block",
    "edge:tuple": "a block that returns a tuple",
    "edge:dict": "a block that returns a dict",
    "reuse:repeated_call": "a block calls one child twice",
    "reuse:alias": "a module registered at two places",
    "reuse:tied_in_group": "two names of one parameter within one wrap group",
    "reuse:tied_across_groups": "two names of one parameter in different wrap groups",
    "reuse:no_grad_retraversal": "a module called both with and without gradients in one forward",
    "reuse:two_forwards": "a backward while two forwards are pending",
    "wrap:several_groups": "two wrap groups or more",
    "wrap:list_group": "one fully_shard call for several modules",
    "wrap:nested": "a wrapped module other than the root has a wrapped module below it",
    "wrap:root": "the root is wrapped",
    "wrap:root_not_wrapped": "groups, but not the root",
    "wrap:parameter_in_no_group": "a parameter that no group manages",
    "reshard:none": "reshard_after_forward=None",
    "reshard:true": "reshard_after_forward=True",
    "reshard:false": "reshard_after_forward=False",
    "reshard:int": "reshard_after_forward=<int>",
    "freeze:parameter": "a parameter frozen from the start",
    "freeze:module": "a module frozen from the start",
    "freeze:before_wrap": "frozen before wrapping",
    "freeze:after_wrap": "frozen after wrapping",
    "freeze:toggled_on": "requires_grad_(True) during training",
    "freeze:toggled_off": "requires_grad_(False) during training",
    "freeze:mixed_group": "frozen and trainable parameters in one wrap group",
    "mesh:1": "one rank",
    "mesh:2": "two ranks",
    "mesh:3": "three ranks",
    "mesh:4": "four ranks",
    "mesh:larger": "more than four ranks",
    "mesh:hsdp": "a 2D mesh with both axes larger than 1",
    "mesh:axis_of_one": "a 2D mesh with an axis of size 1",
    "schedule:several_steps": "two optimizer steps or more",
    "schedule:microbatches": "two backwards before one step",
    "schedule:no_sync": "a backward that synchronises no group",
    "schedule:partial_sync": "a backward that synchronises some groups only",
    "schedule:no_all_reduce": "a backward with requires_all_reduce off somewhere",
    "schedule:not_last_backward": "a backward with is_last_backward off",
    "schedule:no_reshard": "a backward with reshard_after_backward off",
    "schedule:step_unsynced": "a step after a backward that did not synchronise everything",
    "schedule:zero_grad_to_none": "gradients zeroed by removing them",
    "schedule:zero_grad_to_zero": "gradients zeroed in place",
    "schedule:no_zero_grad": "two steps with no zero_grad between them",
    "schedule:no_grad_forward": "a forward under no_grad",
    "schedule:eval_forward": "a forward in eval mode",
    "schedule:non_root_forward": "a forward of a module below the root",
    "schedule:backward_oldest": "a backward of the oldest of several pending losses",
    "schedule:backward_newest": "a backward of the newest of several pending losses",
    "optimizer:sgd": "SGD",
    "optimizer:momentum": "SGD with momentum",
    "optimizer:weight_decay": "any optimizer with weight decay",
    "optimizer:adam": "Adam",
    "optimizer:adamw": "AdamW",
    "dtype:float32": "single precision",
    "dtype:float64": "double precision",
    "values:gaussian": "gaussian values",
    "values:dyadic": "small integers times powers of two",
    "loss:sum": "the sum of the outputs",
    "loss:dot": "a dot product with a target",
    "loss:mean_square": "the mean square distance to a target",
    "checkpoint:composable": "activation checkpointing by the composable API",
    "checkpoint:wrapper": "activation checkpointing by the wrapper",
    "input:sequence": "inputs with a sequence axis",
    "input:ids": "an integer input",
    "input:several": "two inputs or more",
    "input:requires_grad": "an input that requires a gradient",
}

ALL_FEATURES: tuple[str, ...] = tuple(_DOCUMENTED)
"""Every feature, grouped by dimension."""


def describe(feature: str) -> str:
    """One line that says what a feature is."""
    return _DOCUMENTED[feature]


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
