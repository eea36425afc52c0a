"""All features of a Case by dimension, what each means, and whether a case has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, get_args

from fuzzshard.analysis.batches import all_rows, rows_of_batch, used_batches
from fuzzshard.analysis.experts import beside_others
from fuzzshard.analysis.groups import group_of, holds_a_member, wrapped_modules
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.schedule_state import root_groups
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.adapters import adapters
from fuzzshard.case.case import WAYS, Case, WrapGroup
from fuzzshard.case.graph import (
    Alias,
    Block,
    Call,
    join,
    modules_below,
    resolve,
    value_node,
    walk,
)
from fuzzshard.case.options import Along
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.engines import ENGINES, OPTIONS
from fuzzshard.parts.leaves import LEAVES
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.option import Option, WithOptions, meanings_of
from fuzzshard.parts.options.optimizer import OPTIMIZER_OPTIONS
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS
from fuzzshard.parts.part import defaults

_OF_LEAVES = sorted(
    (kind for leaf in LEAVES for kind in leaf.kinds), key=lambda kind: kind.draw is None
)
_OF_GROUPS = sorted(
    GROUP_OPTIONS, key=lambda option: (option.name == "precision", option.wants_even)
)
"""In the order that features have always had."""


def _options_of(field: str) -> Sequence[Option]:
    """Return the options of an engine, by the field of a case that has them."""
    part = defaults(Case)[field]
    assert isinstance(part, WithOptions)
    return part.options


Test = Callable[[Case, Inferred], bool]


def _some(field: str, test: Callable[[Any], bool]) -> Test:
    """Return a test whether some item of a field of the case is so."""
    return lambda case, _: any(map(test, getattr(case, field)))


def _lays(along: Along) -> Test:
    return _some("tensor_parallel", lambda plan: along in (plan.input, plan.output))


def _some_block(test: Callable[[str, Block], bool]) -> Test:
    return lambda _, found: any(test(path, block) for path, block in _blocks(found))


def _some_call(test: Callable[[Call], bool]) -> Test:
    return _some_block(lambda _, block: any(map(test, _calls(block))))


def _blocks(found: Inferred) -> Iterator[tuple[str, Block]]:
    return ((path, m) for path, m in found.modules.items() if isinstance(m, Block))


def _calls(block: Block) -> list[Call]:
    return [node for node in block.nodes if isinstance(node, Call)]


def _reads(block: Block) -> Counter[str]:
    """Return how often each value of a block is read."""
    return Counter((*(a for node in block.nodes for a in node.args), *block.outputs))


def _rows(found: Inferred) -> set[int]:
    """Return the sizes of the parameters' first dims."""
    return {shape[0] for shape in found.parameters.values()}


def _rows_of_batches(case: Case) -> set[tuple[int, ...]]:
    """Return how many rows ranks have in each batch."""
    return {tuple(rows_of_batch(case, batch)) for batch in used_batches(case)}


def _leaves_output_unused(case: Case, found: Inferred) -> bool:
    """Return whether a block, or a loss, leaves out outputs of what it is about."""
    calls = (op.call for op in case.schedule if op.call and op.call.grad)
    outputs = {call: len(found.output_values[call.target]) for call in calls}
    return any(len({*call.used(number)}) < number for call, number in outputs.items()) or any(
        _leaves_results_unread(case, path, block) for path, block in _blocks(found)
    )


def _leaves_results_unread(case: Case, path: str, block: Block) -> bool:
    """Return whether a block reads only some of what a block that it calls returns."""
    reads = _reads(block)
    targets = ((call, resolve(case.model, join(path, call.module))) for call in _calls(block))
    return any(
        f"{call.name}.{i}" not in reads
        for call, target in targets
        if target and isinstance(called := target[1], Block) and len(called.outputs) > 1
        for i in range(len(called.outputs))
    )


def _ties_within_group(case: Case) -> set[bool]:
    """Return whether both names of each tied parameter are in one group."""
    return {group_of(case, tie.parameter) == group_of(case, tie.source) for tie in case.ties}


