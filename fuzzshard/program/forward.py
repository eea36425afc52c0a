"""The call of a module, its outputs and their loss, as expressions and statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fuzzshard.analysis.batches import rows_of_batch
from fuzzshard.analysis.inferred import has_batch_norm, inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.model.expressions import call_expression, is_checkpointed_at_call, result_expression
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.loss import Term
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Call

if TYPE_CHECKING:
    from fuzzshard.program.scope import Scope


def call_text(
    scope: Scope, target: str, callee: str, arguments: list[str], *, by_forward: bool
) -> str:
    """Call ``target``, ``by_forward`` where what the engine made of it has no other method.

    The reference computes again what that changes, and nothing else: the statistics of a batch
    norm are updated twice, with any engine.
    """
    case, module = scope.case, inferred(scope.case).modules[target]
    if isinstance(module, Block) and by_forward:
        module = replace(module, method="forward")
    checkpointed = is_checkpointed_at_call(case, target) and (
        scope.engine is not REFERENCE or has_batch_norm(case, target)
    )
    return call_expression(
        module, callee, arguments, case.inputs.seq, path=target, checkpointed=checkpointed
    )


def output_texts(case: Case, target: str) -> list[str]:
    """List the tensors of ``out``, the result of a forward."""
    module, values = inferred(case).modules[target], inferred(case).output_values[target]
    if not isinstance(module, Block):
        return ["out"]
    return [result_expression(module, "out", i) for i in range(len(values))]


def whole_text(case: Case, output: str) -> str:
    """Take the whole of an output that may be a DTensor."""
    local = all(plan.local_output for plan in case.tensor_parallel)
    return output if local else f"unsharded({output})"


def term_text(
    case: Case, call: Call, index: int, output: str, target: str, inputs: Sequence[str] = ()
) -> str:
    """Write what the output at ``index`` adds to the loss of ``call``, whose ``inputs`` are
    these.
    """
    patches = inferred(case).output_values[call.target][index].patches
    of_row = (case.inputs.seq or 1) * (patches or 1)
    tokens = tuple(rows * of_row for rows in rows_of_batch(case, call.batch))
    rank = "0" if case.inputs.same_on_ranks else "rank"
    specs = () if call.target else case.inputs.tensors
    trained = tuple(x for x, spec in zip(inputs, specs, strict=False) if spec.requires_grad)
    return LOSSES[case.loss].text(Term(output, target, tokens, rank, trained))
