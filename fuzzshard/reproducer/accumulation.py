"""Scripts of sums that wait for their reduction in low precision: microbatches together and each
alone.

No plain model computes in low precision as an engine does, so the engine is compared with itself:
what a microbatch leaves when it is the only one is no sum yet, and the engine should add up just
these.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.losses import microbatches
from fuzzshard.model.statements import indented
from fuzzshard.program.wrapping import engine_lines
from fuzzshard.reproducer import helpers
from fuzzshard.reproducer.aim import Aim
from fuzzshard.reproducer.program import Program
from fuzzshard.reproducer.seeded import model_lines, seed_line
from fuzzshard.reproducer.writer import Writer


class Accumulate(Writer):
    """Trains the engine's model on all microbatches, and anew on each of them, with one
    function.
    """

    def __init__(self, case: Case, aim: Aim) -> None:
        assert aim.op is not None
        ops = case.schedule[: aim.op + 1]
        self.count = microbatches(case, aim.op)
        first = len(ops) - 2 * self.count
        one = replace(case, schedule=(*ops[:first], replace(ops[first], batch=0), ops[first + 1]))
        aim = dataclasses.replace(aim, op=first + 1)
        super().__init__(one, aim, Program(one, aim, called="model", model="model"))
        self._left = self.program.scope.unreduced()

    @override
    def functions(self) -> list[str]:
        """The function that runs microbatches; each has data of its own."""
        lines = self.program.lines
        begins = lines.index(seed_line(self.case))
        seed = "batch" if self.case.inputs.same_on_ranks else "100 * batch + rank"
        body = [
            *engine_lines(
                self.case, self.aim.engine, "model", made=model_lines(self.case, "model")
            ),
            *lines[:begins],
            "for batch in batches:",
            *indented([f"torch.manual_seed({seed})", *lines[begins + 1 :]]),
            f"return {self._left}",
        ]
        return ["\n".join(["def accumulated(batches):", *indented(body)])]

    @override
    def main(self) -> list[str]:
        every, who = f"range({self.count})", f"rank {{rank}}, {self.aim.name}"
        return [
            *self.delays,
            f"expected = sum(accumulated([batch]) for batch in {every})",
            f"observed = accumulated({every})",
            f'both = f"{who}: expected\\n{{expected}}\\nobserved\\n{{observed}}\\n"',
            "torch.testing.assert_close(observed, expected, rtol=0, atol=0, msg=lambda m: "
            "both + m)",
            *helpers.END,
        ]