def _called_both_ways(case: Case, found: Inferred) -> bool:
    """Return whether blocks call a module with and without gradients."""
    calls = {
        (target[0], call.grad)
        for path, block in _blocks(found)
        for call in _calls(block)
        if (target := resolve(case.model, join(path, call.module)))
    }
    return len({path for path, _ in calls}) < len(calls)


def _leaves_root(case: Case, group: WrapGroup, root: int) -> bool:
    """Return whether ``group`` has modules outside of the group that becomes its FSDP root."""
    below = frozenset[str]().union(
        *(modules_below(case.model, m) for m in case.wrap[root].modules)
    )
    return not below.issuperset(group.modules)


def _wraps_nested(case: Case, _: Inferred) -> bool:
    wrapped = wrapped_modules(case)
    return any(a and a != b and is_within(b, a) for a in wrapped for b in wrapped)


def _freezes_part_of_group(case: Case, found: Inferred) -> bool:
    targets = [freeze.target for freeze in case.freezes]
    kinds = {(owner, is_within_any(fqn, targets)) for fqn, owner in found.owners.items()}
    return any(
        (owner, True) in kinds for owner, frozen in kinds if owner is not None and not frozen
    )


def _freezes_adapted(case: Case, _: Inferred) -> bool:
    targets = [freeze.target for freeze in case.freezes]
    return any(
        is_within_any(base, targets) and not any(is_within_any(p, targets) for p in others)
        for base, *others in adapters(case.model)
    )


def _leaves_ranks_empty(case: Case, found: Inferred) -> bool:
    """Return whether ``torch.chunk`` leaves the last rank of the tensor-parallel axis nothing of a
    parameter.
    """
    ranks = case.mesh.tensor or 1
    sizes = [
        found.parameters[fqn][dim]
        for fqn, dim in tensor_dims(case, found).items()
        if dim is not None and fqn in found.parameters
    ]
    return any(math.ceil(size / ranks) * (ranks - 1) >= size for size in sizes)


