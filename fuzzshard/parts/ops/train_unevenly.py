"""Training within ``join()``, with more inputs on some ranks than on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.ops.backward import Backward
from fuzzshard.parts.ops.step import Step

Division = Literal["initial", "effective", "throwing"]


class TrainUnevenly(op.Op, tag="train_unevenly", frozen=True, kw_only=True):
    """Repeats the last iteration and its step within ``join()``: rank 0 the first of ``rounds``
    times, all others the second one.

    Ranks that have no more inputs contribute zeros. Sums are divided by the ranks that there are
    (``initial``) or by those that have inputs (``effective``), or all ranks raise, and go on
    (``throwing``: it allows "these errors to be caught and handled according to application
    logic", ``DistributedDataParallel.join``). With ``no_sync`` every iteration has a microbatch
    before that is not synchronised. In the end "the context manager will broadcast the model
    corresponding to the last joined process to all processes", and gradients are removed: they
    are not the same everywhere.
    """

    batch: int = 0
    rounds: tuple[int, int] = (1, 2)
    division: Division = "initial"
    no_sync: bool = False

    says = (
        "within join() ({op.division}{op.told}), train on batch {op.batch}: "
        "{op.rounds[0]} times on rank 0, {op.rounds[1]} times on others"
    )
    lane = "optimizer"
    updates = uses_gradients = wants_sharded = of_optimizer = True
    looks = ("registered", "trained", "buffers", "taken")
    meanings = {
        "op:uneven_initial": "join() where some ranks end first",
        "op:uneven_effective": "join(divide_by_initial_world_size=False) where some ranks end "
        "first",
        "op:uneven_throwing": "join(throw_on_early_termination=True) where some ranks end first",
        "op:uneven_no_sync": "no_sync() within join() where some ranks end first",
    }

    @property
    def told(self) -> str:
        """Return what else a program says."""
        return ", with no_sync()" if self.no_sync else ""

    @property
    @override
    def begins(self) -> op.Call:
        return op.Call(batch=self.batch)

    @property
    @override
    def zeroes(self) -> op.Zeroed:
        return "none"

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.begin(self.begins)
        at.step()
        at.zero("none")
        optimizer = at.case.optimizer
        counts = optimizer.lr_scheduler or any(e.has_state for e in optimizer.each.values())
        at.stepped_apart |= self.division != "throwing" and bool(counts)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if min(self.rounds) < 1 or self.rounds[0] == self.rounds[1]:
            yield "ranks train unevenly as many times, or not at all", "use two numbers"
        if at.case.mesh.data_size < 2:
            yield "one rank trains unevenly", "use a larger mesh"
        if at.case.optimizer.grad_scaler:
            yield (
                "a GradScaler counts the steps of a rank, and losses of ranks would have other "
                "scales after uneven ones",
                "leave out the scaler",
            )
        if not self._repeats(at.ops[:-1]):
            yield (
                "no iteration of the root, and its step, comes right before uneven ones",
                "put one there: its graph is the one that they go through",
            )

    def _repeats(self, before: list[op.Op]) -> bool:
        """Return whether ``before`` ends with a whole iteration, and with what changes no graph
        since.
        """
        last = max((i for i, each in enumerate(before) if each.takes), default=-1)
        *_, forward = (None, *before[:last][-1:])
        since = before[last + 1 :]
        alone = sum(bool(each.call and each.call.grad) for each in before[:last][-2:]) == 1
        return (
            forward is not None
            and forward.call == self.begins
            and alone
            and before[last] == Backward()
            and any(each.updates for each in since)
            and all(each.lane == "optimizer" for each in since)
        )

    @override
    def features(self, at: op.ScheduleState) -> op.Features:
        yield f"op:uneven_{self.division}"
        if self.no_sync:
            yield "op:uneven_no_sync"

    @override
    def statements(self, scope: op.Scope) -> list[str]:
        return scope.uneven(self, Step().statements(scope))

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        trainer.train_unevenly(index, self, self.begins)

    @classmethod
    def after(cls, before: Sequence[op.Op], tape: op.Tape) -> Self:
        """Draw one that may follow these ops."""
        batches = [each.call.batch for each in before if each.call]
        most = tape.weighted(((2, 6), (3, 2)))
        rounds = (1, most) if tape.chance(50) else (most, 1)
        division: Division = tape.pick(("effective", "initial", "throwing"))
        batch, no_sync = (batches or [0])[-1], tape.chance(25)
        return cls(batch=batch, rounds=rounds, division=division, no_sync=no_sync)
