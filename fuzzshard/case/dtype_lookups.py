"""When groups of ``fully_shard`` look for the dtypes of their parameters, and which find none."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import root_groups
from fuzzshard.case.progress import Progress, modules_named
from fuzzshard.case.schedule import Abort, CorruptState, Forward, Op, Unshard


class DtypeLookups:
    """The groups with dtypes of their own that have found none, as all their parameters were frozen.

    A group looks at its trainable parameters in the first forward of its FSDP root and in each ``unshard()``
    (``lazy_init`` and ``_init_mp_dtypes`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
    """

    def __init__(self, case: Case, found: Facts) -> None:
        self.case = case
        self.parameters: dict[int, set[str]] = {}
        for fqn, owner in found.owners.items():
            policy = None if owner is None else case.wrap[owner].precision
            if owner is not None and policy and (policy.param or policy.reduce):
                self.parameters.setdefault(owner, set()).add(fqn)
        self.roots = root_groups(case) if self.parameters else ()
        self.ran: set[int] = set()
        """The FSDP roots that had their first forward."""
        self.in_vain: set[int] = set()

    def before(self, op: Op, progress: Progress) -> None:
        """Follows ``op``, which is the next one of ``progress``."""
        match op:
            case Forward() | Abort() if self.parameters:
                called = progress.calls_of(op.target if isinstance(op, Forward) else "")
                first = {r for r in self.roots if not called.isdisjoint(self.case.wrap[r].modules)} - self.ran
                self._look({i for i in self.parameters if self.roots[i] in first}, progress)
                self.ran |= first
            case Unshard():
                self._look({i for i in self.parameters if self._is_for(op, i)}, progress)
            case CorruptState(how="rebuild"):
                self.ran.clear()
                self.in_vain.clear()
            case _:
                pass

    def _is_for(self, op: Unshard, group: int) -> bool:
        return bool(modules_named(self.case, self.case.wrap[group].modules, op.target, recurse=op.recurse))

    def _look(self, groups: set[int], progress: Progress) -> None:
        self.in_vain -= groups
        self.in_vain |= {i for i in groups if self.parameters[i] <= progress.frozen}
