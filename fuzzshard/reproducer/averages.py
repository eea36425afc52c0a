"""Where the script averages gradients of the reference by hand, worked out from the schedule.

A gradient that adds up in ``.grad`` is averaged there, also what is averaged already: it stays
what it is but for rounding. What ``fully_shard`` keeps apart until it is reduced is in ``.grad``
of the reference too, so nothing may look at that, or use it, in between.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.losses import losses
from fuzzshard.analysis.schedule_state import follow, roots_by_op
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.parts.engines import spec_of
from fuzzshard.reproducer.assertion import Assertion


class Average(NamedTuple):
    """The parameters whose gradients a backward averages, all of them if that is None; sums of
    gradients are divided by ``divisor`` if that is not the number of data-parallel ranks. Others
    the engine may have ``kept`` apart.
    """

    names: tuple[str, ...] | None = None
    divisor: float | None = None
    kept: bool = False


def averages(case: Case, assertion: Assertion, last: int) -> dict[int, Average]:
    """Return averages by backward, up to the op ``last``; raises :class:`UsageError` where a plain
    average is not what the engine reduces.
    """
    owners, usual = inferred(case).owners, case.mesh.data_size
    keeps_apart = spec_of(assertion.engine).applies_groups
    averaged, kept, found = False, False, dict[int, Average]()
    taken, roots = losses(case, last).taken, roots_by_op(case)[last]
    for at in itertools.islice(follow(case), last + 1):
        op, index = at.op, at.index
        if index in taken:
            names = tuple(name for name, owner in owners.items() if at.flags.synced(owner))
            factors = {at.flags.divisors[owners[name]] for name in names} or {float(usual)}
            odd = factors != {usual}
            _require(not odd or (len(factors) == 1 and not averaged))
            listed = None if len(names) == len(owners) else names
            averaged |= bool(names)
            kept = keeps_apart and listed is not None
            found[index] = Average(listed, factors.pop() if odd else None, kept)
            _require(not kept or len(set(roots)) < 2)
            _require(not (kept and names) or UNMANAGED not in owners.values())
            _require(not kept or assertion.op != index or not assertion.wants_reduced(index))
        elif op.aborts:
            averaged = kept = False
        elif op.uses_gradients or op.replaces_parameters:
            _require(not kept)
            averaged &= not op.zeroes or bool(case.optimizer.left_out)
    return found


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise UsageError(
            "no script averages these gradients as the engine does", "replay the case"
        )
