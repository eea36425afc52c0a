"""The schedule of a Case as a numbered program in PyTorch's words."""

from __future__ import annotations

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case


def program(case: Case) -> list[str]:
    """Return one statement for each op; line ``i`` is the op that a finding calls ``op i``."""
    taken = {at.index: [each.place for each in at.taken] for at in follow(case) if at.op.takes}
    return [op.statement(index, *taken.get(index, ())) for index, op in enumerate(case.schedule)]
