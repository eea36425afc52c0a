"""``FullyShardedDataParallel``; sources are in torch/distributed/fsdp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines.older import (
    HOOKS,
    OLDER,
    OTHER_GRAPH_ON_ONE_RANK,
    POLICIES,
    STATES,
    UNSYNCED,
)
from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.op import Choice, Reasons
from fuzzshard.parts.ops import HOOKED_CHOICES, NEW_CHOICES
from fuzzshard.parts.options.fsdp1 import shards

if TYPE_CHECKING:
    from fuzzshard.analysis.inferred import Inferred
    from fuzzshard.case.case import Case

_CLASS = "fully_sharded_data_parallel.py, class docstring"
_SUMMON = "fully_sharded_data_parallel.py, summon_full_params"
_VIEWS = (
    f"{_CLASS}: 'FSDP replaces managed modules' parameters with torch.Tensor views during forward "
    "and backward computation'"
)
_OURS = "fuzzshard: the reference models this as fully_shard documents it"


class FullyShardedDataParallel(EngineSpec):
    """Every wrapped module is a unit with one flat parameter, and so is the root."""

    name = "fsdp1"
    title = "`FullyShardedDataParallel`"
    tag = "FSDP1"
    meaning = "FSDP1 runs"
    options = "fsdp1"
    choice = Choice(
        "fsdp1",
        30,
        place=1,
        # what it has nothing for, or has not documented: a case with it would run without it
        excludes=(
            *("list_group", "tensor", "meta", "compile", "other_dtypes", "method"),
            *NEW_CHOICES,
            *("non_root_forward", "partial_sync", "backward_order"),
            *HOOKED_CHOICES,
        ),
        brings=("grad_scaler",),
    )
    wrapper = "FullyShardedDataParallel"
    has_units = True
    differs_in = ("gradient", "local_gradient")
    excludes: ClassVar[Excludes] = {
        **OLDER,
        "schedule:non_root_forward": Exclusion(
            "a forward of a submodule, which FSDP does not support",
            f"{_CLASS}: 'FSDP does not support running the forward pass of a submodule that is "
            "contained in an FSDP instance.'",
        ),
        "wrap:list_group": Exclusion(
            "a list group: a unit of FSDP1 is one module",
            f"{_CLASS}: 'module (nn.Module): This is the module to be wrapped with FSDP.'",
        ),
        "input:no_rows & leaf:dropout": OTHER_GRAPH_ON_ONE_RANK,
        f"mesh:tensor|compile:*|{POLICIES}": Exclusion(
            "tensor parallelism, module.compile() or mixed precision as fully_shard has them",
            _OURS,
        ),
        "all_gather:float8 & !fsdp1:precision": Exclusion(
            "rounded all-gathers of the groups of fully_shard", _OURS
        ),
        "loss:gradient_penalty": Exclusion(
            "a backward through a backward",
            f"{_CLASS}: 'FSDP does not work with double backwards due to the way it registers "
            "backward hooks.'",
        ),
        "optimizer:muon|optimizer:adafactor|optimizer:vectors_apart": Exclusion(
            "an optimizer that looks at rows and columns: parameters of FSDP1 are flat",
            "torch/optim/_muon.py: 'Muon only supports 2D parameters'; _flat_param.py: 'original "
            "parameters, which are flattened and concatenated to construct the flat parameter'",
        ),
        "option:meta": Exclusion(
            "a model on the meta device, which FSDP1 gives other initial values",
            f"{_CLASS}, param_init_fn: 'either applies param_init_fn if specified or calls "
            "nn.Module.reset_parameters() otherwise'",
        ),
        STATES: Exclusion(
            "states of FSDP1's optimizer are flat, and are saved and loaded in ways of its own",
            "fully_sharded_data_parallel.py, optim_state_dict: 'the flattened optimizer states'",
        ),
        "takes_shards": Exclusion(
            "a state by name whose tensors are not whole: they are ShardedTensors",
            "api.py, ShardedStateDictConfig: 'FSDP saves them as ``ShardedTensor``'",
        ),
        HOOKS: Exclusion(
            "a hook on a parameter: backwards come to views of its flat parameter", _VIEWS
        ),
        f"{UNSYNCED} & !wrap:root": Exclusion(
            "no_sync() of a root that the case does not wrap: the roots of fully_shard "
            "synchronise apart",
            _OURS,
        ),
        "op:clip|op:clip_by_largest|op:clip_finite & dtype:float64": Exclusion(
            "a norm of float64 gradients, which FSDP1 computes in float32 (_get_grad_norm)",
            "fully_sharded_data_parallel.py, _get_grad_norm: 'The returned norm is in FP32 even "
            "if parameters/gradients are in a low precision.'",
        ),
        "edge:method": Exclusion(
            "a module is called by another method than forward, which alone gathers its "
            "parameters",
            _VIEWS,
        ),
        "shared_by_units": Exclusion(
            "a parameter is shared across units, for which support is limited",
            f"{_CLASS}: 'FSDP offers limited support for shared parameters'",
        ),
        "fsdp1:flat_params & splits_units": Exclusion(
            "a freeze of a part of a flat parameter, or an optimizer that gets a part",
            f"{_CLASS}: 'For use_orig_params=False, each FSDP instance must manage parameters "
            "that are all frozen or all non-frozen.'; use_orig_params: 'Setting this to False "
            "exposes FSDP's internal FlatParameters to the user'",
        ),
        "schedule:backward_late": Exclusion(
            "a backward of a forward that another backward came after, which removed the hooks "
            "that reduce (_runtime_utils.py, _finalize_params)",
            "_runtime_utils.py, _register_post_backward_hook: 'We register the post-backward hook "
            "only once in the first forward that a FlatParameter participates in.'",
        ),
        "schedule:changed_after_forward": Exclusion(
            "parameters change between forward and backward, or the optimizer gets some, when "
            "they are views",
            f"{_CLASS}: 'You should avoid modifying the parameters between forward and backward'",
        ),
        "freeze:toggled_while_pending": Exclusion(
            "requires_grad changes between forward and backward, when parameters are views",
            _VIEWS,
        ),
        "freeze:toggled_off_with_gradients": Exclusion(
            "a freeze while gradients are held, of which FSDP1 drops those of frozen parameters",
            "_flat_param.py, _use_sharded_grad_views: 'parameters with requires_grad=False have "
            "their gradients set to None'",
        ),
        "fsdp1:offload & schedule:microbatches|schedule:no_zero_grad": Exclusion(
            "gradients that add up, maybe outside no_sync(), with CPU offloading",
            f"{_CLASS}: 'FSDP currently does not support gradient accumulation outside no_sync() "
            "when using CPU offloading.'",
        ),
        "fsdp1:precision & !wrap:root|option:ignored": Exclusion(
            "mixed precision of what fully_shard does not cast, and so the reference: a root that "
            "the case does not wrap, or ignored parameters",
            _OURS,
        ),
        "fsdp1:policy & reuse:alias": Exclusion(
            "an auto-wrap policy replaces a module where it is registered first, and nowhere else",
            "fuzzshard: wrap.py, _recursive_wrap visits named_children, which names a module once",
        ),
        "schedule:ranks_differ & fsdp1:forward_prefetch|!fsdp1:detail": Exclusion(
            "ranks run different programs, which FSDP1 checks at debug level DETAIL only, and "
            "prefetches keep to the first order",
            "_exec_order_utils.py, _check_order: 'only checks if the distributed debug level is "
            "DETAIL'; class docstring, forward_prefetch: 'This should only be used for "
            "static-graph models since the prefetching follows the first iteration's execution "
            "order.'",
        ),
        "fsdp1:initial_meta & reuse:tied*": Exclusion(
            "a tie on the meta device",
            "torch/nn/modules/module.py, to_empty: a parameter for each name",
        ),
        "fsdp1:hook_* & fsdp1:hybrid|fsdp1:mixed": Exclusion(
            "a communication hook of a hybrid strategy, or for gradients of both kinds",
            "fully_sharded_data_parallel.py, register_comm_hook: 'Communication hook is not "
            "supported for hybrid strategies'; its hooks take a shard, or the whole gradient",
        ),
        "fsdp1:hook_fp16|fsdp1:hook_bf16 & fsdp1:precision": Exclusion(
            "two dtypes in which gradients are reduced, one of mixed precision and one of a hook",
            "_runtime_utils.py, _post_backward_hook: with a low precision hook gradients are not "
            "cast to reduce_dtype",
        ),
        "fsdp1:summon_*gradients|op:overflow & fsdp1:flat_params": Exclusion(
            "summon_full_params(with_grads=True) of flat parameters, in which gradients are whole",
            f"{_SUMMON}: 'only supported when passing use_orig_params=True to the FSDP "
            "constructor'",
        ),
        "fsdp1:summon_on_host & fsdp1:unsharded": Exclusion(
            "summon_full_params(offload_to_cpu=True) of parameters that are not sharded",
            f"{_SUMMON}: 'this offloading currently only occurs if the parameter is sharded'",
        ),
        "fsdp1:device_mesh & !fsdp1:hybrid & mesh:hsdp|mesh:axis_of_one": Exclusion(
            "a mesh of two axes for a strategy that has one",
            f"{_CLASS}, device_mesh: 'For hybrid sharding strategies such as HYBRID_SHARD, users "
            "can pass in a 2D DeviceMesh'",
        ),
    }

    @override
    def averages_again(self, case: Case) -> bool:
        return not shards(case)

    @override
    def features(self, case: Case, found: Inferred) -> Iterator[str]:
        for option, value in case.fsdp1.told():
            yield from option.features(value, case)

    @override
    def misfits(self, case: Case, found: Inferred) -> Reasons:
        options, runs = case.fsdp1, self.name in case.engines
        policy = options.precision
        if policy is not None and (policy.keep or policy.output):
            yield (
                "MixedPrecision of FSDP1 has no param_dtype_override_fn, and no output dtype",
                "remove keep and output from its precision",
            )
        if runs and policy is not None and any(group.precision is not None for group in case.wrap):
            yield (
                "both FSDP1 and wrap groups have mixed precision, and there is one reference",
                "keep one of the two",
            )
        if runs and options.is_hybrid and case.mesh.replicate is None:
            yield ("a hybrid strategy of FSDP1 needs a replicate axis", "set mesh.replicate")
