"""The values of a script, as anyone would write them: its model and its inputs come from
``torch.manual_seed``.

They are not the values of the case: most findings do not depend on values at all, and a script is
run before it is saved. A comparison allows for what other values change (:func:`tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuzzshard.analysis.batches import input_specs, rows_of_batch
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.paths import is_within
from fuzzshard.parts.op import Call, Op
from fuzzshard.parts.statements import assignment
from fuzzshard.program.setup import freeze_lines
from fuzzshard.reproducer.assertion import ROUNDING, Assertion

_LOOSE = {"float32": "rtol=1e-4, atol=1e-5", "float64": "rtol=1e-9, atol=1e-9"}
"""Where nobody has measured what rounding explains."""


def model_lines(case: Case, variable: str, seed: object, *, meta: bool = False) -> list[str]:
    """Make the plain model, on the meta device perhaps."""
    made = constructed(case, variable, meta=meta)
    return [f"torch.manual_seed({seed})", *made, *freeze_lines(case, variable)]


def constructed(case: Case, variable: str, *, meta: bool = False) -> list[str]:
    """Make a model of the values that come next; on the meta device it draws none."""
    cast = "" if case.dtype == "float32" else f"torch.{case.dtype}"
    if meta:
        made = f"{variable} = Model(){f'.to({cast})' if cast else ''}"
        lines = ['with torch.device("meta"):', f"    {made}"]
    else:
        lines = [f"{variable} = Model().to({', '.join(filter(None, ['device', cast]))})"]
    for entry in case.dtypes:
        names = [fqn for fqn in inferred(case).parameters if is_within(fqn, entry.target)]
        lines += [
            *assignment("names_below", names),
            f"for p in map({variable}.get_parameter, names_below):",
            f"    p.data = p.data.to(torch.{entry.dtype})",
        ]
    return lines


def tolerance(case: Case, assertion: Assertion) -> str:
    """Write what the engine may differ by: halfway, in digits, from what rounding explains to the
    error of the finding.

    Nothing where bits were compared and nothing was reduced yet.
    """
    reduces = any(op.takes for op in case.schedule[: (assertion.op or 0) + 1])
    if assertion.bound == 0 and not (reduces or case.tensor_parallel):
        return "rtol=0, atol=0"
    if assertion.bound is None or not assertion.error:
        return _LOOSE[case.dtype]
    rounding = assertion.bound or ROUNDING[case.dtype]
    return (
        f"rtol=0, atol={10.0 ** math.floor(math.log10(math.sqrt(rounding * assertion.error))):g}"
    )


class Inputs:
    """The input tensors of the forwards of ``ops``: ``x`` where there is one batch of one tensor,
    else ``x3_1``. All are drawn before the first forward, and again where everything was cast.
    """

    def __init__(self, case: Case, ops: Sequence[Op], seed: int) -> None:
        self.case = case
        rank = "" if case.inputs.same_on_ranks else " + rank"
        self.seed_line = f"torch.manual_seed({seed + 1}{rank})"
        calls = [op.begins for op in ops if op.begins]
        self._batches = [*dict.fromkeys((call.target, call.batch) for call in calls)]
        self._drawn = ""

    def variables(self, call: Call) -> list[str]:
        """List the input tensors of a forward."""
        return [variable for variable, _ in self._tensors(call.target, call.batch)]

    def drawn(self, dtype: str) -> list[str]:
        """Draw the tensors of all batches, unless they are there in that dtype."""
        if self._drawn == dtype:
            return []
        self._drawn = dtype
        return [
            self.seed_line,
            *(
                f"{variable} = {self._expression(spec, batch)}"
                for target, batch in self._batches
                for variable, spec in self._tensors(target, batch)
            ),
        ]

    def differentiable(self) -> dict[str, str]:
        """Return the variables of the inputs that require a gradient, by label."""
        return {
            f"input {i} of batch {batch}{' of ' + target if target else ''}": variable
            for target, batch in self._batches
            for i, (variable, spec) in enumerate(self._tensors(target, batch))
            if spec.requires_grad
        }

    def _tensors(self, target: str, batch: int) -> list[tuple[str, TensorSpec]]:
        """Return the variables of a batch, and what they are."""
        specs = input_specs(self.case, target)
        stem = f"x{batch}{'_' if target else ''}{target.replace('.', '_')}"
        stem = "x" if len(self._batches) == 1 else stem
        if len(specs) == 1:
            return [(stem, specs[0])]
        return [(f"{stem}_{i}", spec) for i, spec in enumerate(specs)]

    def _expression(self, spec: TensorSpec, batch: int) -> str:
        """Draw one tensor."""
        rows, seq = rows_of_batch(self.case, batch), self.case.inputs.seq
        leading = [f"{list(rows)}[rank]" if len(set(rows)) > 1 else str(rows[0])]
        leading += [str(seq)] if seq else []
        where = "" if self.case.inputs.on_host else ", device=device"
        if spec.kind == "ids":
            comma = "," * (len(leading) == 1)
            return f"torch.randint({spec.size}, ({', '.join(leading)}{comma}){where})"
        shape = ", ".join((*leading, str(spec.size)))
        dtype = "" if self._drawn == "float32" else f", dtype=torch.{self._drawn}"
        grad = ", requires_grad=True" if spec.requires_grad else ""
        return f"torch.randn({shape}{dtype}{where}{grad})"
