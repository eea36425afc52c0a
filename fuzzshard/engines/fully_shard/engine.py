"""``fully_shard`` (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from typing_extensions import override

from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.engines.base import Engine
from fuzzshard.engines.fully_shard import contract, options
from fuzzshard.engines.fully_shard.state import (
    GroupState,
    group_state,
    param_groups,
    unreduced_gradient,
)
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.refusals import Refusal
from fuzzshard.engines.sync import ExplicitSync
from fuzzshard.instruments import GROUP_STATES, UNREDUCED, UNSHARDED_MEMORY, reading, works
from fuzzshard.instruments.streams import simulated
from fuzzshard.model.build import build_model
from fuzzshard.parts.ops.set_flag import flags_set
from fuzzshard.program.setup import materialize_lines


class FullyShard(Engine):
    """Applies the wrap groups in order; what no group manages is averaged by hand."""

    name: ClassVar[str] = "fully_shard"
    reregisters: ClassVar[bool] = True
    refusals: ClassVar[tuple[Refusal, ...]] = contract.REFUSALS
    predicts_groups = True

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        return options.lacking(case)

    def __init__(self, case: Case, mesh: RankMesh, dtype: torch.dtype) -> None:
        super().__init__(case, mesh, dtype)
        unmanaged: dict[str, int | None] = {
            fqn: owner for fqn, owner in self.inferred.owners.items() if owner is UNMANAGED
        }
        self.sync = ExplicitSync(mesh, unmanaged)
        self._must_wait = "is_last_backward" in flags_set(case.schedule)

    @override
    def build(self) -> nn.Module:
        device = torch.device("meta") if self.case.init == "meta" else self.mesh.device
        return build_model(self.case, device, self.dtype)

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        if self.case.compile is not None:
            options.forget_compiled()
        wrapped = super().parallelize(model)
        if self.case.init != "meta":
            self._parts = self._find_parts(model)
        return wrapped

    @override
    def helpers(self) -> dict[str, Any]:
        return {"materialize": self._materialize}

    def _materialize(self, model: nn.Module) -> None:
        self._parts = self._find_parts(model)
        self.execute(materialize_lines(self.case, []), plain=super().build())

    @override
    def recover(self) -> None:
        self.sync.forget()

    @override
    def before_backward(self) -> None:
        self.sync.before_backward(self.trained)

    @override
    def after_backward(self, index: int) -> None:
        self.sync.after_backward(self.trained, self.scope.now, set())

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Wait for reductions, as only the last backward does (``set_is_last_backward``)."""
        if self._must_wait:
            if self.mesh.device.type == "cuda":
                torch.cuda.synchronize(self.mesh.device)
            simulated.synchronize()
        return super().gradients()

    def _find_parts(self, model: nn.Module) -> dict[str, Any]:
        """Return what ``fully_shard`` holds of each parameter that it manages as it should, where
        some instrument looks at it: others are for the registration oracle to tell.
        """
        instrument = next(
            (i for i in (UNREDUCED, GROUP_STATES, UNSHARDED_MEMORY) if works(i)), None
        )
        if instrument is None:
            return {}
        with reading(instrument):
            parts = {
                part.sharded_param: part
                for group in param_groups(model)
                for part in group.fsdp_params
            }
            return {
                fqn: parts[parameter]
                for fqn, owner in self.inferred.owners.items()
                if owner is not UNMANAGED and (parameter := self.parameter(fqn)) in parts
            }

    @override
    def held(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from super().held()
        if works(UNSHARDED_MEMORY):
            with reading(UNSHARDED_MEMORY):
                for fqn, part in self._parts.items():
                    for tensor in part.all_gather_outputs:
                        yield f"unsharded {fqn}", tensor

    @override
    def unreduced_gradients(self) -> dict[str, torch.Tensor | None]:
        if not works(UNREDUCED):
            return {}
        with reading(UNREDUCED):
            return {fqn: unreduced_gradient(part) for fqn, part in self._parts.items()}

    @override
    def group_states(self) -> dict[int, GroupState]:
        """Return those of the groups that manage what they should: others are for the registration
        oracle to tell.
        """
        if not (works(GROUP_STATES) or works(UNSHARDED_MEMORY)):
            return {}
        names = {id(part): fqn for fqn, part in self._parts.items()}
        with reading(GROUP_STATES if works(GROUP_STATES) else UNSHARDED_MEMORY):
            known = [
                g
                for g in param_groups(self.model)
                if all(id(part) in names for part in g.fsdp_params)
            ]
        owners = self.inferred.owners
        states = {}
        for group in known:
            owner = owners[names[id(group.fsdp_params[0])]]
            if owner is not UNMANAGED:
                states[owner] = group_state(group, names)
        return states


ENGINE = FullyShard
