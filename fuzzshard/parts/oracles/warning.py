"""A warning where none is due."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Warned(oracle.Demanded):
    """FSDP1 says that iterations run in different orders, and they do not."""

    name = "warning"
    place = 160
    of_values = False
    is_said = True
    needs_finding = True

    @override
    def aim(self, case: oracle.Case, finding: oracle.Finding, aim: oracle.Aim) -> oracle.Aim:
        return aim.but(kind="heard")
