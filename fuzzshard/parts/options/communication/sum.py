"""``set_force_sum_reduction_for_comms``."""

from __future__ import annotations

from fuzzshard.parts.options.communication import Word


class Sum(Word):
    """Collectives add up, and the group divides by itself."""

    name, anywhere = "sum", 0
    call = "set_force_sum_reduction_for_comms(True)"
    meaning = "a group that reduces with sums only"
