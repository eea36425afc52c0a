"""How ``fully_shard`` documents that parameters are registered at every point of a schedule.

Follows the docstrings in torch/distributed/fsdp/_fully_shard/_fully_shard.py. Sharded parameters
are DTensors, sharded along the first dimension or as ``shard_placement_fn`` says, before forward
and after backward; after forward a group is as ``reshard_after_forward`` says; None means True,
and False for the root. ``set_reshard_after_forward`` and ``set_reshard_after_backward`` change
that. ``unshard()`` registers whole parameters, ``unshard(async_op=True)`` leaves that to the next
forward; ``reshard()``, a cast and a state dict register sharded ones. On top of tensor parallelism
DTensors have the mesh axes of both, and one dimension that both shard is cut for tensor
parallelism first (``_StridedShard``). Where the documentation leaves it open the prediction is
None and nothing is judged.
"""

from __future__ import annotations

import dataclasses

from fuzzshard.analysis.dtypes import computing_dtype, stored_dtype
from fuzzshard.analysis.groups import groups_within, modules_named
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.case import Case
from fuzzshard.engines.registry import engine_of
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.parts.op import Below, Call, Switch
from fuzzshard.parts.oracles.registration import Registered
from fuzzshard.training.trace import Key, Registration, Trace
from fuzzshard.verdict import Finding

SHARDED = 0
UNSHARDED = 1
"""States of a group are the number of ranks that hold one copy in parts: 0 stands for the whole
shard axis, 1 for unsharded, k for ``reshard_after_forward=k``; None for unknown."""


@dataclasses.dataclass
class _Group:
    state: int | None = SHARDED
    root: int | None = None
    reshard_after_backward: bool = True


