"""Is what is inconclusive rounding, or a bug? Higher precision tells."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import finer, is_low_precision
from fuzzshard.verdict import Status, Verdict


def unless_rounding(verdict: Verdict, case: Case, run: Callable[[Case], Verdict]) -> Verdict:
    """``verdict`` of ``case``, or where it is inconclusive that of a second run in which the case passes.

    That run is in the next higher precision: float32 in float64, where a logic error stands out by ten orders
    of magnitude. If the case passes there, it was rounding.
    """
    if verdict.status is not Status.INCONCLUSIVE or (finer_case := finer(case)) == case:
        return verdict
    precise = run(finer_case)
    if precise.status is not Status.PASS:
        return verdict
    dtype = "higher precision" if is_low_precision(finer_case) else finer_case.dtype
    return msgspec.structs.replace(precise, message=f"rounding: it passes in {dtype}")
