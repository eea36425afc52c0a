"""A warning where none is due."""

from __future__ import annotations

from fuzzshard.parts import oracle


class Warned(oracle.Demanded):
    """FSDP1 says that iterations run in different orders, and they do not."""

    name = "warning"
    place = 160
    of_values = False
    harm = oracle.Severity.WARNING
    aims = "heard"
