"""``DistributedDataParallel``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.ddp import contract
from fuzzshard.engines.no_sync import NoSyncEngine
from fuzzshard.engines.refusals import Refusal
from fuzzshard.parts.exclusion import Exclusion

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
    def lacking(cls, case: Case) -> str | None:
        known = inspect.signature(DistributedDataParallel).parameters
        missing = ["finalize_backward"] if case.ddp.manual_finalization else []
        missing = [name for name in missing if not hasattr(DistributedDataParallel, name)]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            named = (argument.partition("=")[0] for argument in case.ddp.arguments())
            missing += (name for name in named if name not in known)
        return f"{missing[0]} of DDP" if missing else None

    @override
    @classmethod
    def not_comparable(cls, case: Case, reference: Trace) -> Exclusion | None:
        excluded = super().not_comparable(case, reference)
        return excluded or contract.missed_root(case, reference.unreduced())

    @override
    def finish(self) -> None:
        """Leaves the join context: all ranks are done, and synchronise the final model."""
        super().finish()
        for context in self.case.ddp.contexts("ddp"):
            self.execute([f"with {context}:", "    pass"])

    @override
    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        module: Any = self.module
        with module.no_sync():
            entering = f"with {self.scope.called}.no_sync():"
            self.execute(self.scope.script.no_sync_lines(self.case, entering))
            yield

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Return gradients, which under ``no_sync`` are accumulated on this rank alone, on top of
        reduced ones.
        """
        (held,) = super().gradients().values()
        return {"local" if self.unsynced else "reduced": held}


ENGINE = DDP
