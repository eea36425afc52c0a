"""``DistributedDataParallel``, and what runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import UNEVEN, EngineSpec
from fuzzshard.parts.engines.older import (
    OLDER,
    OTHER_GRAPH_ON_ONE_RANK,
    POLICIES,
    STATES,
    UNSYNCED,
)
from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.op import Choice, Reasons
from fuzzshard.parts.ops import NEW_CHOICES
from fuzzshard.parts.part import off_default

if TYPE_CHECKING:
    from fuzzshard.analysis.inferred import Inferred
    from fuzzshard.case.case import Case

_CLASS = "torch/nn/parallel/distributed.py, class docstring"
_CONSTRUCTION = (
    f"{_CLASS}: 'You should never try to change your model's parameters after wrapping up your "
    "model with DistributedDataParallel ... the constructor will register the additional gradient "
    "reduction functions on all the parameters of the model itself at the time of construction'"
)
_LATE = (
    "torch/distributed/_composable/replicate.py: DDP is made of a list of parameters, by the "
    "first forward"
)
_ZERO = "torch/distributed/optim/zero_redundancy_optimizer.py"


class DistributedDataParallel(EngineSpec):
    """Replicates the model, whatever its wrap groups are."""

    name = "ddp"
    title = "`DistributedDataParallel`"
    tag = "DDP"
    meaning = "DistributedDataParallel runs"
    options = "ddp"
    wrapper = "DistributedDataParallel"
    differs_in: ClassVar[tuple[str, ...]] = ("buffer",)
    excludes: ClassVar[Excludes] = {
        **{key: row for key, row in EngineSpec.excludes.items() if key != UNEVEN},
        **OLDER,
        f"{POLICIES}|all_gather:float8|fsdp1:precision": Exclusion(
            "mixed precision or rounded all-gathers, which DDP does not know",
            "fuzzshard: MixedPrecisionPolicy and fsdp_pre_all_gather are fully_shard's",
        ),
        "input:no_rows & leaf:dropout & edge:no_grad_call": OTHER_GRAPH_ON_ONE_RANK,
        "op:load_assign & op:save_state_dict": Exclusion(
            "load_state_dict(assign=True) replaces the parameters that DDP's constructor has "
            "hooked",
            _CONSTRUCTION,
        ),
        "schedule:non_root_loss": Exclusion(
            "a forward does not go through the DDP wrapper",
            f"{_CLASS}: 'Constructor, forward method, and differentiation of the output ... are "
            "distributed synchronization points'",
        ),
        "freeze:thawed": Exclusion(
            "a parameter frozen at construction is unfrozen: DDP never synchronises it",
            _CONSTRUCTION,
        ),
        "schedule:backward_newest|schedule:backward_oldest": Exclusion(
            "several forwards have their backward one by one",
            "reducer.cpp, checkAndRaiseMarkedTwiceError: 'Please make sure model parameters are "
            "not shared across multiple concurrent forward-backward passes.'",
        ),
        "freeze:toggled_off_unsynced": Exclusion(
            "a freeze while gradients wait for their synchronisation, of which DDP's hooks see no "
            "more",
            _CONSTRUCTION,
        ),
        f"user_hook:post_accumulate_grad_hook & {UNSYNCED}": Exclusion(
            "a hook on what has accumulated, and a backward that does not synchronise",
            "_tensor.py, register_post_accumulate_grad_hook: 'The hook will be called after all "
            "gradients for a tensor have been accumulated', which DDP's are on each rank by then; "
            "engines that keep unsynchronised gradients elsewhere call it when they are reduced",
        ),
        "user_hook:step_in_backward": Exclusion(
            "a step within the backward, before DDP has averaged what it takes",
            "docs/source/notes/ddp.rst: 'When all buckets are ready, the Reducer will block "
            "waiting for all allreduce operations to finish. When this is done, averaged "
            "gradients are written to the param.grad field of all parameters.'",
        ),
        "ddp:no_find_unused_parameters & !ddp:static_graph & misses_a_parameter": Exclusion(
            "a backward misses a parameter, and find_unused_parameters is off",
            f"{_CLASS}, find_unused_parameters: 'Parameters that don't receive gradients as part "
            "of this graph are preemptively marked as being ready to be reduced'",
        ),
        "ddp:static_graph & graph_changes": Exclusion(
            "a graph that changes",
            f"{_CLASS}, static_graph: 'The set of used and unused parameters will not change ... "
            "How the graph is trained will not change during the whole training loop'",
        ),
        "ddp:skip_all_reduce_unused_params & graph_changes & misses_a_parameter": Exclusion(
            "unused parameters that may change",
            f"{_CLASS}, skip_all_reduce_unused_params: 'This requires that unused parameters "
            "remain the same across all ranks throughout the entire training process.'",
        ),
        "ddp:static_graph & loss:gradient_penalty": Exclusion(
            "a backward through a backward, of which static_graph reduces after the first",
            f"{_CLASS}: 'This module doesn't work with torch.autograd.grad (i.e. it will only "
            "work if gradients are to be accumulated in .grad attributes of parameters)'; in the "
            "first iteration the end of any backward reduces (_DDPSink.backward)",
        ),
        "ddp:uncloned_outputs & ddp:no_find_unused_parameters & !ddp:static_graph": Exclusion(
            "outputs are not cloned anyway",
            "distributed.py, _post_forward: 'DDPSink is currently enabled for unused parameter "
            "detection and static graph training for first iteration.'",
        ),
        "ddp:uncloned_outputs & loss:doubled_in_place": Exclusion(
            "outputs are changed in place, and DDP is told not to clone them",
            "distributed.py, _set_ddp_sink_clone: 'this can be set to False if you are not "
            "modifying the loss in place'",
        ),
        "ddp:hook_fp16* & user_hook:post_accumulate_grad_hook": Exclusion(
            "a hook on what has accumulated, and DDP's hook rounds what it leaves",
            "fuzzshard: the reference averages before it calls such hooks, as fully_shard does; "
            "that they are linear makes no difference only where nothing is rounded in between",
        ),
        "ddp:hook_fp16* & misses_a_parameter & schedule:microbatches|schedule:no_zero_grad & "
        "ddp:gradient_as_bucket_view|edge:unused_output|schedule:several_losses": Exclusion(
            "float16 rounds once more what a parameter holds that a later backward misses",
            "reducer.cpp, finalize_bucket_dense: 'If a parameter is globally unused, we keep its "
            "grad untouched', but not where that is a view of the bucket, or an output depends on "
            "it: then it is averaged again",
        ),
        "ddp:device_mesh & mesh:hsdp|mesh:axis_of_one|mesh:tensor": Exclusion(
            "a mesh of two axes",
            "distributed.py, __init__: 'Only 1D device mesh is supported'",
        ),
    }

    @override
    def averages_again(self, case: Case) -> bool:
        return True

    @override
    def features(self, case: Case, found: Inferred) -> Iterator[str]:
        off = {*off_default(case.ddp)}
        for option, value in case.ddp.told():
            if option.name in off and (self.ignores_modules or option.name != "ignored_modules"):
                yield from option.features(value, case, found)

    @override
    def misfits(self, case: Case, found: Inferred) -> Reasons:
        others = set(case.engines) - {DistributedDataParallel.name}
        if case.ddp.broadcasts_buffers and others and found.updated:
            yield (
                "DDP broadcasts buffers, which the other engines do not, and there is one "
                "reference",
                'run the engine ddp alone, or set ddp.buffers to "local"',
            )


class Replicate(DistributedDataParallel):
    """DDP without a wrapper, and with its options."""

    name = "replicate"
    title = "`replicate`"
    tag = "replicate"
    meaning = "composable DDP runs"
    wrapper = ""
    choice = Choice("replicate", 23, place=2)
    ignores_modules = True
    excludes: ClassVar[Excludes] = {
        **DistributedDataParallel.excludes,
        f"ddp:join_*|ddp:manual_finalization|{UNEVEN}": Exclusion(
            "replicate() has no join() and no finalize_backward()", _LATE
        ),
        "ddp:uncloned_outputs": Exclusion(
            "replicate() returns the module, which has no _set_ddp_sink_clone()", _LATE
        ),
        "ddp:broadcasts": Exclusion("replicate() gives DDP no buffers to broadcast", _LATE),
        "ddp:initial_first_rank & ddp:initial_used|op:rebuild": Exclusion(
            "parameters are used before the first forward, which synchronises them",
            _LATE,
        ),
        "freeze:toggled_on & freeze:toggled_off|freeze:after_wrap": Exclusion(
            "a parameter that may be frozen in the first forward is unfrozen", _LATE
        ),
    }


class ZeroRedundancy(DistributedDataParallel):
    """DDP with its options, and an optimizer of which every rank has a part."""

    name = "zero_redundancy"
    title = "`ZeroRedundancyOptimizer`"
    tag = "ZeRO"
    meaning = "DDP runs with ZeroRedundancyOptimizer"
    choice = Choice(
        "zero_redundancy",
        8,
        place=3,
        # what DDP has nothing for, or parameters of several types: it would not run
        excludes=(
            *("tensor", "other_dtypes", "partial_sync", "non_root_forward"),
            *NEW_CHOICES,
            "precision",
        ),
        brings=("step_hooks", "add_param_group", "lr_scheduler"),
    )
    differs_in = (*DistributedDataParallel.differs_in, "optimizer_state", "resume")
    excludes: ClassVar[Excludes] = {
        **DistributedDataParallel.excludes,
        "op:uneven_no_sync": Exclusion(
            "several forwards of an uneven iteration, and one step",
            f"{_ZERO}, _ZeROJoinHook.main_hook, which join() calls for every forward of DDP: "
            "'Perform an optimizer step.'",
        ),
        STATES: Exclusion(
            "the state of the optimizer is saved, of which a rank has a part",
            f"{_ZERO}, state_dict: 'RuntimeError: ... if this method is called without a "
            "preceding call to consolidate_state_dict', which puts it all on one rank; "
            "torch.distributed.checkpoint does not call that",
        ),
        "precision:parameter_dtype|tensor:*": Exclusion(
            "the parameters are not all of one type",
            f"{_ZERO}, class docstring: 'Currently, ZeroRedundancyOptimizer requires that all of "
            "the passed-in parameters are the same dense type.'",
        ),
    }
