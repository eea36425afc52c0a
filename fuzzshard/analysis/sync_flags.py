"""Which wrap groups reduce in a backward, and what they divide by: what follows from the flags
alone.
"""

from __future__ import annotations

from fuzzshard.analysis.groups import modules_named
from fuzzshard.case.case import Case
from fuzzshard.parts.op import Below, Switch

UNMANAGED = None
"""The owner of a parameter that no wrap group manages."""


class SyncFlags:
    """Which wrap groups reduce their gradients in the next backward.

    Follows ``set_requires_gradient_sync``, which sets both switches of a group, and
    ``set_requires_all_reduce``, which sets the second
    (torch/distributed/fsdp/_fully_shard/_fully_shard.py). The second matters on an HSDP mesh only.
    Unmanaged parameters follow the flags set at the root.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        owners: list[int | None] = [UNMANAGED, *range(len(case.wrap))]
        self.reduce = dict.fromkeys(owners, True)
        self.all_reduce = dict.fromkeys(owners, True)
        self.divisors: dict[int | None, float] = dict.fromkeys(owners, case.mesh.data_size)
        """What a group divides the sum of its gradients by."""

    def set_divisor(self, factor: float, below: Below) -> None:
        """Follows ``set_gradient_divide_factor``, which knows wrapped modules only."""
        for owner in self.divisors:
            if owner is not UNMANAGED and self._names(below, owner):
                self.divisors[owner] = factor

    def set(self, switch: Switch) -> None:
        """Sets one flag; those that change no gradient are ignored here."""
        if switch.flag not in ("requires_gradient_sync", "requires_all_reduce"):
            return
        for owner in self.reduce:
            if self._names(switch.below, owner):
                self.all_reduce[owner] = switch.value
                if switch.flag == "requires_gradient_sync":
                    self.reduce[owner] = switch.value

    def _names(self, below: Below, owner: int | None) -> bool:
        if owner is UNMANAGED:
            return below.everything
        return bool(modules_named(self.case, self.case.wrap[owner].modules, below))

    def synced(self, owner: int | None) -> bool:
        """Return whether a backward now reduces this group's gradients over the whole mesh."""
        return self.reduce[owner] and (self.all_reduce[owner] or self.case.mesh.replicate is None)
