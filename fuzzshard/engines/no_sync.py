"""Engines that accumulate gradients on each rank within ``no_sync()``, all parameters or none."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.parts.exclusion import Exclusion

if TYPE_CHECKING:
    from fuzzshard.training.trace import Trace


NOTHING_DIFFERENTIATED = Exclusion(
    "a backward had nothing to differentiate, and so ends no accumulation before a step",
    "torch/nn/parallel/distributed.py, no_sync: 'gradients will be accumulated on module "
    "variables, which will later be synchronized in the first forward-backward pass exiting the "
    "context'; torch/distributed/fsdp/_runtime_utils.py, _post_backward_final_callback is "
    "registered by a backward",
)


class NoSyncEngine(Engine):
    """``no_sync()`` stands for the synchronisation flags, wherever they are set.

    ``unsynced`` says that gradients have accumulated on this rank alone since the last reduction.
    """

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        self.unsynced = False
        self._within = contextlib.ExitStack()
        self._is_within = False
        super().__init__(case, mesh, dtype)

    @override
    @classmethod
    def not_comparable(cls, case: Case, reference: Trace) -> Exclusion | None:
        return NOTHING_DIFFERENTIATED if _steps_unsynced(case, reference.skipped) else None

    @abc.abstractmethod
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Return the engine's own context, within which backwards reduce nothing."""

    @override
    def before_op(self, index: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        wanted = not self.scope.now.synced
        if wanted and not self._is_within:
            self._within.enter_context(self.no_sync())
        elif not wanted:
            self._within.close()
        self._is_within = wanted

    @override
    def finish(self) -> None:
        self._within.close()

    @override
    def after_backward(self, index: int) -> None:
        self.unsynced = self._is_within


def _steps_unsynced(case: Case, skipped: Collection[int]) -> bool:
    """Whether gradients are used, or zeroed, after a backward that did not synchronise them.

    The ``skipped`` backwards, by the index of their ops, had nothing to differentiate, and so
    synchronise nothing.
    """
    unsynced = False
    for at in follow(case):
        if at.op.takes and at.index not in skipped:
            unsynced = not at.synced
        elif unsynced and at.op.uses_gradients:
            return True
    return False
