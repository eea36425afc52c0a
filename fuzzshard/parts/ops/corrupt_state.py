"""Losing what was trained, so that loading it proves something."""

from __future__ import annotations

import math

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts import op
from fuzzshard.parts.moments import MODIFIED


class CorruptState(op.Op, tag="corrupt_state", frozen=True, kw_only=True):
    """Zeroes every parameter and optimizer state in place, or builds model and optimizer anew.

    A model that is built anew has other initial values. With ``mesh`` it is on other data-parallel
    axes of the same ranks, ``(shard,)`` or ``(replicate, shard)``, and a checkpoint on disk comes
    to it: ``torch.distributed.checkpoint`` "handles load-time resharding which enables saving in
    one cluster topology and loading into another" (docs/source/distributed.checkpoint.md).
    """

    how: op.Lost = "zero"
    mesh: tuple[int, ...] = ()

    lane = "state"
    corrupts = True
    never = {"forward_to_backward": MODIFIED}
    looks = ("corrupted",)
    meanings = {
        "op:corrupt": "parameters and optimizer state zeroed",
        "op:rebuild": "model and optimizer built anew",
        "op:other_mesh": "model and optimizer built anew on another mesh, for a checkpoint",
    }

    @property
    @override
    def rebuilds(self) -> bool:
        return self.how == "rebuild"

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield "op:rebuild" if self.rebuilds else "op:corrupt"
        if at.case.on(self.mesh).mesh != at.case.mesh:
            yield "op:other_mesh"

    @override
    def check(self, at: op.Checked) -> None:
        if not self.mesh:
            return
        if not self.rebuilds:
            raise InvalidCase("zeroed parameters on another mesh", 'use how="rebuild"')
        if at.saved != "dcp":
            raise InvalidCase(
                "copied state dicts are loaded on another mesh than they were copied on",
                'save via "dcp", which reshards',
            )
        at.check_mesh(self.mesh)

    @override
    def mended(self, names: op.Names) -> op.Op | None:
        """On a mesh of all ranks that there are, of as many axes."""
        *replicate, _ = self.mesh or (0,)
        axes = [math.gcd(size, names.ranks) for size in replicate]
        axes.append(names.ranks // math.prod(axes))
        there = replace(self, mesh=tuple(axes) if self.mesh and self.rebuilds else ())
        return super(CorruptState, there).mended(names)

    @override
    def statement(self, index: int, *losses: int) -> str:
        return f"corrupt_state({self.how!r}{f', mesh={self.mesh}' if self.mesh else ''})"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.states.zero()

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        if self.rebuilds:
            trainer.rebuild(index)
        else:
            super().run(trainer, index)

    @override
    def lines(self, program: op.Program, index: int) -> list[str]:
        if not self.rebuilds:
            return super().lines(program, index)
        return [*program.rebuild(index), *program.look(index)]
