"""A warning where none is due."""

from __future__ import annotations

from fuzzshard.parts import oracle


class Warned(oracle.Demanded):
    """FSDP1 warns that iterations run in different orders, and they do not.

    It cannot see any other warning; these pass unless a case expects them.
    """

    name = "warning"
    place = 160
    of_values = False
    harm = oracle.Severity.WARNING
    aims = "heard"
