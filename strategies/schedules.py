"""Schedules: training runs as users write them, and the odd ones that are legal all the same.

A step is a few rounds of [flags, forward, backward], then ``step`` and ``zero_grad``. Between two
ops anything may happen that plain PyTorch allows too: a toggle of ``requires_grad``, an eval forward,
a forward of a submodule. Every pending loss has its backward before the step, because autograd
refuses a backward through parameters that were changed in place.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import reached_roots, uses_outside_groups
from fuzzshard.case.schedule import (
    Backward,
    Flag,
    Forward,
    Op,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.strategies.flow import Flow
from fuzzshard.strategies.freezing import below, pick_target
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_FLAGS: dict[str, Flag] = {
    "no_sync": "requires_gradient_sync",
    "partial_sync": "requires_gradient_sync",
    "no_all_reduce": "requires_all_reduce",
    "not_last_backward": "is_last_backward",
    "no_reshard": "reshard_after_backward",
}
_SYNC_FLAGS: tuple[Flag, ...] = ("requires_gradient_sync", "requires_all_reduce")


@dataclasses.dataclass(frozen=True)
class Subject:
    """What a schedule trains: a case without one. ``trainable`` is so after the freeze plan."""

    case: Case
    found: Facts
    flow: Flow
    trainable: frozenset[str]

    def forward_targets(self) -> list[str]:
        """Modules below the root that can be called by themselves: their groups run within them."""
        return [
            path
            for path in self.found.modules
            if path and not any(uses_outside_groups(self.case, self.found, path))
        ]


def schedule(tape: Tape, swarm: Swarm, subject: Subject) -> tuple[Op, ...]:
    """One to four steps of one to three rounds each."""
    run = _Run(tape, swarm, subject)
    steps = tape.weighted(((2, 5), (3, 3), (4, 1))) if "several_steps" in swarm else 1
    for _ in range(steps):
        run.step()
    return tuple(run.ops)


class _Run:
    """A schedule under construction, with what it has done to the model so far."""

    def __init__(self, tape: Tape, swarm: Swarm, subject: Subject) -> None:
        self.tape, self.swarm, self.subject = tape, swarm, subject
        self.ops: list[Op] = []
        self.trainable = subject.trainable
        self.wrapped = [module for group in subject.case.wrap for module in group.modules]
        self.must_reach = False
        """Whether every backward of this step must reach all FSDP roots, to end what flags began there."""
        self.targets = subject.forward_targets() if "non_root_forward" in swarm else []
        self.pending = 0
        self.batch = 0
        self.paired = "two_forwards" in swarm and tape.chance(75)
        self.zero_before = tape.chance(25)
        self.toggles = tape.below(4) if "toggle" in swarm else 0
        self.started = tape.chance(4)
        """Whether a module below the root may be called: before the root's first forward, torch refuses."""
        self.restore: list[SetFlag] = []

    def allows(self, choice: str, percent: int) -> bool:
        """Whether to do now what the swarm allows."""
        return choice in self.swarm and self.tape.chance(percent)

    def step(self) -> None:
        """One optimizer step."""
        if self.zero_before:
            self.zero_grad()
        self.toggle()
        self.aside()
        rounds = 2 + self.tape.chance(30) if self.allows("microbatches", 80) else 1
        self.ops += self.restore
        self.restore = []
        flags = self.flags() if rounds > 1 else []
        self.must_reach = any(flag.flag not in _SYNC_FLAGS for flag in flags)
        late = [flag for flag in flags if self.tape.chance(6 if flag.flag in _SYNC_FLAGS else 30)]
        for i in range(rounds):
            changes: list[SetFlag] = []
            if i == 0:
                changes = flags
            elif i == rounds - 1:
                changes = [self.undo(flag) for flag in flags]
            undone = {(flag.flag, flag.target) for flag in late}
            self.ops += [flag for flag in changes if (flag.flag, flag.target) not in undone]
            self.forwards()
            self.ops += [flag for flag in changes if (flag.flag, flag.target) in undone]
            self.backwards(last=i == rounds - 1)
            self.aside()
        self.leave_unsynced()
        self.toggle()
        self.ops.append(Step())
        if not self.zero_before:
            self.zero_grad()

    def flags(self) -> list[SetFlag]:
        """What the rounds before the last one switch off; each flag of each module once."""
        hsdp = self.subject.case.mesh.replicate is not None
        chosen: dict[tuple[Flag, str], SetFlag] = {}
        for choice, flag in _FLAGS.items():
            if self.allows(choice, 25 if choice == "no_all_reduce" and not hsdp else 60):
                target, recurse = self.flag_target(choice)
                op = SetFlag(flag=flag, value=False, target=target, recurse=recurse)
                chosen.setdefault((flag, target), op)
        return list(chosen.values())

    def flag_target(self, choice: str) -> tuple[str, bool]:
        """Which module a flag is set on, and whether on those below it too: usually the root and all."""
        partial = choice == "partial_sync" or (choice != "no_sync" and self.tape.chance(20))
        if not partial or not self.wrapped:
            return "", True
        below_root = [module for module in self.wrapped if module]
        return self.tape.pick(below_root or self.wrapped), self.tape.chance(30)

    def undo(self, flag: SetFlag) -> SetFlag:
        """The op that switches a flag on again."""
        return SetFlag(flag=flag.flag, value=True, target=flag.target, recurse=flag.recurse)

    def leave_unsynced(self) -> None:
        """Rarely, the step follows a backward that did not synchronise; the next step's backward does."""
        if self.pending or not self.wrapped or not self.allows("no_sync", 12):
            return
        target, recurse = self.flag_target("partial_sync" if self.tape.chance(40) else "no_sync")
        flag = SetFlag(flag="requires_gradient_sync", value=False, target=target, recurse=recurse)
        self.ops.append(flag)
        self.forward()
        self.backward("all")
        self.restore.append(self.undo(flag))

    def forwards(self) -> None:
        """What precedes the backward of a round: a forward, or two; or none when one is pending still."""
        if self.pending and self.tape.chance(50):
            return
        self.forward()
        if self.paired and self.tape.chance(60):
            self.toggle()
            self.aside()
            self.forward()

    def backwards(self, *, last: bool) -> None:
        """The backward of a round; the last round leaves nothing pending."""
        if self.pending > 1 and self.allows("backward_order", 75):
            self.backward("oldest" if self.tape.chance(50) else "newest")
            if last:
                self.toggle()
                self.backward("all")
        else:
            self.toggle()
            self.backward("all")

    def backward(self, which: Literal["all", "oldest", "newest"]) -> None:
        self.ops.append(Backward(which=which))
        self.pending = 0 if which == "all" else self.pending - 1

    def forward(self, *, grad: bool = True) -> None:
        """A forward of the root or of a module below it; what it returns can have a backward."""
        target = ""
        if self.targets and self.started and self.tape.chance(35):
            chosen = self.tape.pick(self.targets)
            reaches = self.reached(chosen) == self.reached("")
            if any(self.subject.flow.outputs(chosen, self.trainable)) and (reaches or not self.must_reach):
                target = chosen
        self.started |= not target
        if not self.tape.chance(10):
            self.batch += 1
        self.pending += grad
        outputs = self.outputs(target)
        self.ops.append(Forward(batch=self.batch, target=target, grad=grad, outputs=outputs))

    def reached(self, target: str) -> frozenset[int]:
        """The FSDP roots that a backward of a forward of ``target`` reaches."""
        return reached_roots(self.subject.case, self.subject.found, target)

    def outputs(self, target: str) -> tuple[int, ...] | None:
        """The outputs that enter the loss, of which one requires a gradient at least."""
        flows = self.subject.flow.outputs(target, self.trainable)
        if len(flows) == 1 or not self.allows("partial_loss", 75):
            return None
        kept = self.tape.pick([i for i, flow in enumerate(flows) if flow])
        return tuple(i for i in range(len(flows)) if i == kept or (len(flows) > 2 and self.tape.chance(40)))

    def aside(self) -> None:
        """Something that is no part of training: a forward without gradients or in eval mode."""
        if self.allows("no_grad_forward", 20):
            self.forward(grad=False)
        if self.pending or not self.allows("eval_forward", 25):
            return
        self.ops.append(SetMode(train=False))
        grad = self.tape.chance(25)
        self.forward(grad=grad)
        if grad and (self.subject.case.checkpoints or self.tape.chance(50)):
            self.backward("all")
        self.ops.append(SetMode(train=True))
        if self.pending:
            self.backward("all")

    def toggle(self) -> None:
        """Freezes or unfreezes something, as long as a backward stays possible.

        Nothing of this while a checkpointed forward is pending: recomputation must see what it saw.
        """
        if not self.toggles or (self.pending and self.subject.case.checkpoints) or not self.tape.chance(60):
            return
        self.toggles -= 1
        found = self.subject.found
        frozen = frozenset(found.parameters) - self.trainable
        value = bool(frozen) and self.tape.chance(60)
        among = frozen if value else self.trainable
        target = pick_target(self.tape, found, among, module=self.tape.chance(40))
        if target is None:
            return
        after = self.trainable - below(self.trainable, target, inside=True)
        if value:
            after = self.trainable | below(frozen, target, inside=True)
        if any(self.subject.flow.outputs("", after)):
            self.trainable = after
            self.ops.append(SetRequiresGrad(target=target, value=value))

    def zero_grad(self) -> None:
        """``zero_grad``, or nothing: gradients then accumulate over steps."""
        if not self.allows("no_zero_grad", 45):
            self.ops.append(ZeroGrad(set_to_none=not self.allows("zero_to_zero", 60)))