FEATURES: dict[str, str] = {
    **{f"leaf:{kind.name}": kind.meaning for kind in _OF_LEAVES},
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
    "edge:iadd": "an addition in place, without gradients",
    "edge:attend": "attention of three values of a block",
    "edge:method": "a block that callers call by another method than forward",
    "edge:adapter": "a low-rank adapter beside a module",
    "edge:alternatives": "a call of one child or another, as the block's path says",
    "edge:no_grad_call": "a block calls a child without gradients",
    "returns:tuple": "a block that returns a tuple",
    "returns:list": "a block that returns a list",
    "returns:dict": "a block that returns a dict",
    "returns:namedtuple": "a block that returns a named tuple",
    "returns:dataclass": "a block that returns a dataclass",
    "passing:keyword": "a block that is called with keyword arguments",
    "passing:tuple": "a block that takes its inputs in a tuple",
    "passing:dict": "a block that takes its inputs in a dict",
    "passing:dataclass": "a block that takes its inputs in a dataclass",
    "reuse:repeated_call": "a block calls one child twice",
    "reuse:alias": "a module registered at two places",
    "reuse:tied_in_group": "two names of one parameter within one wrap group, or in none",
    "reuse:tied_across_groups": "two names of one parameter in different wrap groups",
    "reuse:no_grad_retraversal": "a module called both with and without gradients in one forward",
    "wrap:several_groups": "two wrap groups or more",
    "wrap:list_group": "one fully_shard call for several modules",
    "wrap:list_group_leaves_root": "a list group with modules outside of its FSDP root",
    "wrap:list_group_holds_member": "a list group with a module that is registered below another "
    "of it",
    "wrap:experts_beside_others": "experts and other parameters in one wrap group; under "
    "expert_parallel these have meshes of their own",
    "wrap:nested": "a wrapped module other than the root has a wrapped module below it",
    "wrap:root": "the root is wrapped",
    "wrap:root_not_wrapped": "groups, but not the root",
    "wrap:parameter_in_no_group": "a parameter that no group manages",
    **meanings_of(_OF_GROUPS),
    "precision:mixed": "groups with different policies of mixed precision",
    "precision:parameter_dtype": "a parameter with a dtype of its own",
    "freeze:from_start": "something frozen from the start",
    "freeze:parameter": "a parameter frozen from the start",
    "freeze:module": "a module frozen from the start",
    "freeze:before_wrap": "frozen before wrapping",
    "freeze:after_wrap": "frozen after wrapping",
    "freeze:adapted": "a frozen module beside an adapter that is trained",
    "freeze:mixed_group": "frozen and trainable parameters in one wrap group",
    "mesh:1": "one rank",
    "mesh:2": "two ranks",
    "mesh:3": "three ranks",
    "mesh:4": "four ranks",
    "mesh:larger": "more than four ranks",
    "mesh:hsdp": "a 2D mesh with both axes larger than 1",
    "mesh:axis_of_one": "a 2D mesh with an axis of size 1",
    "mesh:tensor": "a tensor-parallel axis",
    "mesh:hsdp_tensor": "a tensor-parallel axis beside both axes of HSDP",
    "mesh:pipeline": "a pipeline axis",
    **{f"mesh:{way}": meaning for way, meaning in WAYS.items()},
    "tensor:colwise": "a column parallel module",
    "tensor:rowwise": "a row parallel module",
    "tensor:sequence": "a norm sharded along the sequence",
    "tensor:dtensor": "a module that computes with DTensors between plain tensors",
    "tensor:sharded_argument": "a module whose argument is made a sharded DTensor",
    "tensor:local_result": "a module that computes with DTensors and returns to_local()",
    "tensor:prepare": "a block some of whose arguments PrepareModuleInput prepares",
    "tensor:prepare_positional": "a block with prepared positional arguments",
    "tensor:prepare_keyword": "a block with prepared keyword arguments",
    "tensor:prepare_from_shards": "a block whose arguments or results are prepared from shards",
    "tensor:prepare_output": "a block some of whose results PrepareModuleOutput prepares",
    "tensor:prepare_both": "a block with PrepareModuleInputOutput",
    "tensor:prepare_result": "a module with PrepareModuleInputOutput",
    "tensor:grad_placements": "a module that computes with DTensors and says what gradients are",
    "tensor:local_map": "a module that computes with what a rank has of DTensors",
    "tensor:sequence_layout": "activations sharded along the sequence",
    "tensor:rows_layout": "activations sharded along their rows",
    "tensor:features_layout": "activations that a plan says to be sharded along their features",
    "tensor:initial_first_rank": "only the first rank has the right values of a parallel module",
    "tensor:initial_last_rank": "only the last rank has them: src_data_rank",
    "tensor:initial_own": "each rank takes its own values: src_data_rank=None",
    "tensor:from_end": "layouts of activations with negative dims",
    "tensor:dtensor_output": "a parallel module that returns a DTensor",
    "tensor:empty_shard": "a parameter of which a rank of the tensor-parallel axis has nothing",
    **{name: meaning for op in OPS for name, meaning in op.meanings.items()},
    "schedule:ranks_differ": "an op that runs on some ranks only",
    "schedule:step_unsynced": "a step, a clip or zeroing after a backward that did not "
    "synchronise everything",
    "schedule:changed_after_forward": "a step or a load after a forward without a backward",
    "user_hook:tensor_hook_sharded": "a hook on the gradients that come to a sharded parameter",
    **meanings_of(OPTIMIZER_OPTIONS),
    "dtype:float32": "single precision",
    "dtype:float64": "double precision",
    "values:gaussian": "gaussian values",
    "values:dyadic": "small integers times powers of two",
    "values:apart": "powers of two whose sums round in half precision alone",
    **{f"loss:{name}": loss.meaning for name, loss in LOSSES.items()},
    "checkpoint:module": "activation checkpointing of a module",
    "checkpoint:composable": "activation checkpointing by the composable API",
    "checkpoint:wrapper": "activation checkpointing by the wrapper",
    "checkpoint:utils": "activation checkpointing by torch.utils.checkpoint at the call",
    "input:sequence": "inputs with a sequence axis",
    "input:ids": "an integer input",
    "input:several": "two inputs or more",
    "input:requires_grad": "an input that requires a gradient",
    "input:same_on_ranks": "equal inputs on all ranks",
    "input:rows_differ": "a batch of more rows on some ranks than on others",
    "input:rows_vary": "batches of different sizes, one after another",
    "input:one_row": "a rank whose batch is of another size than is usual: one row",
    "input:no_rows": "a rank whose batch is empty",
    "input:on_host": "inputs that the engine moves to the device",
    **{f"engine:{name}": spec.meaning for name, spec in ENGINES.items()},
    **{
        feature: meaning
        for field in OPTIONS
        for feature, meaning in meanings_of(_options_of(field)).items()
    },
    "option:ignored": "parameters that fully_shard ignores",
    "option:added": "modules that are added to the model when it is wrapped already",
    "option:finalize_wait": "finalize_backward() after every backward",
    "option:finalize_async": "finalize_backward(async_op=True) after every backward",
    "option:meta": "wrapped on the meta device",
    "option:memory": "engines train again, to see whether their memory grows",
    "option:losses_only": "nothing but losses is compared",
    "oracle:race": "streams are watched for accesses that nothing orders",
    "compile:eager": "module.compile() with the backend eager",
    "compile:aot_eager": "module.compile() with the backend aot_eager",
    "compile:inductor": "module.compile() with the backend inductor",
    "delay:before_all_gather": "waits before every all-gather",
    "delay:before_reduce_scatter": "waits before every reduce-scatter",
    "delay:before_all_reduce": "waits before every all-reduce",
    "delay:after_forward": "waits after every forward",
    "delay:after_backward": "waits after every backward",
    "delay:before_step": "waits before every step",
    "delay:after_step": "waits after every step",
    "delay:some_ranks": "only the ranks other than the first wait",
    "expect:error": "an error that must be raised",
    "expect:warning": "a warning that must be given",
}
"""Every feature with one line that says what it is."""

