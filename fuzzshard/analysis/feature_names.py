"""The names of all features of a Case, by dimension, and what each means."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.case import Case
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
    "mesh:flattened": "a mesh with an axis that was two, flattened",
    "mesh:unflattened": "a mesh whose axes were one",
    "mesh:from_groups": "a mesh of process groups that there are",
    "mesh:transposed": "a mesh whose ranks lie column by column",
    "mesh:reversed": "a mesh whose process groups begin with the last rank",
    "tensor:colwise": "a column parallel module",
    "tensor:rowwise": "a row parallel module",
    "tensor:sequence": "a norm sharded along the sequence",
    "tensor:dtensor": "a module that computes with DTensors between plain tensors",
    "tensor:sharded_argument": "a module whose argument is made a sharded DTensor",
    "tensor:local_result": "a module that computes with DTensors and returns to_local()",
    "tensor:prepare": "a block some of whose arguments PrepareModuleInput prepares",
    "tensor:prepare_positional": "a block with prepared positional arguments",
    "tensor:prepare_keyword": "a block with prepared keyword arguments",
    "tensor:prepare_result": "a module with PrepareModuleInputOutput",
    "tensor:grad_placements": "a module that computes with DTensors and says what gradients are",
    "tensor:local_map": "a module that computes with what a rank has of DTensors",
    "tensor:sequence_layout": "activations sharded along the sequence",
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
