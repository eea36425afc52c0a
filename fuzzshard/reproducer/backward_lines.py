"""The backwards of a schedule, and the averages of gradients that are taken by hand, as
statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzzshard.case.schedule_state import Pending
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.model.statements import assignment, indented
from fuzzshard.parts.op import Op, Switch
from fuzzshard.program.forward import backward_line, sum_text
from fuzzshard.reproducer.forward_lines import ForwardLines
from fuzzshard.reproducer.helpers import averaging_lines
from fuzzshard.reproducer.scope import Scope
from fuzzshard.reproducer.sync import SyncPlan


class BackwardLines:
    """Writes backwards; ``flags`` are set by whoever writes the other ops.

    With ``reference`` it is the gradients of the reference that are averaged, and no others. With
    ``hooks`` these run after that.
    """

    def __init__(
        self,
        scope: Scope,
        ops: Sequence[Op],
        forwards: ForwardLines,
        sync: SyncPlan,
        flags: Flags,
        *,
        reference: bool,
        hooks: bool,
    ) -> None:
        self._hooks = [
            "for p, hook in hooks:",
            "    if p.grad is not None:",
            "        hook(p)",
        ] * hooks
        self.reference, self._ops = reference, ops
        self.scope, self.case, self.forwards, self.sync, self.flags = (
            scope,
            scope.case,
            forwards,
            sync,
            flags,
        )
        self.losses, self.watch = forwards.losses, forwards.watch
        self._averages = [i for i, names in sync.unsynced.items() if not names]
        self._looks = ("inputs", "gradients", "unreduced")
        self._unsynced = False
        self._leaves_waiting = any(
            op.switch and op.switch.flag == "is_last_backward" for op in ops
        )

    @property
    def by_hand(self) -> bool:
        """Whether some gradients are averaged by hand."""
        return bool(self.sync.names and self.losses.taken)

    def lines(self, index: int, forwards: Sequence[Pending], *, stops: bool) -> list[str]:
        """The backward of ``forwards`` and the averages that it takes; only itself where the
        script ``stops`` there.
        """
        lines = []
        if index not in self.losses.skipped:
            taken = [self.forwards.loss(i) for i in self.losses.taken[index]]
            made: list[str] = []
            if self._ops[index].loss_of is not None:
                (forward,) = forwards
                taken = [f"part{index}"]
                made = self.forwards.of_outputs(taken[0], forward.call)
            loss = sum_text(taken)
            if len(taken) > 1 and self.scope.aim.seeded:
                loss = f"({' + '.join(taken)})"
            loss = self.scope.scaled(loss)
            call = backward_line(loss, retains=self._ops[index].retains)
            in_stages = self.scope.engine.in_stages
            if stops and not in_stages:
                return [*made, call, *self._finalize()]
            lines = [*made, *self._differentiate(index, loss, call)]
            if in_stages:
                iteration = self.forwards.stages.iteration([f.call for f in forwards])
                lines = self.scope.either(lines, iteration)
            lines += self.scope.wait("after_backward")
            self._unsynced = not (self.scope.engine.applies_groups or self.flags.synced)
        if self._leaves_waiting and self.scope.aim.has("reduced", index):
            lines += [
                'if device == "cuda":',
                "    torch.cuda.synchronize()  # only the last backward waits",
            ]
        return lines + self.watch.lines(index, self._looks, local=self._unsynced)

    def _finalize(self) -> list[str]:
        """What the user has to call after a backward that synchronises something."""
        if not (self.scope.engine.applies_groups or self.flags.synced):
            return []
        lines = self.scope.script.finalize_lines(self.case, self.scope.called)
        return self.scope.unless_reference(lines)

    def _differentiate(self, index: int, loss: str, call: str) -> list[str]:
        unsynced = self.sync.unsynced[index]
        if not self.by_hand or (self.sync.plain and unsynced):
            return [*self._clear(index), call, *self._finalize()]
        if self.sync.plain:
            parameters = "model.parameters()" if self.reference else "by_hand"
            divisor = next(iter(self.sync.divisors.get(index, {}).values()), None)
            if len(self._averages) == 1 or divisor is not None:
                lines = averaging_lines(self.case, divisor, parameters)
            else:
                lines = [f"average({parameters})"]
            lines += self._hooks
            if self.reference and not self.scope.engine.in_stages:
                lines = [
                    "if model is reference:  # the engine does this by itself",
                    *indented(lines),
                ]
            return [call, *self._finalize(), *lines]
        return [*self._backward_call(index, loss), *([] if unsynced else self._hooks)]

    def _clear(self, index: int) -> list[str]:
        if self.sync.clears != index:
            return []
        return [
            "if model is reference:",
            "    model.zero_grad()  # only what is not averaged is looked at",
        ]

    def _backward_call(self, index: int, loss: str) -> Iterator[str]:
        """The call of the helper ``backward``."""
        unsynced, roots = self.sync.unsynced[index], self.sync.through.get(index)
        arguments = [loss, "by_hand", "local"]
        if unsynced and len(unsynced) == len(self.sync.names):
            arguments.append("unsynced=by_hand")
        elif unsynced:
            yield from assignment("unsynced", unsynced)
            arguments.append("unsynced")
        if roots:
            arguments.append(f"through={set(roots)}")
        if factors := self.sync.divisors.get(index):
            yield from assignment("factors", factors)
            arguments.append("divide_by=factors")
        if self._ops[index].retains:
            arguments.append("retain_graph=True")
        yield f"backward({', '.join(arguments)})"
        yield from self._finalize()


WITH, END_WITH = "with no_sync", "end of no_sync"
"""Where the context manager begins and ends, until :func:`with_blocks` writes it."""


def with_blocks(lines: list[str]) -> list[str]:
    """``lines`` with a ``with`` statement from every :data:`WITH` to its end."""
    result, inside = [], False
    for line in lines:
        if line.startswith(WITH):
            result.append(f"with {line.removeprefix(WITH).strip()}:")
            inside = True
        elif line == END_WITH:
            inside = False
            result += ["    pass"] if result[-1].startswith("with ") else []
        else:
            result.append(f"    {line}" if inside else line)
    return [*result, "    pass"] if result and result[-1].startswith("with ") else result


class Flags:
    """Writes flags, and knows which gradients are synchronised."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.sync = SyncFlags(scope.case)

    @property
    def synced(self) -> bool:
        """Whether the engines that have one switch for everything synchronise now."""
        return self.sync.synced(UNMANAGED)

    def lines(self, op: Op, switch: Switch) -> list[str]:
        """Sets one flag."""
        before = self.synced
        self.sync.set(switch)
        if self.scope.engine.applies_groups:
            return self.scope.on_groups(op)
        if self.synced == before:
            return []
        return self._no_sync(leave=not before) if self.scope.engine.wrapper else self._switch()

    def _no_sync(self, *, leave: bool) -> list[str]:
        """Enters or leaves the context manager, which the schedule does in straight lines."""
        called = self.scope.called
        if self.scope.aim.seeded and leave:
            return [END_WITH]
        if self.scope.aim.seeded:
            both = f" if {called} is not reference else contextlib.nullcontext()"
            return [f"{WITH} {called}.no_sync(){both if self.scope.aim.trains_reference else ''}"]
        enter = [f"no_sync = {called}.no_sync()", "no_sync.__enter__()"]
        lines = ["no_sync.__exit__(None, None, None)"] if leave else enter
        if not self.scope.aim.trains_reference:
            return lines
        return [f"if isinstance({called}, {self.scope.engine.wrapper}):", *indented(lines)]

    def _switch(self) -> list[str]:
        line = self.scope.script.sync_line(self.scope.called, self.synced)
        return self.scope.unless_reference([line])
