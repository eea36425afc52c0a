"""Features of the schedule of a Case."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzshard.case.case import Case
from fuzzshard.case.groups import wrapped_modules
from fuzzshard.case.progress import modules_named
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Op,
    Reshard,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetMode,
    SetPath,
    Step,
    TakeStateDict,
    Unshard,
    ZeroGrad,
)


def schedule_features(case: Case) -> Iterator[str]:
    """What the schedule does, and in which state."""
    modules = wrapped_modules(case) or frozenset(("",))
    off: dict[str, set[str]] = {}
    pending = steps = backwards = 0
    training, zeroed, unsynced = True, True, False
    for op in case.schedule:
        match op:
            case SetMode(train=training):
                pass
            case SetFlag():
                chosen = set(modules_named(case, modules, op.target, recurse=op.recurse))
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


def op_features(case: Case) -> Iterator[str]:
    """The ops that say by themselves what they do."""
    forwarded = False
    for op in case.schedule:
        forwarded |= isinstance(op, Forward)
        yield from _op(case, op, forwarded=forwarded)


def _op(case: Case, op: Op, *, forwarded: bool) -> Iterator[str]:
    match op:
        case SetPath():
            yield "op:set_path" if op.ranks == "all" else "op:set_path_on_some_ranks"
        case SetFlag(flag="reshard_after_forward"):
            yield "op:set_reshard_after_forward"
        case SetDivideFactor():
            yield "op:divide_factor"
        case Unshard():
            yield "op:unshard_async" if not op.waits else "op:unshard_wait" if op.async_op else "op:unshard"
        case Reshard():
            yield "op:reshard"
        case Abort():
            yield f"op:abort_{op.during}"
        case ClipGradNorm():
            yield "op:clip"
        case Cast():
            yield "op:cast"
            if not forwarded:
                yield "op:cast_before_forward"
        case TakeStateDict():
            yield "op:take_state_dict"
            if not forwarded:
                yield "op:take_state_dict_before_forward"
        case SaveState():
            yield f"op:save_{op.via}"
        case CorruptState():
            yield f"op:{'rebuild' if op.how == 'rebuild' else 'corrupt'}"
        case LoadState():
            yield "op:load_assign" if op.assign else "op:load"
        case _:
            pass
