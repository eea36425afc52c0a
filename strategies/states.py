"""What happens between two steps: state dicts, checkpoints, casts, other paths, divide factors."""

from __future__ import annotations

from fuzzshard.case.check_states import has_own_statistics
from fuzzshard.case.schedule import (
    Cast,
    CorruptState,
    LoadState,
    Op,
    SaveState,
    SetDivideFactor,
    SetFlag,
    TakeStateDict,
)
from fuzzshard.strategies.precision import other_dtype
from fuzzshard.strategies.subject import Subject
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape


class Boundaries:
    """The ops before the first step (number 0), and between any two. Those of a step are in one order."""

    def __init__(self, tape: Tape, swarm: Swarm, subject: Subject, num_steps: int) -> None:
        self.tape, self.subject, self.num_steps = tape, subject, num_steps
        case = self.case = subject.case
        self.ops: list[list[Op]] = [[] for _ in range(num_steps)]
        if "cast" in swarm:
            self.ops[0].append(Cast(dtype=other_dtype(case)))
        if "divide_factor" in swarm:
            self.early(50).append(self.divide_factor())
        if "set_reshard" in swarm:
            for _ in range(1 + tape.chance(40)):
                self.early(35).append(self.set_reshard())
        if "take_state_dict" in swarm:
            self.early(35).append(TakeStateDict())
        if "save_load" in swarm:
            self.save_and_load()

    def early(self, percent: int) -> list[Op]:
        """The ops before the first step with this probability, else those before any."""
        return self.ops[0 if not self.tape.chance(100 - percent) else self.tape.below(self.num_steps)]

    def target(self) -> tuple[str, bool]:
        """The root and all below it, or one wrapped module."""
        wrapped = [module for group in self.case.wrap for module in group.modules]
        if not self.tape.chance(35):
            return "", True
        return self.tape.pick(wrapped), self.tape.chance(30)

    def divide_factor(self) -> SetDivideFactor:
        """Any factor, also one that the number of ranks is not a multiple of."""
        target, recurse = self.target()
        factors = (2.0 * self.case.mesh.data_size, 1.0, 2.0, 4.0, 3.0, float(self.case.mesh.data_size))
        return SetDivideFactor(factor=self.tape.pick(factors), target=target, recurse=recurse)

    def set_reshard(self) -> SetFlag:
        """Another ``reshard_after_forward`` from now on."""
        target, recurse = self.target()
        return SetFlag(
            flag="reshard_after_forward", value=self.tape.chance(50), target=target, recurse=recurse
        )

    def save_and_load(self) -> None:
        """Saves, perhaps trains on, perhaps corrupts, loads; then trains on.

        A checkpoint on disk holds one copy of the buffers, and ranks with data of their own have their own.
        """
        tape = self.tape
        last = self.num_steps - 1
        first = min(1 + tape.below(max(last, 1)), last) if tape.chance(80) else 0
        via = "dcp" if tape.chance(60) and not has_own_statistics(self.case) else "state_dict"
        then = first + tape.below(last - first + 1)
        self.ops[first].append(SaveState(via=via))  # type: ignore[arg-type]
        assign = tape.chance(25) and not self.case.ties
        if tape.chance(75):
            self.ops[then].append(CorruptState(how="rebuild" if tape.chance(50) else "zero"))
        self.ops[then].append(LoadState(assign=assign))
