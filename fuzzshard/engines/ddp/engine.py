"""``DistributedDataParallel``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.schedule_state import steps_unsynced
from fuzzshard.engines.ddp import contract
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.no_sync import NoSyncEngine
from fuzzshard.engines.refusals import Refusal

if TYPE_CHECKING:
    from fuzzshard.training.trace import Trace


class DDP(NoSyncEngine):
    """Finds unused parameters by itself and leaves buffers alone, unless the case's options say
    otherwise.
    """

    name: ClassVar[str] = "ddp"
    refusals: ClassVar[tuple[Refusal, ...]] = contract.REFUSALS

    @override
    @classmethod
    def not_applicable(cls, case: Case) -> Exclusion | None:
        return contract.not_applicable(case)

    @override
    @classmethod
    def not_comparable(cls, case: Case, reference: Trace) -> Exclusion | None:
        if steps_unsynced(case, reference.skipped):
            return contract.NOTHING_DIFFERENTIATED
        if contract.misses_a_root(case, reference.unreduced()):
            return contract.MISSED_ROOT
        return None

    @override
    def finalize_lines(self) -> list[str]:
        """Waits for the reductions: "call this after backward returns" is always right."""
        return [] if self._is_within else super().finalize_lines()

    @override
    def finish(self) -> None:
        """Leaves the join context: all ranks are done, and synchronise the final model."""
        for context in self.case.ddp.contexts("ddp"):
            self.execute([f"with {context}:", "    pass"])

    @override
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        module: Any = self.module
        return module.no_sync()  # type: ignore[no-any-return]

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Under ``no_sync`` gradients are accumulated on this rank alone, on top of reduced
        ones.
        """
        (held,) = super().gradients().values()
        return {"local" if self.unsynced else "reduced": held}


ENGINE = DDP
