"""Explicit gradient synchronisation: the reference's only one, and that of parameters no group manages."""

from __future__ import annotations

import torch
import torch.distributed as dist

from fuzzshard.case.case import Case
from fuzzshard.case.groups import root_groups
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import SetFlag
from fuzzshard.engines.mesh import RankMesh

UNMANAGED = None
"""The owner of a parameter that no wrap group manages."""


class SyncFlags:
    """Which wrap groups reduce their gradients in the next backward.

    Follows ``set_requires_gradient_sync``, which sets both switches of a group, and
    ``set_requires_all_reduce``, which sets the second (torch/distributed/fsdp/_fully_shard/_fully_shard.py).
    The second matters on an HSDP mesh only. Unmanaged parameters follow the flags set at the root.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        owners: list[int | None] = [UNMANAGED, *range(len(case.wrap))]
        self.reduce = dict.fromkeys(owners, True)
        self.all_reduce = dict.fromkeys(owners, True)

    def set(self, op: SetFlag) -> None:
        """Applies one op; the other two flags change no gradient and are ignored here."""
        if op.flag not in ("requires_gradient_sync", "requires_all_reduce"):
            return
        for owner in self.reduce:
            if self._names(op, owner):
                self.all_reduce[owner] = op.value
                if op.flag == "requires_gradient_sync":
                    self.reduce[owner] = op.value

    def _names(self, op: SetFlag, owner: int | None) -> bool:
        if owner is UNMANAGED:
            return op.recurse and op.target == ""
        modules = self.case.wrap[owner].modules
        return any(is_within(m, op.target) if op.recurse else m == op.target for m in modules)

    def synced(self, owner: int | None) -> bool:
        """Whether a backward now reduces the gradients of this group over the whole mesh."""
        return self.reduce[owner] and (self.all_reduce[owner] or self.case.mesh.replicate is None)


class ExplicitSync:
    """Averages gradients over the mesh after a backward, accumulating in the order a sharded engine does.

    Between two synchronised backwards gradients add up locally; a synchronised backward averages the
    local sum and adds it to what ``.grad`` held. Parameters without a gradient are skipped: every
    rank runs the same graph, so they are the same ones everywhere.
    """

    def __init__(self, mesh: RankMesh, owners: dict[str, int | None], flags: SyncFlags) -> None:
        self.mesh, self.owners, self.flags = mesh, owners, flags
        self.roots = root_groups(flags.case)
        self.local: dict[str, torch.Tensor] = {}
        self._reduced: dict[str, torch.Tensor | None] = {}

    def before_backward(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        """Sets the reduced gradients aside so that the backward leaves only its own."""
        self._reduced = {fqn: parameters[fqn].grad for fqn in self.owners}
        for fqn in self.owners:
            parameters[fqn].grad = None

    def after_backward(self, parameters: dict[str, torch.nn.Parameter], reached: set[int]) -> None:
        """Accumulates, and reduces the gradients of the groups that synchronise now.

        A backward finalises every group of the FSDP roots that it goes through, whether it brings the
        group a gradient or not: ``reached`` are these roots.
        """
        news = {fqn: g for fqn in self.owners if (g := parameters[fqn].grad) is not None}
        for fqn, new in news.items():
            self.local[fqn] = self.local[fqn] + new if fqn in self.local else new
        roots = reached | {self._root(owner) for fqn, owner in self.owners.items() if fqn in news}
        for fqn, owner in self.owners.items():
            parameter = parameters[fqn]
            parameter.grad = self._reduced[fqn]
            if fqn in self.local and self._root(owner) in roots and self.flags.synced(owner):
                average = self.average(self.local.pop(fqn), parameter.grad)
                parameter.grad = average if parameter.grad is None else parameter.grad + average

    def with_local(self, fqn: str, reduced: torch.Tensor | None) -> torch.Tensor | None:
        """``reduced`` with what has accumulated on this rank since."""
        local = self.local.get(fqn)
        if local is None or reduced is None:
            return reduced if local is None else local
        return reduced + local

    def _root(self, owner: int | None) -> int | None:
        return UNMANAGED if owner is UNMANAGED else self.roots[owner]

    def average(self, local: torch.Tensor, accumulated: torch.Tensor | None) -> torch.Tensor:
        """The mean of ``local`` over the mesh; ``accumulated`` is what it will be added to."""
        if self.mesh.size == 1:
            return local
        total = local.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.mesh.group)
        return total / self.mesh.size
