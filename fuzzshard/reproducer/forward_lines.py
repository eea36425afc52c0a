"""The forwards of a schedule: calls and their losses, as statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from fuzzshard.analysis.groups import moves_inputs
from fuzzshard.analysis.inferred import has_batch_norm, inferred
from fuzzshard.analysis.stages import evaluations, loss_scale
from fuzzshard.model.statements import at
from fuzzshard.parts.op import Call
from fuzzshard.program.forward import call_text, output_texts, term_text, whole_text
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.wrapping import if_wrapped

if TYPE_CHECKING:
    from fuzzshard.reproducer.scope import Scope


class ForwardLines:
    """Writes forwards; a loss may be an expression that its backward says."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.case, self.ops = scope, scope.case, scope.ops
        self.inputs, self.losses, self.watch = scope.inputs, scope.losses, scope.watch
        self.stages = StageLines(scope, self.terms)
        self._inlined: dict[int, str] = {}
        has_reference = scope.shared and has_batch_norm(self.case, "")
        self._broadcasts = has_reference and self.case.ddp.does("broadcasts_buffers")
        self._to_broadcast = self._broadcasts
        self._dropout = any(leaf.drops for leaf in inferred(self.case).leaves.values())

    def loss(self, index: int) -> str:
        """The expression for the loss of the forward at ``index``."""
        return self._inlined.get(index, self.watch.loss(index))

    def lines(self, op: Call) -> list[str]:
        """The inputs that are new, the call and the loss."""
        index = self.scope.now.index
        lines = [*self._before(index), *self._broadcast()]
        self._to_broadcast = self._broadcasts and op.grad and self.scope.now.synced
        body = self._body(index, op, self._call(op))
        if op.mode:
            body = [f"with torch.{op.mode}():", *(f"    {line}" for line in body)]
        if self.scope.engine.in_stages:  # which run several at once
            body = self.scope.either(body, self._evaluation(index))
        return [*lines, *body]

    def _evaluation(self, index: int) -> list[str]:
        """The forwards that end with the one at ``index``; none where that has a backward."""
        together = evaluations(self.case).get(index, ())
        calls = [call for place in together if (call := self.ops[place].call)]
        return self.stages.evaluation(calls) if calls else []

    def _broadcast(self) -> list[str]:
        """What DDP does at the beginning of a forward, and not the reference by itself."""
        if not self._to_broadcast:
            return []
        names = MeshNames(self.case)
        source = self.case.mesh.data_size - 1 if self.case.ddp.does("ends_with_last_rank") else 0
        return [
            "if model is reference:  # DDP does this by itself",
            "    for buffer in model.buffers():",
            f"        dist.broadcast(buffer{names.group_argument}, group_src={source})",
        ]

    def _before(self, index: int) -> list[str]:
        """The inputs that are new, and the seed of dropout."""
        seeds = [f"torch.manual_seed({1000 * (index + 1)} + rank)"] * self._dropout
        return [*self.inputs.drawn(), *seeds]

    def aborted(self, forward: Call, target: str, *, in_backward: bool) -> list[str]:
        """An iteration that a module ends with an exception, and what makes the next one
        possible.
        """
        scope, module, call = self.scope, at(self.scope.model, target), self._call(forward)
        body = [call]
        if in_backward:
            body = [f"out = {call}", *self._sum("loss", self._terms(forward)), "loss.backward()"]
        recovery = [f"{scope.model}.reset_iter_state()"] if scope.shards else []
        guarded = bool(recovery) and scope.shared
        return [
            *self._before(scope.now.index),
            *scope.interrupted(module, body, in_backward=in_backward),
            *if_wrapped(scope.model, recovery, guarded=guarded),
            f"{scope.called}.zero_grad()",
        ]

    def _call(self, op: Call) -> str:
        """The call; what engines put around a module has a ``forward`` and no other method."""
        wrapped = any(
            c.module == op.target and c.implementation == "wrapper" for c in self.case.checkpoints
        )
        by_forward = wrapped or (not op.target and not self.scope.engine.applies_groups)
        callee = at(self.scope.called if not op.target else self.scope.model, op.target)
        moves = moves_inputs(self.case, self.scope.assertion.engine, op.target)
        arguments = self.inputs.arguments(op, moves=moves, shared=self.scope.shared)
        return call_text(self.scope, op.target, callee, arguments, by_forward=by_forward)

    def _body(self, index: int, op: Call, call: str) -> list[str]:
        """The call and its loss, in as few statements as what is looked at allows."""
        watched = [oracle for oracle in self.scope.assertion.watched(index) if oracle.of_forward]
        keeps_output = any(not oracle.is_loss for oracle in watched)
        keeps_output |= index in self.losses.parted
        looks_at_loss = any(oracle.is_loss for oracle in watched)
        if not looks_at_loss and index not in self.losses.needed:
            return [f"out = {call}" if keeps_output else call]
        terms = self._terms(op)
        loss = self.watch.loss(index)
        several = len(terms) > 1 or len(re.findall(r"\bout\b", terms[0])) > 1
        if several or keeps_output:
            return [f"out = {call}", *self._sum(loss, terms)]
        term = re.sub(r"\bout\b", lambda _: call, terms[0])
        if self._goes_straight_into_backward(index):
            self._inlined[index] = term
            return []
        return [f"{loss} = {term}"]

    def of_outputs(self, loss: str, op: Call) -> list[str]:
        """The loss of some outputs of a forward that was the last one."""
        return self._sum(loss, self._terms(op))

    def terms(self, calls: Iterable[Call]) -> list[str]:
        """The losses of the one output ``out`` of each call, in order, without repetitions."""
        return [*dict.fromkeys(term for call in calls for term in self._terms(call))]

    def _terms(self, op: Call) -> list[str]:
        outputs = output_texts(self.case, op.target)
        return [self.term(op, i, outputs[i]) for i in op.used(len(outputs))]

    def _sum(self, loss: str, terms: list[str]) -> list[str]:
        return [f"{loss} = {' + '.join(terms)}"]

    def _goes_straight_into_backward(self, index: int) -> bool:
        assertion = self.scope.assertion
        keeps = assertion.stops_at_op or (assertion.trains_reference and assertion.op is None)
        if self.losses.taken.get(index + 1) != [index] or keeps:
            return False
        takes = self.ops[index + 1].takes
        return takes is not None and not takes.retains

    def term(self, op: Call, index: int, output: str) -> str:
        """The term of the output at ``index``, which the expression ``output`` stands for."""
        output = whole_text(self.case, output)
        return term_text(self.case, op, index, output, "", self.inputs.variables(op))


class StageLines:
    """Writes iterations and evaluations; ``terms`` are the losses of the outputs ``out`` of
    calls.

    The schedule is made by the first of them, and again where the model was built anew.
    """

    def __init__(self, scope: Scope, terms: Callable[[Iterable[Call]], list[str]]) -> None:
        self._scope, self._ops, self._inputs, self._terms = scope, scope.ops, scope.inputs, terms
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
