"""Training within ``join()``, with more inputs on some ranks than on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from typing_extensions import override

from fuzzshard.parts import op
from fuzzshard.parts.ops.backward import Backward
from fuzzshard.parts.ops.step import Step
from fuzzshard.parts.options.ddp import JOINED
from fuzzshard.parts.statements import indented

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
        (first, others), step = self.rounds, Step().statements(scope)
        joined, plain = self._joined(scope, step), self._without_join(scope, step)
        scope.joined, scope.puts_off = True, False
        return [
            *scope.inputs_of(self.begins),
            f"rounds = {first} if rank == 0 else {others}",
            *scope.either(plain, joined),
            f"{scope.called}.zero_grad()",
        ]

    def _joined(self, scope: op.Scope, step: list[str]) -> list[str]:
        """Train as the documentation of ``join()`` says, each time with that ``step``."""
        trained, called = scope.iteration(self.begins), scope.called
        unsynced = [f"with {called}.no_sync():", *indented(trained)] if self.no_sync else []
        own = scope.script.finalize_lines(scope.case, called)
        body = [f"{called}.zero_grad()", *unsynced, *trained, *own, *step]
        context = scope.script.join_text(scope.case, called, JOINED[self.division])
        lines = [f"with {context}:", "    for _ in range(rounds):", *indented(indented(body))]
        if self.division != "throwing":
            return lines
        return [
            "try:",
            *indented(lines),
            "except RuntimeError as error:",
            '    if "exhausted" not in str(error):',
            "        raise",
            "else:",
            '    raise AssertionError("join() has not said that some ranks have no more inputs")',
        ]

    def _without_join(self, scope: op.Scope, step: list[str]) -> list[str]:
        """Do the same with a plain model, in as many rounds on all ranks."""
        (first, others), throws = self.rounds, self.division == "throwing"
        ranks, zero = scope.case.mesh.data_size, f"{scope.called}.zero_grad"
        divisor = str(ranks)  # a hook divides by that in any case
        if self.division == "effective" and scope.case.ddp.hook is None:
            divisor = f"((i < {first}) + {ranks - 1} * (i < {others}))"
        early = scope.broadcast(f"{ranks - 1} if i < {others} else 0")
        if early and scope.puts_off:
            early = ["if i:", *indented(early)]
        last = scope.broadcast("0" if first > others else f"{ranks - 1}")
        body = [
            *early,
            "if i < rounds:",
            *indented([f"{zero}()", *scope.iteration(self.begins) * (1 + self.no_sync)]),
            "else:  # all that this rank contributes is zeros",
            f"    {zero}(set_to_none=False)",
            *scope.average_lines(divisor),
            *step,
        ]
        rounds = min(self.rounds) if throws else max(self.rounds)
        return [f"for i in range({rounds}):", *indented(body), *([] if throws else last)]

    @override
    def run(self, trainer: op.Trainer, index: int) -> None:
        average = trainer.engine.average
        trainer.iteration(index, self, self.begins, average=average, **trainer.made)

    @classmethod
    def after(cls, before: Sequence[op.Op], tape: op.Tape) -> Self:
        """Draw one that may follow these ops."""
        batches = [each.call.batch for each in before if each.call]
        most = tape.weighted(((2, 6), (3, 2)))
        rounds = (1, most) if tape.chance(50) else (most, 1)
        division: Division = tape.pick(("effective", "initial", "throwing"))
        batch, no_sync = (batches or [0])[-1], tape.chance(25)
        return cls(batch=batch, rounds=rounds, division=division, no_sync=no_sync)