TESTS: dict[str, Test] = {
    "dim:uneven": lambda case, found: any(n % case.mesh.shard for n in _rows(found)),
    "dim:smaller_than_mesh": lambda case, found: any(n < case.mesh.shard for n in _rows(found)),
    "dim:one": lambda _, found: 1 in _rows(found),
    "dim:power_of_two": lambda _, found: {n & (n - 1) for n in _rows(found)} == {0},
    "edge:branch": _some_block(lambda path, block: max(_reads(block).values()) > 1),
    "edge:several_outputs": _some_block(lambda path, block: len(block.outputs) > 1),
    "edge:unused_output": _leaves_output_unused,
    "edge:unused_value": _some_block(
        lambda path, block: (
            not {node.name for node in block.nodes} <= {*map(value_node, _reads(block))}
        )
    ),
    "edge:unused_module": lambda _, found: len(found.called) < len(found.modules),
    "edge:nested_block": _some_block(lambda path, block: path != ""),
    "edge:method": _some_block(lambda path, block: block.has_method),
    "edge:adapter": lambda case, _: any(adapters(case.model)),
    "edge:alternatives": _some_call(lambda call: bool(call.alternatives)),
    "edge:no_grad_call": _some_call(lambda call: not call.grad),
    "reuse:repeated_call": _some_block(
        lambda path, block: len({call.module for call in _calls(block)}) < len(_calls(block))
    ),
    "reuse:alias": lambda case, _: any(
        isinstance(module, Alias) for _, module in walk(case.model)
    ),
    "reuse:tied_in_group": lambda case, _: True in _ties_within_group(case),
    "reuse:tied_across_groups": lambda case, _: False in _ties_within_group(case),
    "reuse:no_grad_retraversal": _called_both_ways,
    "wrap:several_groups": lambda case, _: len(case.wrap) > 1,
    "wrap:list_group": _some("wrap", lambda group: len(group.modules) > 1),
    "wrap:list_group_leaves_root": lambda case, _: any(
        map(_leaves_root, repeat(case), case.wrap, root_groups(case))
    ),
    "wrap:list_group_holds_member": lambda case, _: any(
        holds_a_member(case, group) for group in case.wrap
    ),
    "wrap:experts_beside_others": lambda case, _: any(
        beside_others(case, group) for group in case.wrap
    ),
    "wrap:nested": _wraps_nested,
    "wrap:root": lambda case, _: "" in wrapped_modules(case),
    "wrap:root_not_wrapped": lambda case, _: bool(case.wrap) and "" not in wrapped_modules(case),
    "wrap:parameter_in_no_group": lambda _, found: None in found.owners.values(),
    "precision:mixed": lambda case, _: len({group.precision for group in case.wrap}) > 1,
    "precision:parameter_dtype": lambda case, _: bool(case.dtypes),
    "freeze:from_start": lambda case, _: bool(case.freezes),
    "freeze:parameter": lambda case, found: any(
        freeze.target in found.parameters for freeze in case.freezes
    ),
    "freeze:module": lambda case, found: any(
        freeze.target not in found.parameters for freeze in case.freezes
    ),
    "freeze:before_wrap": _some("freezes", lambda freeze: not freeze.after_wrap),
    "freeze:after_wrap": _some("freezes", lambda freeze: freeze.after_wrap),
    "freeze:adapted": _freezes_adapted,
    "freeze:mixed_group": _freezes_part_of_group,
    "mesh:larger": lambda case, _: case.mesh.size > 4,
    "mesh:hsdp": lambda case, _: min(case.mesh.replicate or 1, case.mesh.shard) > 1,
    "mesh:axis_of_one": lambda case, _: (
        1 in (case.mesh.replicate, case.mesh.replicate and case.mesh.shard)
    ),
    "mesh:tensor": lambda case, _: case.mesh.tensor is not None,
    "mesh:hsdp_tensor": lambda case, _: None not in (case.mesh.tensor, case.mesh.replicate),
    "mesh:pipeline": lambda case, _: case.mesh.pipeline is not None,
    "tensor:sharded_argument": _some("tensor_parallel", lambda plan: plan.dim is not None),
    "tensor:local_result": _some("tensor_parallel", lambda plan: plan.result == "to_local"),
    "tensor:prepare_result": _some("tensor_parallel", lambda plan: plan.result == "style"),
    "tensor:grad_placements": _some("tensor_parallel", lambda plan: plan.grad_placements),
    "tensor:local_map": _some("tensor_parallel", lambda plan: plan.local_map),
    **{f"tensor:{along}_layout": _lays(along) for along in get_args(Along)},
    "tensor:prepare_from_shards": _some(
        "tensor_parallel", lambda plan: plan.takes is not None and not plan.is_of_leaf
    ),
    "tensor:prepare_both": lambda case, _: bool(
        {plan.module for plan in case.tensor_parallel if plan.style == "prepare"}
        & {plan.module for plan in case.tensor_parallel if plan.style == "prepare_output"}
    ),
    "tensor:from_end": _some("tensor_parallel", lambda plan: plan.from_end),
    "tensor:dtensor_output": _some("tensor_parallel", lambda plan: not plan.local_output),
    "tensor:empty_shard": _leaves_ranks_empty,
    "schedule:ranks_differ": _some("schedule", lambda op: op.ranks != "all"),
    "checkpoint:module": lambda case, _: bool(case.checkpoints),
    "input:sequence": lambda case, _: case.inputs.seq > 0,
    "input:ids": lambda case, _: any(tensor.kind == "ids" for tensor in case.inputs.tensors),
    "input:several": lambda case, _: len(case.inputs.tensors) > 1,
    "input:requires_grad": lambda case, _: any(
        tensor.requires_grad for tensor in case.inputs.tensors
    ),
    "input:same_on_ranks": lambda case, _: case.inputs.same_on_ranks,
    "input:rows_differ": lambda case, _: any(len({*rows}) > 1 for rows in _rows_of_batches(case)),
    "input:rows_vary": lambda case, _: len(_rows_of_batches(case)) > 1,
    "input:one_row": lambda case, _: bool(case.inputs.rank_batches) and 1 in all_rows(case),
    "input:no_rows": lambda case, _: bool(case.inputs.rank_batches) and 0 in all_rows(case),
    "input:on_host": lambda case, _: case.inputs.on_host,
    "option:ignored": lambda case, _: bool(case.ignored),
    "option:added": lambda case, _: bool(case.added),
    "option:meta": lambda case, _: case.init == "meta",
    "delay:some_ranks": _some("delays", lambda delay: delay.ranks != "all"),
}
"""Whether a case has a feature. The names of all others are made of what cases say
(:mod:`fuzzshard.analysis.features`), or asked of parts.
"""

