"""What a schedule of stages runs at once, as statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fuzzshard.case.stages import loss_scale
from fuzzshard.parts.op import Call, Op
from fuzzshard.reproducer.inputs import InputNames
from fuzzshard.reproducer.scope import Scope


class StageLines:
    """Writes iterations and evaluations; ``terms`` are the losses of the outputs ``out`` of
    calls.

    The schedule is made by the first of them, and again where the model was built anew.
    """

    def __init__(
        self,
        scope: Scope,
        ops: Sequence[Op],
        inputs: InputNames,
        terms: Callable[[Iterable[Call]], list[str]],
    ) -> None:
        self._scope, self._ops, self._inputs, self._terms = scope, ops, inputs, terms
        self.has_schedule = False

    def iteration(self, calls: Sequence[Call]) -> list[str]:
        """Run all forwards and their backward."""
        script, case = self._scope.script, self._scope.case
        return [*self._schedule(calls), *script.iteration_lines(case, self._batches(calls))]

    def evaluation(self, calls: Sequence[Call]) -> list[str]:
        """Run all forwards under the context manager that they ask for."""
        script, case, mode = self._scope.script, self._scope.case, calls[0].mode
        lines = script.evaluation_lines(case, self._batches(calls), mode=mode)
        return [*self._schedule(calls), *lines]

    def _schedule(self, calls: Sequence[Call]) -> list[str]:
        lines, count = [], len(calls)
        terms = self._terms(op.begins for op in self._ops if op.begins)
        if len(terms) > 1:
            own = (term for call in calls for term in self._terms([call]))
            lines += ["terms = [", *(f"    lambda out: {term}," for term in own), "]"]
        if not self.has_schedule:
            self.has_schedule = True
            times = loss_scale(self._scope.case, count)
            scale = f"{times} * " if times > 1 else ""
            term = terms[0] if len(terms) == 1 else "terms[place](out)"
            lines += ["def loss_fn(out, place):", f"    return {scale}{term}"]
            lines += self._scope.script.schedule_lines(self._scope.case, count)
        return lines

    def _batches(self, calls: Sequence[Call]) -> list[str]:
        named = (self._inputs.arguments(call, moves=False, shared=True) for call in calls)
        return [batch for (batch,) in named]
