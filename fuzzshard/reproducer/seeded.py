"""Values as anyone would write them, from ``torch.manual_seed``: the model of a script and its
inputs.

They are not the values of the case: most findings do not depend on values at all, and a script is
run before it is saved. The comparison of those that do allows for what the other values change
(:func:`tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.program.setup import freeze_lines
from fuzzshard.reproducer.aim import ROUNDING, Aim


def model_lines(case: Case, variable: str) -> list[str]:
    """Makes the plain model."""
    cast = "" if case.dtype == "float32" else f", torch.{case.dtype}"
    return [
        "torch.manual_seed(0)",
        f"{variable} = Model().to(device{cast})",
        *freeze_lines(case, variable),
    ]


def seed_line(case: Case) -> str:
    """Before the inputs are drawn."""
    return "torch.manual_seed(1)" if case.inputs.same_on_ranks else "torch.manual_seed(1 + rank)"


def input_expression(case: Case, spec: TensorSpec, leading: Sequence[str]) -> str:
    """Draws one input; ``leading`` are the expressions of its dimensions but for the last of a
    float.
    """
    where = "" if case.inputs.on_host else ", device=device"
    if spec.kind == "ids":
        comma = "," * (len(leading) == 1)
        return f"torch.randint({spec.size}, ({', '.join(leading)}{comma}){where})"
    shape = ", ".join((*leading, str(spec.size)))
    dtype = "" if case.dtype == "float32" else f", dtype=torch.{case.dtype}"
    grad = ", requires_grad=True" if spec.requires_grad else ""
    return f"torch.randn({shape}{dtype}{where}{grad})"


def tolerance(case: Case, aim: Aim) -> float:
    """What the engine may differ by: nothing, or halfway (in digits) from rounding to the
    finding's error.

    Nothing where bits were compared and nothing was reduced yet.
    """
    reduces = any(op.takes for op in case.schedule[: (aim.op or 0) + 1])
    if not aim.bound and not (reduces or case.tensor_parallel):
        return 0.0
    if not aim.error:
        return aim.bound or 0.0
    rounding = aim.bound or ROUNDING[case.dtype]
    return float(10.0 ** math.floor(math.log10(math.sqrt(rounding * aim.error))))