DIMENSIONS: dict[str, str] = {
    "leaf": "modules without submodules",
    "dim": "sizes of the parameters' first dim, beside the number of ranks",
    "edge": "how the modules of a model are connected",
    "returns": "what the forward of a block returns",
    "passing": "how a block is given its inputs",
    "reuse": "modules called or registered twice, tied parameters",
    "wrap": "which modules fully_shard is called for",
    "reshard": "reshard_after_forward of fully_shard",
    "offload": "CPU offloading of fully_shard",
    "prefetch": "explicit prefetching of fully_shard",
    "communication": "fully_shard's own streams, process groups, hooks and collectives",
    "shard": "shard_placement_fn of fully_shard",
    "all_gather": "parameters with fsdp_pre_all_gather and fsdp_post_all_gather",
    "drawn": "by what parameters are drawn once fully_shard has sharded them",
    "precision": "mixed precision of fully_shard, and dtypes of single parameters",
    "freeze": "requires_grad=False, from the start or during training",
    "mesh": "the number of ranks and the axes of the mesh",
    "tensor": "tensor parallelism",
    "schedule": "forwards, backwards, gradient accumulation and steps",
    "op": "what else is called during training",
    "state": "options of the states that are asked for",
    "user_hook": "hooks that users register on modules during training",
    "optimizer": "the optimizer and its arguments",
    "dtype": "the dtype of parameters and inputs",
    "values": "the values of parameters and inputs",
    "loss": "what backward starts from",
    "checkpoint": "activation checkpointing",
    "input": "the inputs of the model",
    "engine": "what trains the model, beside the reference",
    "ddp": "arguments and methods of DistributedDataParallel and replicate",
    "fsdp1": "arguments and methods of FullyShardedDataParallel",
    "pipelining": "schedules of torch.distributed.pipelining",
    "context_parallel": "how attention communicates over the ranks that share its positions",
    "spmd": "what dp_mesh_dims of fully_shard says",
    "option": "other settings of a case",
    "compile": "torch.compile",
    "delay": "ranks that wait at some point",
    "oracle": "what is looked for at a cost",
    "expect": "what a case expects to be raised",
}
"""What the features of each dimension are about: the part of their names before the colon."""

NEEDED_RANKS = {"mesh:2": 2, "mesh:3": 3, "mesh:4": 4, "mesh:larger": 5, "mesh:hsdp": 4}
"""How large a world must be for a case to have a feature, where that is more than one rank."""
ON_CUDA = frozenset(
    (
        *(feature for feature in FEATURES if feature.startswith("delay:")),
        "compile:inductor",
        "fsdp1:initial_first_rank",
        "fsdp1:offload",
        "fsdp1:summon_on_host",
        "input:on_host",
        "offload:pinned",
        "oracle:race",
        "optimizer:capturable",
    )
)
"""Features that only cases for CUDA have."""
ONE_OF = (
    frozenset(("mesh:1", "mesh:2", "mesh:3", "mesh:4", "mesh:larger")),
    *(
        frozenset(feature for feature in FEATURES if feature.startswith(f"{dimension}:"))
        for dimension in ("dtype", "values", "loss")
    ),
)
"""Sets of features of which every case has exactly one."""
