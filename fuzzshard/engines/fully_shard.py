"""``fully_shard`` (FSDP2)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.schedule import SetFlag
from fuzzshard.engines.base import Engine
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.sync import UNMANAGED, ExplicitSync, SyncFlags


class FullyShard(Engine):
    """Applies the wrap groups in order; what no group manages is averaged by hand."""

    name: ClassVar[str] = "fully_shard"
    reregisters: ClassVar[bool] = True

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        super().__init__(case, mesh, dtype)
        self.flags = SyncFlags(case)
        unmanaged: dict[str, int | None] = {
            fqn: owner for fqn, owner in self.facts.owners.items() if owner is UNMANAGED
        }
        self.sync = ExplicitSync(mesh, unmanaged, self.flags)
        self._must_wait = mesh.device.type == "cuda" and any(
            isinstance(op, SetFlag) and op.flag == "is_last_backward" for op in case.schedule
        )

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        for group in self.case.wrap:
            modules = [model.get_submodule(path) for path in group.modules]
            fully_shard(
                modules[0] if len(modules) == 1 else modules,
                mesh=self.mesh.data_mesh,
                reshard_after_forward=group.reshard_after_forward,
            )
        return model

    @override
    def set_flag(self, op: SetFlag) -> None:
        self.flags.set(op)
        target = self.model.get_submodule(op.target)
        for module in target.modules() if op.recurse else [target]:
            if isinstance(module, FSDPModule):
                if op.flag == "is_last_backward":
                    module.set_is_last_backward(op.value)
                else:
                    getattr(module, f"set_{op.flag}")(op.value, recurse=False)

    @override
    def before_backward(self) -> None:
        self.sync.before_backward(self.trained)

    @override
    def after_backward(self) -> None:
        self.sync.after_backward(self.trained, set())

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Only the last backward waits for reductions (``set_is_last_backward``); else the reader must."""
        if self._must_wait:
            torch.cuda.synchronize(self.mesh.device)
        return super().gradients()

    @override
    def before_change(self) -> None:
        """Reshards what is not sharded, as the docstring of ``fully_shard`` asks for.

        "To modify the parameters between forward and backward, the registered parameters must be the
        sharded parameters. For False or an int, this can be done by manually resharding via reshard()."
        """
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
