"""The schedule of a Case as a numbered program in PyTorch's words."""

from __future__ import annotations

from collections.abc import Sequence

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
    SetRequiresGrad,
    Step,
    TakeStateDict,
    Unshard,
    ZeroGrad,
)
from fuzzshard.report.module_tree import model_name


def program(schedule: Sequence[Op]) -> list[str]:
    """One statement for each op; line ``i`` is the op that a finding calls ``op i``."""
    taken = losses_taken(schedule)
    lines = []
    for index, op in enumerate(schedule):
        match op:
            case Forward(grad=True):
                lines.append(f"loss{index} = {_forward(op)}")
            case Forward():
                lines.append(f"with no_grad: {_forward(op)}")
            case Backward():
                losses = " + ".join(f"loss{forward}" for forward in taken[index])
                lines.append(f"{losses if len(taken[index]) == 1 else f'({losses})'}.backward()")
            case _:
                lines.append(_statement(op))
    return lines


def losses_taken(schedule: Sequence[Op]) -> dict[int, list[int]]:
    """For each backward the forwards whose losses it takes, all by their index."""
    pending: list[int] = []
    taken: dict[int, list[int]] = {}
    for index, op in enumerate(schedule):
        if isinstance(op, Forward) and op.grad:
            pending.append(index)
        elif isinstance(op, Backward):
            taken[index] = _take(pending, op.which)
    return taken


def _statement(op: Op) -> str:
    """An op that neither adds a loss nor takes one."""
    others = "if rank > 0: " if getattr(op, "ranks", "all") == "others" else ""
    match op:
        case Step():
            return "optimizer.step()"
        case ZeroGrad(set_to_none=set_to_none):
            return f"optimizer.zero_grad(set_to_none={set_to_none})"
        case SetFlag(flag=flag, value=value, target=target, recurse=recurse):
            return f"{model_name(target)}.set_{flag}({value}{_only(recurse)})"
        case SetRequiresGrad(target=target, value=value, engines_only=engines_only):
            spared = "  # not of the reference" if engines_only else ""
            return f"{others}{model_name(target)}.requires_grad_({value}){spared}"
        case SetMode(train=train):
            return "model.train()" if train else "model.eval()"
        case SetPath(target=target, path=path):
            return f"{others}{model_name(target)}.path = {path}"
        case SetDivideFactor(factor=factor, target=target, recurse=recurse):
            return f"{model_name(target)}.set_gradient_divide_factor({factor}{_only(recurse)})"
        case Unshard(target=target, recurse=recurse, async_op=async_op, wait=wait):
            waits = ".wait()" if async_op and wait else ""
            return f"{model_name(target)}.unshard(async_op={async_op}{_only(recurse)}){waits}"
        case Reshard(target=target, recurse=recurse):
            return f"{model_name(target)}.reshard({_only(recurse).removeprefix(', ')})"
        case Abort(target=target, batch=batch, during=during):
            return f"{model_name(target)} raises in the {during} of batch {batch}; model.reset_iter_state()"
        case ClipGradNorm(max_norm=max_norm, norm_type=norm_type):
            return f"clip_grad_norm_({max_norm}, norm_type={norm_type})"
        case Cast(dtype=dtype):
            return f"model.to({dtype})"
        case LoadState(assign=assign):
            return f"load_state({'assign=True' if assign else ''})"
        case TakeStateDict():
            return "kept = model.state_dict()"
        case SaveState(via=via):
            return f"save_state(via={via!r})"
        case CorruptState(how=how):
            return f"corrupt_state({how!r})"
    raise AssertionError(f"{op} is no statement")


def _only(recurse: bool) -> str:
    return "" if recurse else ", recurse=False"


def _forward(op: Forward) -> str:
    outputs = "" if op.outputs is None else f"outputs {', '.join(map(str, op.outputs))} of "
    return f"loss({outputs}{model_name(op.target)}(batch {op.batch}))"


def _take(pending: list[int], which: str) -> list[int]:
    """What a backward takes from the pending losses."""
    if which == "all":
        taken = pending.copy()
        pending.clear()
        return taken
    return [pending.pop(0 if which == "oldest" else -1)]
