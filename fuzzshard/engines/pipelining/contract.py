"""Which cases ``torch.distributed.pipelining`` is not documented for."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator

from torch.distributed.pipelining import PipelineStage

from fuzzshard.case.batches import rows_of_batch
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts, has_batch_norm
from fuzzshard.case.optimized import shares
from fuzzshard.case.paths import is_within_any
from fuzzshard.case.schedule_state import follow
from fuzzshard.case.stages import (
    casts_between_stages,
    evaluations,
    num_stages,
    passes_dtensors,
    shared_by_stages,
    stages,
)
from fuzzshard.engines.ddp import contract as ddp
from fuzzshard.engines.exclusion import RETYPED, Exclusion
from fuzzshard.engines.fully_shard import contract as fully_shard
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE
from fuzzshard.parts.engines import BY_GROUPS, REFERENCE
from fuzzshard.parts.op import Op

_DOCS = "docs/source/distributed.pipelining.md"
_STAGE = "torch/distributed/pipelining/stage.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"


def not_applicable(case: Case) -> Exclusion | None:
    """Return why the documentation does not cover a case, or None; what that of ``fully_shard`` or
    DDP does not cover, or announces an error for, is not in a stage either.
    """
    found = _of_replicas(case) if case.pipelining.does("wraps_stages") else _of_shards(case)
    return next(itertools.chain(found, _of_model(case), _of_schedule(case)), None)


def _of_shards(case: Case) -> Iterator[Exclusion]:
    if (within := fully_shard.not_applicable(case)) is not None:
        yield within
    if any(True for refusal in fully_shard.REFUSALS for _ in refusal.due(case, BY_GROUPS.name)):
        yield Exclusion("fully_shard announces an error", "the contract of fully_shard")
    if not case.root_is_wrapped or None in facts(case).owners.values():
        yield Exclusion(
            "a parameter that fully_shard does not manage in every stage: nothing averages it",
            f"{_STAGE}, scale_grads: 'PP scales only for its own contribution (microbatches), but "
            "relies on DP to scale further for DP degree'",
        )


def _of_replicas(case: Case) -> Iterator[Exclusion]:
    if (within := ddp.not_applicable(case)) is not None:
        yield within
    if case.ddp.contexts("part") or case.ddp.does("finalized_by_user"):
        yield Exclusion(
            "DDP's join(), or backwards that are finalized by hand, within a schedule",
            f"{_SCHEDULES}, step: 'Run one iteration of the pipeline schedule with "
            "*whole-batch* input'",
        )
    if any(True for _ in NO_SAVED_STATE.due(case, REFERENCE.name)):
        yield Exclusion(NO_SAVED_STATE.pattern, NO_SAVED_STATE.source)
    if case.ddp.does("broadcasts_buffers") and facts(case).batch_norms:
        yield Exclusion(
            "buffers that DDP broadcasts: a schedule runs every forward within no_sync()",
            f"{_STAGE}, forward_maybe_with_nosync",
        )


def _of_model(case: Case) -> Iterator[Exclusion]:
    if not stages(case):
        yield Exclusion(
            f"the root is no chain of {num_stages(case)} modules or more, each called once with "
            "the one tensor that the one before returns",
            f"{_DOCS}, Option 1: 'a single nn.Module instance that owns the relevant "
            "nn.Parameters and nn.Buffers, and defines a forward() method that executes the "
            "operations relevant for that stage'",
        )
        return
    for shared in shared_by_stages(case):
        yield Exclusion(
            f"{shared} belongs to several stages",
            f"{_DOCS}, Option 1: a stage 'owns the relevant nn.Parameters'",
        )
    if case.compile or case.init == "meta" or case.finalize:
        yield Exclusion(
            "compilation, the meta device, or a backward that is finalized by hand within a stage",
            f"fuzzshard: not tried; {_STAGE}, forward_one_chunk, finalizes backwards itself",
        )
    if casts_between_stages(case):
        yield Exclusion(
            "mixed precision: every stage is a root of fully_shard, which casts its inputs and "
            "its output, and one of them changes a value between two stages",
            f"{_DOCS}, Step 1: 'When composing with other parallelisms or applying mixed "
            "precision, these techniques must be taken into account'",
        )
    if passes_dtensors(case) and "get_mesh" not in inspect.signature(PipelineStage).parameters:
        yield Exclusion(
            "DTensors between stages", "fuzzshard: asked of PipelineStage of the torch at hand"
        )
    if any(tensor.requires_grad for tensor in case.inputs.tensors):
        yield Exclusion(
            "an input requires a gradient",
            f"{_STAGE}, _create_grad_send_info: \"Root args don't have a source stage to send "
            'gradients to"',
        )
    if any(leaf.drops for leaf in facts(case).leaves.values()):
        yield Exclusion(
            "dropout: stages draw in another order than one forward after another",
            f"{_SCHEDULES}: the order of microbatches is that of the schedule",
        )


def _of_schedule(case: Case) -> Iterator[Exclusion]:
    zeroed, counts, shapes = True, set[int](), set[tuple[int, ...]]()
    for at in follow(case):
        op = at.op
        if op.retypes:
            yield RETYPED
        if not _is_of_training(op, within=bool(at.pending)):
            yield Exclusion(
                f"{op.noun()}: a schedule runs forwards and backwards of all microbatches at once",
                f"{_SCHEDULES}, step: 'Run one iteration of the pipeline schedule with "
                "*whole-batch* input'",
            )
        if op.begins:
            shapes.add(rows_of_batch(case, op.begins.batch))
        if op.takes:
            counts.add(len(at.taken))
            if not zeroed and case.pipelining.does("scales"):
                yield Exclusion(
                    "gradients of several iterations add up, and each divides all of them",
                    f"{_STAGE}, scale_grads: 'Should only be called once per pipeline schedule "
                    "step, after all backwards passes have completed'",
                )
            zeroed = False
        zeroed |= op.zeroes_gradients and not case.optimizer.left_out
    run = sum(len(at.taken) for at in follow(case) if at.op.takes)
    run += sum(map(len, evaluations(case).values()))
    waiting = run != len([op for op in case.schedule if op.begins])
    if len(counts) != 1 or waiting or len(shapes) > 1 or 0 in next(iter(shapes), (0,)):
        yield Exclusion(
            "iterations of different numbers of microbatches, or of different sizes",
            f"{_DOCS}, Step 1: 'The shapes must be static, e.g. at runtime the shapes can not "
            "change from step to step'",
        )
    if case.pipelining.does("fills_pipeline") and max(counts, default=0) < num_stages(case):
        yield Exclusion(
            "fewer microbatches than stages",
            f"{_SCHEDULES}, Schedule1F1B: 'ValueError: Number of microbatches ... must be greater "
            "than or equal to the number of stages'",
        )
    if any(op.via == "dcp" for op in case.schedule) and _lacks_optimizer(case):
        yield Exclusion(
            "a checkpoint of a rank whose stages have nothing that is optimized",
            "torch/optim/optimizer.py: 'ValueError: optimizer got an empty parameter list'",
        )
    if _shows_buffers(case) and _recomputes_statistics(case):
        yield Exclusion(
            "statistics of a checkpointed batch norm: backwards of microbatches recompute it in "
            "another order, and a split backward three times",
            f"{_SCHEDULES}: the order of microbatches is that of the schedule; {_STAGE}, "
            "backward_maybe_with_nosync: stage_backward_input and stage_backward_weight each go "
            "through what is recomputed",
        )
    if case.optimizer.does("scales"):
        yield Exclusion(
            "a GradScaler: the loss of a schedule is not scaled, and not all ranks have all "
            "gradients",
            f"{_SCHEDULES}, _PipelineSchedule: loss_fn is given once",
        )


def _shows_buffers(case: Case) -> bool:
    """Whether something but a forward with gradients reads buffers."""
    return any(op.takes_state or (op.begins and not op.begins.grad) for op in case.schedule)


def _recomputes_statistics(case: Case) -> bool:
    """Whether a backward runs a batch norm once more."""
    return any(has_batch_norm(case, checkpoint.module) for checkpoint in case.checkpoints)


def _lacks_optimizer(case: Case) -> bool:
    """Whether some rank has no parameter that one of its optimizers gets."""
    names: list[list[str]] = [[] for _ in range(case.mesh.pipeline or 1)]
    for stage in stages(case):
        names[stage.rank] += facts(stage.case).parameters
    left_out = case.optimizer.left_out
    held = ([n for n in of_rank if not is_within_any(n, left_out)] for of_rank in names)
    return not all(all(shares(case.optimizer, of_rank)) for of_rank in held)


def _is_of_training(op: Op, *, within: bool) -> bool:
    """Whether it is a forward of the root, the backward of all pending ones, or what a rank does
    with the gradients of its stages; or, unless ``within`` an iteration, with all that they have.
    """
    if (call := op.begins) is not None:
        is_next = call.grad or not within
        return is_next and op.call == call and not call.target and call.outputs is None
    if op.takes:
        return op.takes == "all" and not op.retains and op.loss_of is None
    if op.updates or op.zeroes_gradients or op.clips:
        return True
    of_states = op.takes_state or op.corrupts or op.waits_for_save
    frees = op.frees and op.below is not None and op.below.everything
    return not within and (of_states or frees or op.train is not None)
