"""What happens between two steps: state dicts, checkpoints, casts, divide factors."""

from __future__ import annotations

from fuzzshard.case.facts import has_own_statistics
from fuzzshard.parts.op import Below, Op
from fuzzshard.parts.ops import OPS
from fuzzshard.strategies.subject import Subject
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape


class Boundaries:
    """The ops before the first step (number 0), and between any two. Those of a step are in one order."""

    def __init__(self, tape: Tape, swarm: Swarm, subject: Subject, num_steps: int) -> None:
        self.tape, self.swarm, self.num_steps = tape, swarm, num_steps
        self.case = subject.case
        self.has_own_statistics = has_own_statistics(self.case)
        self.ops: list[list[Op]] = [[] for _ in range(num_steps)]
        for op in OPS:
            op.draw_between(self)

    def early(self, percent: int) -> list[Op]:
        """The ops before the first step with this probability, else those before any."""
        return self.ops[0 if not self.tape.chance(100 - percent) else self.tape.below(self.num_steps)]

    def below(self) -> Below:
        """The root and all below it, or one wrapped module."""
        wrapped = [module for group in self.case.wrap for module in group.modules]
        if not self.tape.chance(35):
            return Below()
        return Below(self.tape.pick(wrapped), self.tape.chance(30))
