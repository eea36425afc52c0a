"""Which wrap groups reduce in a backward, and what they divide by: what follows from the flags alone."""

from __future__ import annotations

from collections.abc import Collection

from fuzzshard.case.case import Case
from fuzzshard.case.progress import modules_named
from fuzzshard.case.schedule import Backward, ClipGradNorm, SetDivideFactor, SetFlag, Step, ZeroGrad

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
        self.divisors: dict[int | None, float] = dict.fromkeys(owners, case.mesh.data_size)
        """What a group divides the sum of its gradients by."""

    def set_divisor(self, op: SetDivideFactor) -> None:
        """Follows ``set_gradient_divide_factor``, which knows wrapped modules only."""
        for owner in self.divisors:
            if owner is not UNMANAGED and self._names(op, owner):
                self.divisors[owner] = op.factor

    def set(self, op: SetFlag) -> None:
        """Applies one op; the other two flags change no gradient and are ignored here."""
        if op.flag not in ("requires_gradient_sync", "requires_all_reduce"):
            return
        for owner in self.reduce:
            if self._names(op, owner):
                self.all_reduce[owner] = op.value
                if op.flag == "requires_gradient_sync":
                    self.reduce[owner] = op.value

    def _names(self, op: SetFlag | SetDivideFactor, owner: int | None) -> bool:
        if owner is UNMANAGED:
            return op.recurse and op.target == ""
        modules = self.case.wrap[owner].modules
        return bool(modules_named(self.case, modules, op.target, recurse=op.recurse))

    def synced(self, owner: int | None) -> bool:
        """Whether a backward now reduces the gradients of this group over the whole mesh."""
        return self.reduce[owner] and (self.all_reduce[owner] or self.case.mesh.replicate is None)


def steps_unsynced(case: Case, skipped: Collection[int]) -> bool:
    """Whether gradients are used, or zeroed, after a backward that did not synchronise them.

    The ``skipped`` backwards, by the index of their ops, had nothing to differentiate, and so synchronise
    nothing.
    """
    flags = SyncFlags(case)
    unsynced = False
    for index, op in enumerate(case.schedule):
        match op:
            case SetFlag():
                flags.set(op)
            case Backward() if index not in skipped:
                unsynced = not flags.synced(UNMANAGED)
            case Step() | ZeroGrad() | ClipGradNorm() if unsynced:
                return True
            case _:
                pass
    return False
