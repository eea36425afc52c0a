"""What a tensor-parallel plan makes of parameters; :mod:`fuzzshard.analysis.validate` checks it.

Follows torch/distributed/tensor/parallel/style.py: ``ColwiseParallel`` shards the rows of a Linear
and the columns of an Embedding, ``RowwiseParallel`` the other way round (and replicates a bias),
``SequenceParallel`` replicates, as ``distribute_module`` does. ``PrepareModuleInput`` is for
arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import get_args

from fuzzshard.analysis.batches import told_rows
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, join
from fuzzshard.case.options import Along, TensorParallel
from fuzzshard.parts.leaf import Leaf, Value
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import off_default

_REPLICATING = ("sequence", "dtensor")
"""The styles that shard no parameter, and fix the layouts outside."""
_SPLITTING = frozenset(("input", "output", "from_end", "local_output", "initial"))
_TAKES: Mapping[str, Set[str]] = {
    "colwise": _SPLITTING,
    "rowwise": _SPLITTING,
    "sequence": frozenset(("input", "from_end", "local_output")),
    "dtensor": frozenset(("dim", "result", "grad_placements", "local_map")),
    **dict.fromkeys(
        ("prepare", "prepare_output"), frozenset(("prepared", "input", "dim", "local_output"))
    ),
}
"""What a plan may say of a style."""
_GIVEN = (("tensor", False), ("tuple", True))
"""What a block may return, and whether it is several tensors, for ``PrepareModuleOutput``."""


def tensor_dims(case: Case, found: Inferred) -> Mapping[str, int | None]:
    """Return the dimension that each parameter of the plan is sharded along, None if along none.

    Has an entry for every name of a tied parameter. What the plan does not name is no DTensor of
    the tensor-parallel axis.
    """
    dims: dict[str, int | None] = {}
    for plan in (plan for plan in case.tensor_parallel if plan.is_of_leaf):
        leaf = found.leaves[plan.module]
        for name in leaf.parameters(found.width(plan.module)):
            dims[join(plan.module, name)] = _dim(plan, leaf, name)
    return dims


def passes_dtensors(case: Case) -> bool:
    """Return whether modules may return DTensors."""
    return not all(plan.local_output for plan in case.tensor_parallel)


def layouts_of(plan: TensorParallel, found: Inferred, seq: int) -> tuple[int | None, int | None]:
    """Return the dims that the argument and the result of a style are sharded along, as the plan
    counts them; None: along none.
    """
    argument, result = found.input_values[plan.module][0], found.output_values[plan.module][0]
    return dim_along(plan, plan.takes, argument, seq), dim_along(plan, plan.gives, result, seq)


def dim_along(plan: TensorParallel, along: Along | None, value: Value, seq: int) -> int | None:
    """Return the dim of a value, as the plan counts it."""
    axes = value.dims(seq)
    place = {None: None, "rows": 0, "sequence": 1, "features": axes - 1}[along]
    return place - axes if plan.from_end and place is not None else place


def values_of(
    plan: TensorParallel, block: Block, found: Inferred
) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """Return the names and the types of the arguments or results of a block that the plan may
    prepare.
    """
    if plan.style == "prepare_output":
        return block.outputs, found.output_values[plan.module]
    return block.inputs, found.input_values[plan.module]


def _dim(plan: TensorParallel, leaf: Leaf, name: str) -> int | None:
    if plan.style in _REPLICATING:
        return None
    if plan.style == leaf.styles[0]:
        return 0
    return None if name == "bias" else 1


def plan_misfits(case: Case, found: Inferred) -> Reasons:
    """Yield where the plan names what cannot be parallelised, or options do not fit."""
    if case.tensor_parallel and case.mesh.tensor is None:
        yield ("a tensor_parallel plan without a tensor-parallel axis", "set mesh.tensor")
    if case.tensor_parallel and case.init == "meta":
        yield ("tensor parallelism of a model on the meta device is not supported", 'use "device"')
    if LOSSES[case.loss].context and not case.tensor_parallel:
        yield f"the loss {case.loss!r} is for tensor-parallel ranks", "give a tensor_parallel plan"
    planned = [(plan.module, plan.style == "prepare_output") for plan in case.tensor_parallel]
    for plan in case.tensor_parallel:
        if planned.count((plan.module, plan.style == "prepare_output")) > 1:
            yield f"{plan.module!r} is planned twice", "give one style"
        for name in off_default(plan):
            if name not in _TAKES[plan.style]:
                yield f"{plan.module!r} has {name}, which is of other styles", "leave it out"
        misfits = _leaf_misfits if plan.is_of_leaf else _preparing_misfits
        yield from misfits(plan, case, found)
    dims = tensor_dims(case, found)
    initial = {plan.module: plan.initial for plan in case.tensor_parallel}
    for tie in case.ties:
        planned_as = [
            (dims.get(fqn, "plain"), initial.get(fqn.rpartition(".")[0]))
            for fqn in (tie.parameter, tie.source)
        ]
        if planned_as[0] != planned_as[1]:
            yield (
                f"the plan parallelises {tie.parameter!r} otherwise than {tie.source!r}, which it "
                "is tied to",
                "plan both modules so that the shared weight has one placement, of equal values",
            )


def _leaf_misfits(plan: TensorParallel, case: Case, found: Inferred) -> Reasons:
    leaf = found.leaves.get(plan.module)
    if leaf is None or plan.style not in leaf.styles:
        yield (
            f"{plan.module!r} cannot be {plan.style} parallel",
            "colwise and rowwise are for Linear and Embedding, sequence is for norms, dtensor "
            "for modules whose operators DTensors have",
        )
        return
    if plan.result == "style" and plan.grad_placements:
        yield f"{plan.module!r} has a style, which has no grad_placements", "leave them out"
    if plan.local_map and plan.dim not in (None, 0):
        yield f"{plan.module!r} computes with a part of every row", "use dim=0"
    ranks = case.mesh.tensor or 1
    if plan.local_map and plan.dim == 0 and any(n % ranks for n in told_rows(case)):
        yield (
            f"{plan.module!r} has rows that {ranks} ranks cannot share evenly: local_map "
            "takes shards to be of one size, as DTensor.from_local does",
            "use dim=None, or as many rows for each rank",
        )
    axes = found.input_values[plan.module][0].dims(case.inputs.seq)
    if plan.dim is not None and not -axes <= plan.dim < axes:
        yield f"{plan.module!r} has an argument of {axes} dims", "use dim=0"
    if "sequence" in (plan.takes, plan.gives) and case.inputs.seq < 1:
        yield f"{plan.module!r} is sharded along a sequence axis", "set inputs.seq"
    if plan.style == "sequence" and plan.takes not in ("sequence", "rows"):
        yield f"{plan.module!r} is to be sharded along its features", 'use input="rows"'
    told = {plan.style, plan.input, plan.output} & {*get_args(Along)}
    if plan.from_end and not told:
        yield f"{plan.module!r} tells no dim to count from the end", "tell one, or leave it out"


def _preparing_misfits(plan: TensorParallel, case: Case, found: Inferred) -> Reasons:
    """``PrepareModuleInput`` is for arguments of ``forward``, and hooks of a module; that for
    results takes a tensor, or a tuple of several.
    """
    block = found.modules.get(plan.module)
    if not isinstance(block, Block) or block.has_method:
        yield f"{plan.module!r} is no block whose forward is called", "give another style"
        return
    if plan.style == "prepare" and block.passing not in ("positional", "keyword"):
        yield f"{plan.module!r} takes its arguments as one value", "pass them one by one"
    if not plan.module and case.mesh.pipeline:
        yield "the root is cut into stages, which have not its hooks", "prepare another block"
    if plan.style == "prepare_output" and (block.returns, len(block.outputs) > 1) not in _GIVEN:
        yield f"{plan.module!r} returns no tensors one by one", "prepare its arguments alone"
    values = dict(zip(*values_of(plan, block, found), strict=True))
    prepared = [values.get(name) for name in plan.prepared]
    if not prepared or len({*plan.prepared}) < len(prepared) or None in prepared:
        yield f"{plan.module!r} prepares none of its values", "name some of them, once"
    for value in prepared:
        whole = plan.local_output and plan.dim is None
        if value and not whole and (value.ids or value.patches):
            yield f"{plan.module!r} makes DTensors of {value}", "use local_output=True"
        elif value and (plan.dim == 1 or plan.takes == "sequence") and case.inputs.seq < 1:
            yield f"{plan.module!r} is sharded along a sequence axis", "set inputs.seq"