class RegistrationModel:
    """Predicts the registration of every parameter on one rank, op by op."""

    def __init__(self, case: Case, rank: int = 0) -> None:
        self.case = case
        self.inferred: Inferred = inferred(case)
        self.tensor_dims = tensor_dims(case, self.inferred)
        self.groups = [_Group() for _ in case.wrap]
        self.at = ScheduleState(case, rank)

    def advance(self, *, skipped: bool) -> None:
        """Applies the next op; ``skipped`` says that a backward had nothing to differentiate."""
        op, at = self.at.op, self.at
        if op.call:
            self._forward(op.call)
        if op.takes and not skipped:
            self._backward()
        if op.switch:
            self._set_flag(op.switch)
        if op.gathers and op.waits:
            for group in self._named(op.below):
                group.state = UNSHARDED
        if op.frees:
            for group in self._named(op.below):
                group.state = SHARDED
        if op.aborts or op.casts_to or op.takes_state or op.rebuilds:
            for group in self.groups:
                group.state = SHARDED
        if op.aborts:
            self._claim(len(self.groups) - 1)
        if op.rebuilds:
            for group in self.groups:
                group.root = None
        at.advance(skipped=skipped)

    def expected(self, fqn: str) -> Registration | None:
        """What must be registered at ``fqn`` now, or None where nothing is promised."""
        owner = self.inferred.owners[fqn]
        shape = self.inferred.parameters[fqn]
        requires_grad = fqn not in self.at.frozen
        mesh = self.at.case.mesh
        dim = 0 if owner is None else self.case.wrap[owner].dim_of(shape)
        state = UNSHARDED if owner is None else self.groups[owner].state
        if state is None or (dim and state not in (SHARDED, UNSHARDED)):
            return None
        placements: tuple[str, ...] = ()
        mesh_shape: tuple[int, ...] = ()
        if state == SHARDED:
            placements = (f"S({dim})",) if mesh.replicate is None else ("R", f"S({dim})")
            mesh_shape = (mesh.shard,) if mesh.replicate is None else (mesh.replicate, mesh.shard)
        elif state != UNSHARDED:
            placements, mesh_shape = ("R", "S(0)"), (mesh.data_size // state, state)
        if fqn in self.tensor_dims:
            ranks = mesh.tensor or 1
            along = self.tensor_dims[fqn]
            if state == SHARDED and along == dim and ranks > 1:
                placements = (*placements[:-1], f"_S({dim}, {ranks})")
            placements = (*placements, "R" if along is None else f"S({along})")
            mesh_shape = (*mesh_shape, ranks)
        kind = "DTensor" if placements else "Tensor"
        return Registration(
            kind, placements, mesh_shape, shape, self._dtype(fqn, state), requires_grad
        )

    def _dtype(self, fqn: str, state: int) -> str:
        """Sharded parameters are what is trained; others have the dtype that a forward computes
        in.
        """
        cast = self.at.cast
        if state == SHARDED:
            return stored_dtype(self.case, fqn, cast)
        return computing_dtype(self.case, self.inferred, fqn, cast)

    def _set_flag(self, switch: Switch) -> None:
        for group in self._named(switch.below):
            if switch.flag == "reshard_after_backward":
                group.reshard_after_backward = switch.value

    def _named(self, below: Below | None) -> list[_Group]:
        return [
            group
            for group, spec in zip(self.groups, self.case.wrap, strict=True)
            if below and modules_named(self.case, spec.modules, below)
        ]

    def _forward(self, call: Call) -> None:
        called = self.at.calls_of(call.target)
        running = [
            i for i, spec in enumerate(self.case.wrap) if any(m in called for m in spec.modules)
        ]
        for i in reversed(running):  # wrapping is bottom-up, so later groups enclose earlier ones
            self._claim(i)
        for i in running:
            complete = all(m in called for m in self.case.wrap[i].modules)
            self.groups[i].state = self._after_forward(i) if complete else None

    def _claim(self, i: int) -> None:
        """The first forward of a group that no root has claimed makes it the root of all groups
        within it.
        """
        if self.groups[i].root is not None:
            return
        for j in groups_within(self.case, i):
            self.groups[j].root = i

    def _after_forward(self, i: int) -> int:
        whole, whole_as_root, ranks = self.at.after_forward(i)
        if whole or (whole_as_root and self.groups[i].root == i):
            return UNSHARDED
        return SHARDED if ranks == self.at.case.mesh.shard else ranks

    def _backward(self) -> None:
        """It is certain to reach the groups of the FSDP roots that its forwards called
        themselves.
        """
        done = self.at.taken
        wrapped = {m: i for i, spec in enumerate(self.case.wrap) for m in spec.modules}
        certain = {self.groups[wrapped[c.target]].root for _, c, *_ in done if c.target in wrapped}
        called = {module for each in done for module in each.modules}
        for group, spec in zip(self.groups, self.case.wrap, strict=True):
            ran = any(m in called for m in spec.modules)
            if group.root in certain and group.reshard_after_backward:
                group.state = SHARDED
            elif group.state != SHARDED or ran:
                group.state = None


def registered(trace: Trace, index: int, fqn: str) -> Registration | None:
    """Return how a parameter was registered after an op, if that was recorded."""
    return trace.registrations.get(Key(index, Registered.name, fqn))


def registration_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Where ``fully_shard`` registered something else than it documents, in order."""
    model = RegistrationModel(case, rank)
    found = []
    for index in range(-1, len(case.schedule)):
        if index >= 0:
            model.advance(skipped=index in trace.skipped)
        for fqn in model.inferred.parameters:
            observed = registered(trace, index, fqn)
            expected = model.expected(fqn)
            if observed is not None and expected is not None and observed != expected:
                found.append(
                    Finding(
                        oracle=Registered.name,
                        engine=trace.engine,
                        observed=str(observed),
                        expected=str(expected),
                        op=index,
                        name=fqn,
                        rank=rank,
                    )
                )
    return found[:MOST_FINDINGS]


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    if not engine_of(run.engine).predicts_groups:
        return []
    return registration_findings(run.case, run.trace, run.mesh.rank)
