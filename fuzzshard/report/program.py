"""The schedule of a Case as a numbered program in PyTorch's words."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzshard.case.schedule import (
    Backward,
    Forward,
    Op,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.report.module_tree import model_name


def program(schedule: Sequence[Op]) -> list[str]:
    """One statement for each op; line ``i`` is the op that a finding calls ``op i``."""
    pending: list[str] = []
    lines = []
    for index, op in enumerate(schedule):
        match op:
            case Forward(grad=True):
                pending.append(f"loss{index}")
                lines.append(f"loss{index} = {_forward(op)}")
            case Forward():
                lines.append(f"with no_grad: {_forward(op)}")
            case Backward(which=which):
                taken = _take(pending, which)
                losses = taken[0] if len(taken) == 1 else f"({' + '.join(taken)})"
                lines.append(f"{losses}.backward()")
            case Step():
                lines.append("optimizer.step()")
            case ZeroGrad(set_to_none=set_to_none):
                lines.append(f"optimizer.zero_grad(set_to_none={set_to_none})")
            case SetFlag(flag=flag, value=value, target=target, recurse=recurse):
                only = "" if recurse else ", recurse=False"
                lines.append(f"{model_name(target)}.set_{flag}({value}{only})")
            case SetRequiresGrad(target=target, value=value):
                lines.append(f"{model_name(target)}.requires_grad_({value})")
            case SetMode(train=train):
                lines.append("model.train()" if train else "model.eval()")
    return lines


def _forward(op: Forward) -> str:
    outputs = "" if op.outputs is None else f"outputs {', '.join(map(str, op.outputs))} of "
    return f"loss({outputs}{model_name(op.target)}(batch {op.batch}))"


def _take(pending: list[str], which: str) -> list[str]:
    """What a backward takes from the pending losses."""
    if which == "all":
        taken = pending.copy()
        pending.clear()
        return taken
    return [pending.pop(0 if which == "oldest" else -1)]
