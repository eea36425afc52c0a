"""``torch.distributed.pipelining``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.engines.fully_shard import FullyShard
from fuzzshard.parts.engines.older import SCALER, STATES
from fuzzshard.parts.exclusion import Excludes, Exclusion, where
from fuzzshard.parts.op import Choice, Reasons
from fuzzshard.parts.ops import OPS

if TYPE_CHECKING:
    from fuzzshard.analysis.inferred import Inferred
    from fuzzshard.case.case import Case

_DOCS = "docs/source/distributed.pipelining.md"
_STAGE = "torch/distributed/pipelining/stage.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"
_AT_ONCE = (
    f"{_SCHEDULES}, step: 'Run one iteration of the pipeline schedule with *whole-batch* input'"
)

_OF_STAGES = tuple(c.name for op in OPS for c in op.choices if c.of_stages)


class PipelineParallel(EngineSpec):
    """Ranks along the pipeline axis have stages of the model, under ``fully_shard`` or DDP."""

    name = "pipelining"
    title = "`torch.distributed.pipelining`"
    tag = "pipelining"
    nicknames = ("pp", "pipeline")
    meaning = "a pipeline schedule runs, with fully_shard or DDP in its stages"
    options = "pipelining"
    choice = Choice(
        "pipelining",
        11,
        place=100,
        brings=_OF_STAGES,
        # what a chain of stages has no place for, or runs at once in place of op by op
        excludes=(
            *("several_inputs", "input_grad", "list_group", "root_not_wrapped"),
            *("alternatives", "ignored"),
            *("meta", "compile", "rank_batches", "finalize", "toggle"),
            *("two_forwards", "partial_loss", "backward_order"),
            *("partial_sync", "no_all_reduce", "not_last_backward", "no_reshard"),
            *("no_zero_grad", "losses_only", "any_moment"),
            "non_root_forward",
            *(c.name for op in OPS for c in op.choices if c.name not in _OF_STAGES),
            "grad_scaler",
        ),
    )
    in_stages = True
    excludes: ClassVar[Excludes] = {
        **where("!pipelining:ddp", FullyShard.excludes),
        **where("pipelining:ddp", DistributedDataParallel.excludes),
        "!pipelining:ddp & !wrap:root|wrap:parameter_in_no_group": Exclusion(
            "a parameter that fully_shard does not manage in every stage: nothing averages it",
            f"{_STAGE}, scale_grads: 'PP scales only for its own contribution (microbatches), but "
            "relies on DP to scale further for DP degree'",
        ),
        "!pipelining:ddp & wrap:list_group|edge:iadd|reuse:tied_across_groups": Exclusion(
            "groups of which fully_shard may announce an error",
            "torch/distributed/fsdp/_fully_shard/_fsdp_state.py, _lazy_init, "
            "_validate_no_duplicate_params and _register_pre_backward_hook",
        ),
        "pipelining:ddp & schedule:no_sync": Exclusion(
            "gradients that a schedule does not finalize, in stages under DDP",
            f"{_SCHEDULES}, step: 'finalize_gradients ... This has no effect on non-FSDP stages.'",
        ),
        "schedule:step_unsynced": Exclusion(
            "gradients that a schedule has not finalized are used or zeroed",
            f"{_SCHEDULES}, step: 'If ``False``, FSDP parameters stay unsharded, and a later call "
            "with ``True`` is required before reading ``.grad``.'",
        ),
        "op:autocast|op:copies_saved": Exclusion(
            "a context around a forward, and not its backward: a schedule runs both", _AT_ONCE
        ),
        "lacks_saved_state": Exclusion(
            "a checkpoint that lacks the state of a parameter, which is an error in every stage",
            "torch/distributed/checkpoint/state_dict.py, _split_optim_state_dict: 'The parameter "
            "requires gradients but has no saved optimizer state.'",
        ),
        "pipelining:ddp & ddp:join_*|ddp:manual_finalization": Exclusion(
            "DDP's join(), or backwards that are finalized by hand, within a schedule", _AT_ONCE
        ),
        "pipelining:ddp & ddp:hook_fp16*": Exclusion(
            "a hook that rounds gradients, which a schedule scales later",
            f"{_STAGE}, scale_grads: 'PP scales only for its own contribution (microbatches), but "
            "relies on DP to scale further for DP degree.'",
        ),
        "is_no_chain": Exclusion(
            "the root is no chain of as many modules as there are stages or more, each called "
            "once with the one tensor that the one before returns; or a module, a parameter, a "
            "checkpoint or a group belongs to several stages; or a stage detaches what it gets, "
            "so that those before it get zeros",
            f"{_DOCS}, Option 1: 'a single nn.Module instance that owns the relevant "
            "nn.Parameters and nn.Buffers, and defines a forward() method that executes the "
            f"operations relevant for that stage'; {_STAGE}, set_local_bwd_input: 'A missing "
            "gradient is represented by a zero receive buffer when metadata exists.'",
        ),
        "communication:zeros_for_unused & edge:unused_module": Exclusion(
            "zeros for modules that nobody calls: a schedule may unshard them, and a stage that "
            "has no others may have no backward",
            "torch/distributed/fsdp/_fully_shard/_fully_shard.py, "
            "set_reduce_scatter_unused_params: 'parameters that did not receive a gradient in "
            f"backward'; {_SCHEDULES}, _add_unshard_reshard",
        ),
        "pipelining:few_sends & pipelining:late_receives": Exclusion(
            "a bound on pending sends where receives come late, which not every schedule can keep",
            f"{_SCHEDULES}, ScheduleInterleaved1F1B: 'Schedule construction raises ValueError "
            "when no causally safe wait placement can meet the limit.'",
        ),
        "pipelining:dual_pipe_v & pipelining:one_active_stage": Exclusion(
            "one active stage, of a schedule that runs two of them together",
            f"{_SCHEDULES}, _add_unshard_reshard: 'The current atomic action must fit within "
            "``max_active_stages``.'",
        ),
        "compile:*|option:meta|option:finalize_*": Exclusion(
            "compilation, the meta device, or a backward that is finalized by hand within a stage",
            f"fuzzshard: not tried; {_STAGE}, forward_one_chunk, finalizes backwards itself",
        ),
        "casts_between_stages": Exclusion(
            "mixed precision: every stage is a root of fully_shard, which casts its inputs and "
            "its output, and one of them changes a value between two stages",
            f"{_DOCS}, Step 1: 'When composing with other parallelisms or applying mixed "
            "precision, these techniques must be taken into account'",
        ),
        "input:requires_grad": Exclusion(
            "an input requires a gradient",
            f"{_STAGE}, _create_grad_send_info: \"Root args don't have a source stage to send "
            'gradients to"',
        ),
        "leaf:dropout": Exclusion(
            "dropout: stages draw in another order than one forward after another",
            f"{_SCHEDULES}: the order of microbatches is that of the schedule",
        ),
        "runs_other_ops": Exclusion(
            "an op that is none of iterations: a schedule runs forwards and backwards of all "
            "microbatches at once",
            _AT_ONCE,
        ),
        "iterations_differ": Exclusion(
            "iterations of different numbers of microbatches, of different sizes, of fewer than "
            "stages where a schedule needs as many, or whose gradients add up and each divides "
            "all",
            f"{_DOCS}, Step 1: 'The shapes must be static, e.g. at runtime the shapes can not "
            f"change from step to step'; {_SCHEDULES}, Schedule1F1B: 'ValueError: Number of "
            "microbatches ... must be greater than or equal to the number of stages'; "
            "ScheduleDualPipeV: 'DualPipeV requires at least as many microbatches as stages'; "
            f"{_STAGE}, scale_grads: 'Should only be called once per pipeline schedule step, "
            "after all backwards passes have completed'",
        ),
        "op:save_dcp|op:save_get_state_dict|op:get_model_state_dict & lacks_optimizer": Exclusion(
            "a checkpoint of a rank whose stages have nothing that is optimized",
            "torch/optim/optimizer.py: 'ValueError: optimizer got an empty parameter list'; "
            "torch/distributed/checkpoint/state_dict.py, _verify_state_dict: 'The option "
            "indicates that model state_dict is required to save or load, but model state_dict is "
            "empty.'",
        ),
        "op:save_stateful|state:broadcast_from_rank0": Exclusion(
            "states without names, or of rank 0 alone: ranks have stages of their own",
            "torch/distributed/checkpoint/state_dict.py, _flatten_optim_state_dict: 'This API "
            "flattens the optimizer state_dict to support optimizer resharding for MPMD, e.g., "
            "pipeline parallelism.'; StateDictOptions: 'rank0 should receive a full state_dict'",
        ),
        f"recomputes_buffers & op:take_state_dict*|{STATES}|schedule:*_forward": Exclusion(
            "statistics of a checkpointed batch norm: backwards of microbatches recompute it in "
            "another order, and a split backward three times",
            f"{_SCHEDULES}: the order of microbatches is that of the schedule; {_STAGE}, "
            "backward_maybe_with_nosync: stage_backward_input and stage_backward_weight each go "
            "through what is recomputed",
        ),
        "recomputes_buffers & leaf:running_sum": Exclusion(
            "a checkpointed module that computes with the buffer that it updates, as microbatches "
            "come between its forward and its recomputation",
            "torch/utils/checkpoint.py, checkpoint: 'If the function invocation during the "
            "backward pass differs from the forward pass ... the checkpointed version may not be "
            "equivalent'",
        ),
        SCALER: Exclusion(
            "a GradScaler: the loss of a schedule is not scaled, and not all ranks have all "
            "gradients",
            f"{_SCHEDULES}, _PipelineSchedule: loss_fn is given once",
        ),
    }

    @override
    def averages_again(self, case: Case) -> bool:
        return case.pipelining.replicates

    @override
    def features(self, case: Case, found: Inferred) -> Iterator[str]:
        yield from super().features(case, found)
        if case.pipelining.replicates:
            yield from DistributedDataParallel().features(case, found)

    @override
    def misfits(self, case: Case, found: Inferred) -> Reasons:
        if self.name in case.engines and case.mesh.pipeline is None:
            yield (
                "a pipeline schedule runs along the pipeline axis of a mesh",
                "set mesh.pipeline, or leave out this engine",
            )
        for option, value in case.pipelining.told():
            if value != option.default and not option.fits(case):
                number = "several stages" if option.of_several else "one stage"
                yield (
                    f"{option.name} is for schedules with {number} on a rank",
                    "choose another schedule_class, or leave it out",
                )
