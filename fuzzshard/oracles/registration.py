"""How ``fully_shard`` documents that parameters are registered at every point of a schedule.

Follows the docstrings in torch/distributed/fsdp/_fully_shard/_fully_shard.py. Sharded parameters
are DTensors, sharded along the first dimension or as ``shard_placement_fn`` says, before forward
and after backward; after forward a group is as ``reshard_after_forward`` says; None means True,
and False for the root. ``set_reshard_after_forward`` and ``set_reshard_after_backward`` change
that. ``unshard()`` registers whole parameters, ``unshard(async_op=True)`` leaves that to the next
forward; ``reshard()``, a cast and a state dict register sharded ones. On top of tensor parallelism
DTensors have the mesh axes of both, and one dimension that both shard is cut for tensor
parallelism first (``_StridedShard``). ``replicate`` has replicas on one axis in place of shards.
Where the documentation leaves it open the prediction is None and nothing is judged.
"""

from __future__ import annotations

import dataclasses

from typing_extensions import override

from fuzzshard.analysis.dtypes import computing_dtype, stored_dtype
from fuzzshard.analysis.groups import modules_named
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.case import Case
from fuzzshard.engines.registry import engine_of
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Below, Call, Switch, Taking
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
    reshard_after_backward: bool = True


class RegistrationModel(ScheduleState):
    """Predicts the registration of every parameter on one rank, op by op."""

    def __init__(self, case: Case, rank: int = 0, *, keeps_whole: bool = False) -> None:
        super().__init__(case, rank)
        self.keeps_whole = keeps_whole
        self.inferred: Inferred = inferred(case)
        self.tensor_dims = tensor_dims(case, self.inferred)
        self.groups = [_Group() for _ in case.wrap]

    @override
    def advance(self, *, skipped: bool = False) -> None:
        if self.op.takes_state:
            self.shard(Below())
        super().advance(skipped=skipped)

    @override
    def forward(self, call: Call) -> None:
        super().forward(call)
        called = self.calls_of(call.target)
        for i, spec in enumerate(self.case.wrap):
            if not called.isdisjoint(spec.modules):
                complete = called.issuperset(spec.modules)
                self.groups[i].state = self._after_forward(i) if complete else None

    @override
    def backward(self, takes: Taking) -> None:
        if not self.skipped:
            self._backward()
        super().backward(takes)

    @override
    def set_flag(self, switch: Switch) -> None:
        if switch.flag == "reshard_after_backward":
            for group in self._named(switch.below):
                group.reshard_after_backward = switch.value
        super().set_flag(switch)

    @override
    def gather(self, below: Below, *, waits: bool) -> None:
        for group in self._named(below) if waits else ():
            group.state = UNSHARDED
        super().gather(below, waits=waits)

    @override
    def shard(self, below: Below) -> None:
        for group in self._named(below):
            group.state = SHARDED
        super().shard(below)

    def expected(self, fqn: str) -> Registration | None:
        """Return what must be registered at ``fqn`` now, or None where nothing is promised."""
        owner = self.inferred.owners[fqn]
        shape = self.inferred.parameters[fqn]
        requires_grad = fqn not in self.frozen
        mesh = self.case.mesh
        dim = 0 if owner is None else self.case.wrap[owner].dim_of(shape)
        state = UNSHARDED if owner is None else self.groups[owner].state
        if state is None or (dim and state not in (SHARDED, UNSHARDED)):
            return None
        placements: tuple[str, ...] = ()
        mesh_shape: tuple[int, ...] = ()
        if state == SHARDED and self.keeps_whole:
            placements, mesh_shape = ("R",), (mesh.data_size,)
        elif state == SHARDED:
            placements = (f"S({dim})",) if mesh.replicate is None else ("R", f"S({dim})")
            mesh_shape = (mesh.shard,) if mesh.replicate is None else (mesh.replicate, mesh.shard)
        elif state != UNSHARDED:
            placements, mesh_shape = ("R", "S(0)"), (mesh.data_size // state, state)
        if fqn in self.tensor_dims:
            ranks = mesh.tensor or 1
            along = self.tensor_dims[fqn]
            if state == SHARDED and along == dim and ranks > 1 and not self.keeps_whole:
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
        cast = self.cast
        if state == SHARDED:
            return stored_dtype(self.case, fqn, cast)
        return computing_dtype(self.case, self.inferred, fqn, cast)

    def _named(self, below: Below) -> list[_Group]:
        return [
            group
            for group, spec in zip(self.groups, self.case.wrap, strict=True)
            if modules_named(self.case, spec.modules, below)
        ]

    def _after_forward(self, i: int) -> int:
        whole, whole_as_root, ranks = self.after_forward(i)
        if whole or (whole_as_root and self.model.of_groups[i] == i):
            return UNSHARDED
        return SHARDED if ranks == self.case.mesh.shard else ranks

    def _backward(self) -> None:
        """It is certain to reach the groups of the FSDP roots that its forwards called
        themselves.
        """
        wrapped = {m: i for i, spec in enumerate(self.case.wrap) for m in spec.modules}
        roots, targets = self.model.of_groups, {each.call.target for each in self.taken}
        certain = {roots[wrapped[target]] for target in targets & wrapped.keys()}
        called = frozenset[str]().union(*(each.modules for each in self.taken))
        for group, root, spec in zip(self.groups, roots, self.case.wrap, strict=True):
            if root in certain and group.reshard_after_backward:
                group.state = SHARDED
            elif group.state != SHARDED or not called.isdisjoint(spec.modules):
                group.state = None


def registered(trace: Trace, index: int, fqn: str) -> Registration | None:
    """Return how a parameter was registered after an op, if that was recorded."""
    return trace.registrations.get(Key(index, Registered.name, fqn))


def registration_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Return findings where ``fully_shard`` registered what it does not document, in order."""
    model = RegistrationModel(case, rank, keeps_whole=spec_of(trace.engine).keeps_whole)
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
