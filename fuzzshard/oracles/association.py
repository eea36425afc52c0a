"""Whether engines may add the terms of some gradient in different orders."""

from __future__ import annotations

import itertools

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, Block, Call, walk
from fuzzshard.case.schedule import Backward, ClipGradNorm, Forward, SetFlag, ZeroGrad


def accumulates(case: Case) -> bool:
    """Whether several backwards add up in one gradient; what the optimizer does not hold is never zeroed."""
    kept = bool(case.optimizer.exclude)
    ops = (op for op in case.schedule if isinstance(op, Backward) or (isinstance(op, ZeroGrad) and not kept))
    return any(isinstance(a, Backward) and isinstance(b, Backward) for a, b in itertools.pairwise(ops))


def adds_in_another_order(case: Case, engine: str = "") -> bool:
    """Whether some gradient is a sum that engines may associate differently, or that ``engine`` may.

    The gradients of several backwards ``fully_shard`` adds up as the reference does, one after another:
    unreduced ones on every rank, then the reduced sums; not where it reduces over shards only for a while.

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
    accumulated = accumulates(case) and not (engine == "fully_shard" and not _reduces_in_parts(case))
    return accumulated or pending or reused or any(isinstance(m, Block) and _branches(m) for m in modules)


def _reduces_in_parts(case: Case) -> bool:
    """Whether gradients are reduced over shards in one backward and over replicas in another."""
    partial = any(isinstance(op, SetFlag) and op.flag == "requires_all_reduce" for op in case.schedule)
    return partial and case.mesh.replicate is not None


def _branches(block: Block) -> bool:
    """Whether a value or a child of ``block`` is used more than once."""
    read = [a for node in block.nodes for a in node.args] + list(block.outputs)
    called = [node.module for node in block.nodes if isinstance(node, Call)]
    return len(set(read)) < len(read) or len(set(called)) < len(called)
