"""Waiting for a checkpoint that is written while training goes on."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op


class WaitForSave(op.Op, tag="wait_for_save", frozen=True, kw_only=True):
    """Waits for what ``torch.distributed.checkpoint.async_save`` returned: "A future holding the
    resultant Metadata object from `save`".
    """

    says = "saving.result()"
    lane = "state"
    waits_for_save = True
    meanings = {"op:save_async": "a checkpoint that is written while training goes on"}

    @override
    def check(self, at: op.Checked) -> None:
        if not at.saving:
            raise InvalidCase("nothing is being saved", "save asynchronously before it")

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.unless_reference([self.says])
