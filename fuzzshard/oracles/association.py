"""Whether engines may add the terms of some gradient in different orders."""

from __future__ import annotations

import itertools

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, Block, Call, walk
from fuzzshard.case.schedule import Backward, ClipGradNorm, Forward, ZeroGrad


def accumulates(case: Case) -> bool:
    """Whether several backwards add up in one gradient; what the optimizer does not hold is never zeroed."""
    kept = bool(case.optimizer.exclude)
    ops = (op for op in case.schedule if isinstance(op, Backward) or (isinstance(op, ZeroGrad) and not kept))
    return any(isinstance(a, Backward) and isinstance(b, Backward) for a, b in itertools.pairwise(ops))


def adds_in_another_order(case: Case) -> bool:
    """Whether some gradient is a sum that engines may associate differently.

    So is a norm that is clipped: of shards first, then of their norms. A compiled backward orders its sums
    itself. Tensor-parallel ranks each add up a part of what one matrix product adds up, in forward already.
    """
    clips = any(isinstance(op, ClipGradNorm) for op in case.schedule)
    if case.compile is not None or case.tensor_parallel or clips:
        return True
    pending = any(
        isinstance(a, Forward) and a.grad and isinstance(b, Forward) and b.grad
        for a, b in itertools.pairwise(op for op in case.schedule if isinstance(op, Forward | Backward))
    )
    modules = facts(case).modules.values()
    reused = bool(case.ties) or any(isinstance(m, Alias) for _, m in walk(case.model))
    return (
        accumulates(case) or pending or reused or any(isinstance(m, Block) and _branches(m) for m in modules)
    )


def _branches(block: Block) -> bool:
    """Whether a value or a child of ``block`` is used more than once."""
    read = [a for node in block.nodes for a in node.args] + list(block.outputs)
    called = [node.module for node in block.nodes if isinstance(node, Call)]
    return len(set(read)) < len(read) or len(set(called)) < len(called)
