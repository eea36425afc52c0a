"""``fully_shard``, and what is applied beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines.older import HOOKS, OTHER_GRAPH_ON_ONE_RANK, SCALER, SWAPPED
from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.leaves import kinds_for
from fuzzshard.parts.op import Choice

if TYPE_CHECKING:
    from fuzzshard.case.case import Case

_LLAMA = "torchtitan/models/llama4/parallelize.py, apply_fsdp"
_DISPATCH = "torchtitan/distributed/expert_parallel.py, ExpertParallel"
_REPLICATE = "torch/distributed/_composable/replicate_with_fsdp.py, replicate"
_OF_HSDP = (
    "torch/distributed/fsdp/_fully_shard/_fully_shard.py, set_requires_all_reduce: 'This can be "
    "used to implement gradient accumulation with only reduce-scatter but not all-reduce for HSDP'"
)
_OF_SHARDS = (
    "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _all_gather_process_group: "
    "'Expected mesh_info to be FSDPMeshInfo'"
)
_DTENSOR = "torch/distributed/tensor/_api.py"
_SHARD = "torch/distributed/fsdp/_fully_shard/_fully_shard.py, fully_shard"
_ATTENTION = "torch/distributed/tensor/experimental/_context_parallel/_attention.py"


class FullyShard(EngineSpec):
    """Every wrap group is a call of it."""

    name = "fully_shard"
    title = "`fully_shard`"
    tag = "FSDP2"
    nicknames = ("fsdp", "hsdp")
    meaning = "fully_shard runs"
    applies_groups = True
    differs_in = ("input_gradient",)
    excludes: ClassVar[Excludes] = {
        **EngineSpec.excludes,
        "fsdp1:precision": Exclusion(
            "the mixed precision of the case is that of FSDP1",
            "fuzzshard: one policy for the whole model, and the reference follows one engine's",
        ),
        "loss:gradient_penalty": Exclusion(
            "a backward through a backward, of which fully_shard promises nothing",
            "https://github.com/pytorch/pytorch/issues/172543: the first backward frees "
            "parameters that the second one needs, and no documentation says what users have to "
            "do",
        ),
        "input:no_rows & edge:iadd": Exclusion(
            "an output changed in place may be a view, and so refused, on the rank without rows "
            "alone",
            "_fsdp_state.py, _register_pre_backward_hook: 'An in-place op on this view ... will "
            "silently drop the pre-backward hook'; whether an output is a view, only torch knows, "
            "and the other ranks would wait",
        ),
        "input:no_rows & leaf:dropout": OTHER_GRAPH_ON_ONE_RANK,
        f"op:cast & {HOOKS}|op:grad_dtype_* & tensor:* & wrap:parameter_in_no_group": SWAPPED,
        "user_hook:tensor_hook_sharded": Exclusion(
            "register_hook on a sharded parameter: gradients arrive at the unsharded one",
            "_fully_shard.py, fully_shard: 'the unsharded parameters will be like the original "
            "parameters ... After gradient computation, FSDP frees the unsharded parameters and "
            "reduce-scatters the unsharded gradients'",
        ),
        "op:cast & cast_late": Exclusion(
            "parameters are cast after the first forward",
            "_fsdp_param_group.py, lazy_init: 'Initialize mixed precision attributes lazily in "
            "case the user changes the parameter dtypes after construction time but before "
            "forward'",
        ),
    }


class ExpertParallel(FullyShard):
    """The shard axis has the experts, and ``fully_shard`` shards them over the other axis alone.

    So torchtitan trains mixtures (torchtitan/models/llama4/parallelize.py).
    """

    name = "expert_parallel"
    title = "expert parallelism with `fully_shard`"
    tag = "expert parallel"
    nicknames = ("ep", "moe")
    meaning = "experts are sharded over an axis of the mesh, and rows go to them"
    choice = Choice(
        "expert_parallel",
        8,
        place=101,
        # what there is no mesh of one axis for, or what experts are not told
        excludes=(
            *("tensor", "meta", "compile", "no_all_reduce"),
            *("alias", "tie", "reshard_int"),
            # several meshes have gradients
            "grad_scaler",
        ),
        needs=tuple(kind.name for kind in kinds_for("experts")),
    )
    spreads = "experts"
    excludes: ClassVar[Excludes] = {
        **FullyShard.excludes,
        "!leaf:experts": Exclusion("expert_parallel needs an Experts leaf", _DISPATCH),
        "!mesh:hsdp & !mesh:axis_of_one": Exclusion(
            "a mesh without an axis that fully_shard may shard experts over, of one rank at least",
            f"{_LLAMA}: experts get the mesh of the data-parallel ranks that have the same ones",
        ),
        "experts_lie_otherwise": Exclusion(
            "experts that are not in a group with the usual all-gather, as many on each rank, and "
            "divided by the replicate axis along the dim of their shards",
            f"{_LLAMA}: fully_shard(transformer_block.moe.experts, ...) before the block; "
            "fully_shard, shard_placement_fn: a mesh for each parameter; "
            f"{_DISPATCH}, _token_dispatch: rows are counted for experts of equal numbers on "
            "every rank; _fsdp_param.py: 'FSDP does not support uneven sharding on dim'",
        ),
        "wrap:experts_beside_others & communication:hook*|communication:custom_*": Exclusion(
            "collectives of the user's beside experts that have a mesh of their own",
            "_fully_shard.py, set_all_reduce_hook, set_custom_all_gather and "
            "set_custom_reduce_scatter: 'is not supported with multiple param groups'",
        ),
        "reshard:int": Exclusion(
            "groups that are resharded to a smaller mesh",
            "_fsdp_param.py, to_sharded_post_forward: NotImplementedError for DTensor parameters",
        ),
        "communication:separate_group|mesh:tensor|compile:*|option:meta": Exclusion(
            "a process group of its own, tensor parallelism, compilation, or the meta device",
            f"fuzzshard: not tried; {_LLAMA}",
        ),
        SCALER: Exclusion(
            "a GradScaler of gradients on several meshes, each of which knows of its own overflow",
            "torch/distributed/tensor/_dispatch.py, found_inf_reduce_handler: one mesh, and in "
            "torch/amp/grad_scaler.py each optimizer skips by what its ranks know",
        ),
        "leaves_out_experts": Exclusion(
            "a backward that does not come to trained experts",
            "torch/distributed/_functional_collectives.py: the backward of all_to_all_single is a "
            "collective of all ranks, which gets zeros where no gradient comes",
        ),
        "schedule:no_all_reduce": Exclusion(
            "a flag of meshes with two axes: that of experts has one",
            _OF_HSDP,
        ),
    }


class ContextParallel(FullyShard):
    """Ranks of the shard axis exchange rows for positions before attention, and back behind it.

    In between torch's own ring attention runs, as torchtitan applies it. Results of parts of the
    keys are put together by differences of them, which round also where a softmax has one
    element that counts and is exact.
    """

    name = "context_parallel"
    title = "context parallelism with `fully_shard`"
    tag = "context parallel"
    nicknames = ("cp", "ring attention")
    meaning = "attention runs over ranks that each have a part of the positions"
    options = "context_parallel"
    choice = Choice(
        "context_parallel",
        8,
        place=103,
        needs=(*(kind.name for kind in kinds_for("attention")), "sequence"),
        excludes=("tensor", "compile"),
    )
    spreads = "attention"
    excludes: ClassVar[Excludes] = {
        **FullyShard.excludes,
        "!leaf:fused_attention": Exclusion(
            "no module calls scaled_dot_product_attention", f"{_ATTENTION}, _sdpa_handler"
        ),
        "lack_positions": Exclusion(
            "ranks that share positions cannot have as many each, or none of them has rows",
            "torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py, "
            "_HeadTailLoadBalancer: 'if seq_length % (world_size * 2) != 0'; "
            f"{_ATTENTION}, _templated_ring_attention: keys of all ranks have one shape; "
            "scaled_dot_product_attention of a DTensor without elements is given no kernel, and "
            "the formula in its place mixes tensors and DTensors",
        ),
        "mesh:tensor|compile:*": Exclusion(
            "tensor parallelism or compilation", "fuzzshard: not tried"
        ),
    }


class ReplicateWithFSDP(FullyShard):
    """Groups of ``fully_shard`` whose parameters every rank has whole, as DTensors.

    Nothing is gathered, and gradients are all-reduced: what torch has for stages of a pipeline
    and torchtitan for plain data parallelism.
    """

    name = "replicate_with_fsdp"
    title = "`replicate` with FSDP2"
    tag = "replicate with FSDP2"
    nicknames = ("replicate fsdp", "replicate fsdp2")
    meaning = "wrap groups are replicated, with the hooks of fully_shard"
    choice = Choice(
        "replicate_with_fsdp",
        12,
        place=104,
        # what only shards have
        excludes=("reshard_true", "reshard_int", "shard_dim", "set_reshard"),
        brings=("communication",),
    )
    keeps_whole = True
    excludes: ClassVar[Excludes] = {
        **FullyShard.excludes,
        "reshard:none|reshard:true|reshard:int|op:set_reshard_after_forward": Exclusion(
            "groups that are resharded after forward",
            f"{_REPLICATE}: no reshard_after_forward, post_forward_mesh_info is None; "
            "_fully_shard.py, set_reshard_after_forward: AssertionError unless a group is sharded",
        ),
        "shard:last|shard:largest": Exclusion(
            "a dim that is sharded", f"{_REPLICATE}: no shard_placement_fn"
        ),
        "communication:allocate|communication:separate_group": Exclusion(
            "memory or a process group for all-gathers and reduce-scatters, which it has none of",
            _OF_SHARDS,
        ),
        "schedule:no_all_reduce & !mesh:hsdp & !mesh:axis_of_one": Exclusion(
            "a flag that says nothing where fully_shard has one axis, and turns off every "
            "reduction here",
            _OF_HSDP,
        ),
    }


class SPMD(FullyShard):
    """Parameters and inputs are DTensors on the whole mesh before ``fully_shard`` is called.

    A tensor-parallel plan shards parameters along its axis, and lays activations by hooks of
    ``distribute_module``; what it prepares for blocks are DTensors already. Along the other axes
    the rows of a rank are its shard of a batch, or they count as replicated, as in torch's tests
    (test/distributed/_composable/fsdp/test_fully_shard_dtensor.py).
    """

    name = "spmd"
    title = "`fully_shard` with `dp_mesh_dims`"
    tag = "FSDP2 SPMD"
    nicknames = ("dp_mesh_dims", "full spmd mesh")
    meaning = "fully_shard shards what are DTensors on the whole mesh already"
    names_dims = True
    options = "spmd"
    choice = Choice(
        "spmd",
        8,
        place=105,
        excludes=(
            *("compile", "reshard_int"),
            # what makes tensors that are no DTensors, or has operators without a rule for these
            *("attend", "attention", "experts", "fused_attention", "lstm", "weight_norm"),
        ),
    )
    excludes: ClassVar[Excludes] = {
        **FullyShard.excludes,
        "!wrap:root & !wrap:root_not_wrapped": Exclusion(
            "no group is given the mesh", f"{_SHARD}, dp_mesh_dims"
        ),
        "reshard:int": Exclusion(
            "groups that are resharded to a smaller mesh",
            f"{_SHARD}: 'reshard_after_forward as int is not yet supported with SPMD mesh "
            "(dp_mesh_dims)'",
        ),
        "leaf:weight_norm|leaf:fused_attention": Exclusion(
            "operators that have no rule for DTensors: _weight_norm_interface_backward, and "
            "scaled_dot_product_attention on the CPU",
            "torch/distributed/tensor/_sharding_prop.py: 'Operator ... does not have a sharding "
            "strategy registered.'",
        ),
        "leaf:attention|leaf:experts|leaf:lstm|edge:attend": Exclusion(
            "forwards that make tensors of their own: masks, numbers of experts, the first state "
            "of an LSTM",
            "torch/distributed/tensor/_dispatch.py: 'got mixed torch.Tensor and DTensor, need to "
            "convert all torch.Tensor to DTensor before calling distributed operators'",
        ),
        "leaf:dropout": Exclusion(
            "dropout: on CUDA ranks draw parts of one mask, from one seed",
            "torch/distributed/tensor/_random.py, manual_seed: 'no ranks should be initialized "
            "with values other than ``seed``'",
        ),
        "loss:doubled_in_place": Exclusion(
            "outputs are changed in place, and are views: to_local() returns one",
            "torch/csrc/autograd/variable.cpp: 'This view was created inside a custom Function "
            "... and the autograd logic to handle view+inplace would override the custom backward "
            "associated with the custom Function, leading to incorrect gradients. This behavior "
            "is forbidden.'",
        ),
        f"op:cast & {HOOKS}|op:grad_dtype_* & wrap:parameter_in_no_group": SWAPPED,
        "spmd:flattened|spmd:replicated & schedule:no_all_reduce": Exclusion(
            "a flag of meshes with an axis to shard over and one to replicate over",
            _OF_HSDP,
        ),
        "spmd:replicated & shard:*": Exclusion(
            "dims of shards where no axis is to shard over",
            "_fsdp_param_group.py, _init_param_group: 'Per-param mesh via shard_placement_fn is "
            "not supported with DDPMeshInfo; it requires FSDPMeshInfo (or subclass)'",
        ),
        "spmd:replicated & communication:allocate|communication:separate_group": Exclusion(
            "process groups to shard over where no axis is to shard over",
            _OF_SHARDS,
        ),
        "spmd:flattened & shard:*|communication:separate_group": Exclusion(
            "widths and process groups of the shard axis, where all axes are to shard over",
            "fuzzshard: both are made for the axes of the mesh",
        ),
        "spmd:inputs_sharded & leaf:batch_norm|leaf:running_sum": Exclusion(
            "values of a batch, where a batch is that of all ranks: others have their own",
            f"{_DTENSOR}, from_local: local tensors are parts of one tensor",
        ),
        "spmd:inputs_sharded & mesh:hsdp|mesh:axis_of_one & leaf:conv*": Exclusion(
            "convolutions of a batch that two axes shard",
            "torch/distributed/tensor/_dtensor_spec.py, dim_map: 'DTensor operator implementation "
            "does not support things like hybrid sharding strategies yet'",
        ),
        "spmd:inputs_sharded & input:rows_differ": Exclusion(
            "shards of other sizes than torch.chunk makes",
            f"{_DTENSOR}, from_local: 'assuming the given distributed tensor is evenly sharded "
            "across ranks'",
        ),
        "spmd:inputs_sharded & wrap:parameter_in_no_group": Exclusion(
            "parameters in no group: their gradients are sums over all ranks, not yet added up",
            f"{_DTENSOR}, DTensor.to_local: a Partial placement says so, and optimizers add up",
        ),
        "compile:*": Exclusion("compilation", "fuzzshard: not tried"),
    }

    @override
    def shards(self, case: Case) -> int:
        sizes = {"flattened": case.mesh.data_size, "replicated": 1}
        return sizes.get(case.spmd.dp_mesh_dims, case.mesh.shard)
