"""How ``fully_shard`` documents that parameters are registered at every point of a schedule.

Follows the docstring of ``fully_shard`` (torch/distributed/fsdp/_fully_shard/_fully_shard.py): sharded
parameters are DTensors with Shard(0), before forward and after backward; after forward a group is as
``reshard_after_forward`` says; None means True, and False for the root. ``set_reshard_after_backward``
changes the second. Where the documentation leaves it open the prediction is None and nothing is judged.
"""

from __future__ import annotations

import dataclasses

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts
from fuzzshard.case.groups import calls_of, root_is_wrapped
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import Backward, Forward, SetFlag, SetRequiresGrad, Step
from fuzzshard.oracles.judge import MOST_FINDINGS
from fuzzshard.training.trace import Key, Registration, Trace
from fuzzshard.verdict import Finding

SHARDED = 0
UNSHARDED = 1
"""States of a group are the number of ranks that hold one copy in parts: 0 stands for the whole shard
axis, 1 for unsharded, k for ``reshard_after_forward=k``; None for unknown."""


@dataclasses.dataclass
class _Group:
    state: int | None = SHARDED
    root: int | None = None
    reshard_after_backward: bool = True


class RegistrationModel:
    """Predicts the registration of every parameter, op by op."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.facts: Facts = facts(case)
        self.groups = [_Group() for _ in case.wrap]
        self.frozen: set[str] = set()
        for freeze in case.freezes:
            self._set_requires_grad(freeze.target, False)
        self.pending: list[Forward] = []
        self.forwarded = False
        self.keeps_unsharded = not root_is_wrapped(case)

    def advance(self, index: int, skipped: bool) -> None:
        """Applies the op at ``index``; ``skipped`` says that a backward had nothing to differentiate."""
        match self.case.schedule[index]:
            case Forward() as op:
                self._forward(op)
            case Backward() as op:
                self._backward(op, skipped)
            case SetFlag(flag="reshard_after_backward") as op:
                self.keeps_unsharded |= not op.value
                for group, spec in zip(self.groups, self.case.wrap, strict=True):
                    if any(is_within(m, op.target) if op.recurse else m == op.target for m in spec.modules):
                        group.reshard_after_backward = op.value
            case SetRequiresGrad() as op:
                self._before_change()
                self._set_requires_grad(op.target, op.value)
            case Step():
                self._before_change()
            case _:
                pass

    def expected(self, fqn: str) -> Registration | None:
        """What must be registered at ``fqn`` now, or None where nothing is promised."""
        owner = self.facts.owners[fqn]
        shape = self.facts.parameters[fqn]
        requires_grad = fqn not in self.frozen
        mesh = self.case.mesh
        state = UNSHARDED if owner is None else self.groups[owner].state
        if state is None:
            return None
        placements: tuple[str, ...] = ()
        mesh_shape: tuple[int, ...] = ()
        if state == SHARDED:
            placements = ("S(0)",) if mesh.replicate is None else ("R", "S(0)")
            mesh_shape = (mesh.shard,) if mesh.replicate is None else (mesh.replicate, mesh.shard)
        elif state != UNSHARDED:
            placements, mesh_shape = ("R", "S(0)"), (mesh.size // state, state)
        kind = "DTensor" if placements else "Tensor"
        return Registration(kind, placements, mesh_shape, shape, self.case.dtype, requires_grad)

    def _before_change(self) -> None:
        """The trainer reshards before it changes parameters that may not be sharded."""
        if self.forwarded or self.keeps_unsharded:
            for group in self.groups:
                group.state = SHARDED

    def _set_requires_grad(self, target: str, value: bool) -> None:
        names = {fqn for fqn in self.facts.parameters if is_within(fqn, target)}
        self.frozen = self.frozen - names if value else self.frozen | names

    def _forward(self, op: Forward) -> None:
        self.forwarded = True
        called = calls_of(self.case, op.target)
        running = [i for i, spec in enumerate(self.case.wrap) if any(m in called for m in spec.modules)]
        for i in reversed(running):  # wrapping is bottom-up, so later groups enclose earlier ones
            self._claim(i)
        for i in running:
            complete = all(m in called for m in self.case.wrap[i].modules)
            self.groups[i].state = self._after_forward(i) if complete else None
        if op.grad:
            self.pending.append(op)

    def _claim(self, i: int) -> None:
        """The first forward of a group that no root has claimed makes it the root of all groups within it."""
        if self.groups[i].root is not None:
            return
        for j, spec in enumerate(self.case.wrap):
            if any(is_within(m, r) for m in spec.modules for r in self.case.wrap[i].modules):
                self.groups[j].root = i

    def _after_forward(self, i: int) -> int:
        raf = self.case.wrap[i].reshard_after_forward
        if raf is None:
            return UNSHARDED if self.groups[i].root == i else SHARDED
        if isinstance(raf, bool):
            return SHARDED if raf else UNSHARDED
        return UNSHARDED if raf == 1 else SHARDED if raf == self.case.mesh.shard else raf

    def _backward(self, op: Backward, skipped: bool) -> None:
        done = self.pending if op.which == "all" else [self.pending[0 if op.which == "oldest" else -1]]
        self.pending = [f for f in self.pending if all(f is not d for d in done)]
        if skipped:
            return
        self.forwarded = False
        wrapped = {m: i for i, spec in enumerate(self.case.wrap) for m in spec.modules}
        certain = {self.groups[wrapped[f.target]].root for f in done if f.target in wrapped}
        for i, group in enumerate(self.groups):
            touched = group.root in certain
            if touched and group.reshard_after_backward:
                group.state = SHARDED
            elif not (group.state == SHARDED and not self._ran(i, done)):
                group.state = None

    def _ran(self, i: int, forwards: list[Forward]) -> bool:
        called = {m for f in forwards for m in calls_of(self.case, f.target)}
        return any(m in called for m in self.case.wrap[i].modules)


def registration_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Where ``fully_shard`` registered something else than it documents, in order."""
    model = RegistrationModel(case)
    found = []
    for index in range(-1, len(case.schedule)):
        if index >= 0:
            model.advance(index, index in trace.skipped)
        for fqn in model.facts.parameters:
            observed = trace.registrations.get(Key(index, "registration", fqn))
            expected = model.expected(fqn)
            if observed is not None and expected is not None and observed != expected:
                found.append(
                    Finding(
                        oracle="registration",
                        engine="fully_shard",
                        observed=str(observed),
                        expected=str(expected),
                        op=index,
                        name=fqn,
                        rank=rank,
                    )
                )
    return found[:MOST_FINDINGS]
