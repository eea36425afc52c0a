"""``replicate``: composable DDP, which hooks the module itself and is constructed by the first
forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import torch
from typing_extensions import override

from fuzzshard.analysis.arrivals import ignored_parameters
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.engines.ddp import contract
from fuzzshard.engines.ddp.engine import DDP
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.no_sync import NoSyncEngine
from fuzzshard.engines.refusals import Refusal
from fuzzshard.engines.sync import ExplicitSync


class Replicate(DDP):
    """DDP without a wrapper: its hooks run around the forward of the root."""

    name: ClassVar[str] = "replicate"
    refusals: ClassVar[tuple[Refusal, ...]] = contract.OF_REDUCER
    outlives_run = True  # some parameters of some cases, on torch 2.13; why is not known

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        super().__init__(case, mesh, dtype)
        ignored = sorted(ignored_parameters(case, by_replicate=True))
        self.sync = ExplicitSync(mesh, dict.fromkeys(ignored, UNMANAGED))

    @override
    def finish(self) -> None:
        """Leave no join context: there is none."""
        NoSyncEngine.finish(self)

    @override
    def before_backward(self) -> None:
        self.sync.before_backward(self.trained)

    @override
    def after_backward(self, index: int) -> None:
        """Average the gradients of parameters that ``replicate`` was told to ignore."""
        NoSyncEngine.after_backward(self, index)
        self.sync.after_backward(self.trained, self.scope.now, set())

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        held = super().gradients()
        return {
            oracle: {
                fqn: self.sync.with_local(fqn, gradient) if fqn in self.sync.owners else gradient
                for fqn, gradient in gradients.items()
            }
            for oracle, gradients in held.items()
        }

    @override
    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.execute([self.scope.script.sync_line("model", False)])
        yield
        self.execute([self.scope.script.sync_line("model", True)])


ENGINE = Replicate
