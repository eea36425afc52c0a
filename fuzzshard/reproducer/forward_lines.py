"""The forwards of a schedule: calls and their losses, as statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.facts import facts, has_batch_norm
from fuzzshard.case.groups import moves_inputs
from fuzzshard.case.losses import Losses
from fuzzshard.case.stages import evaluations, loss_scale
from fuzzshard.model.statements import at, indented
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Call, Op
from fuzzshard.program.forward import call_text, loss_lines, output_texts, term_text, whole_text
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.wrapping import if_wrapped
from fuzzshard.reproducer.inputs import InputNames, tuple_text
from fuzzshard.reproducer.scope import Scope
from fuzzshard.reproducer.watch import Watch


class ForwardLines:
    """Writes forwards; with ``inlines`` a loss may be an expression that its backward says."""

    def __init__(
        self,
        scope: Scope,
        ops: Sequence[Op],
        inputs: InputNames,
        losses: Losses,
        watch: Watch,
        *,
        inlines: bool,
    ) -> None:
        self.scope, self.case, self.ops = scope, scope.case, ops
        self.inputs, self.losses, self.watch, self.inlines = inputs, losses, watch, inlines
        self.stages = StageLines(scope, ops, inputs, self.terms)
        self._inlined: dict[int, str] = {}
        has_reference = scope.aim.kind == "compare" and has_batch_norm(self.case, "")
        self._broadcasts = has_reference and self.case.ddp.does("broadcasts_buffers")
        self._to_broadcast = self._broadcasts
        self._dropout = any(leaf.drops for leaf in facts(self.case).leaves.values())

    def loss(self, index: int) -> str:
        """The expression for the loss of the forward at ``index``."""
        return self._inlined.get(index, self.watch.loss(index))

    def lines(self, index: int, op: Call, *, synced: bool) -> list[str]:
        """The inputs that are new, the call, the loss, and what is looked at then; ``synced``:
        whether engines with one switch for everything synchronise gradients.
        """
        lines = [*self._before(index, op), *self._broadcast()]
        self._to_broadcast = self._broadcasts and op.grad and synced
        body = self._body(index, op, self._call(op))
        if op.mode:
            body = [f"with torch.{op.mode}():", *(f"    {line}" for line in body)]
        if self.scope.engine.in_stages:  # which run several at once
            body = self.scope.either(body, self._evaluation(index))
        return [
            *lines,
            *body,
            *self.watch.lines(index, ("outputs", *self.ops[index].looks)),
        ]

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

    def _before(self, index: int, op: Call) -> list[str]:
        """The inputs that are new, and the seed of dropout."""
        seeded = self.scope.aim.seeded
        lines = self.inputs.seeded() if seeded else self.inputs.definitions(op)
        if self._dropout and seeded:
            lines.append(f"torch.manual_seed({1000 * (index + 1)} + rank)")
        elif self._dropout:
            lines.append(f'torch.manual_seed(seed_of({self.case.seed}, "dropout", {index}, rank))')
        return lines

    def aborted(self, index: int, forward: Call, target: str, *, in_backward: bool) -> list[str]:
        """An iteration that a module ends with an exception, and what makes the next one
        possible.
        """
        scope, module, call = self.scope, at(self.scope.model, target), self._call(forward)
        if not in_backward:
            hook, body = f"{module}.register_forward_pre_hook(interrupt)", [f"    {call}"]
        else:
            hook = f"{module}.register_forward_hook(interrupt_backward)"
            loss = loss_lines("loss", self._terms(forward))
            lines = [f"out = {call}", *loss, "loss.backward()"]
            body = indented(lines)
        recovery = [f"{scope.model}.reset_iter_state()"] if scope.shards else []
        guarded = bool(recovery) and scope.aim.trains_reference
        return [
            *self._before(index, forward),
            f"handle = {hook}",
            "try:",
            *body,
            "except InterruptedError:",
            "    pass",
            "handle.remove()",
            *if_wrapped(scope.model, recovery, guarded=guarded),
            f"{scope.called}.zero_grad()",
            *self.watch.lines(index, ("buffers",)),
        ]

    def _call(self, op: Call) -> str:
        """The call; what engines put around a module has a ``forward`` and no other method."""
        wrapped = any(
            c.module == op.target and c.implementation == "wrapper" for c in self.case.checkpoints
        )
        by_forward = wrapped or (not op.target and not self.scope.engine.applies_groups)
        callee = at(self.scope.called if not op.target else self.scope.model, op.target)
        shared = self.scope.aim.trains_reference
        moves = moves_inputs(self.case, self.scope.aim.engine, op.target)
        arguments = self.inputs.arguments(op, moves=moves, shared=shared)
        return call_text(self.scope, op.target, callee, arguments, by_forward=by_forward)

    def _body(self, index: int, op: Call, call: str) -> list[str]:
        """The call and its loss, in as few statements as what is looked at allows."""
        waits = self.scope.wait("after_forward")
        watched = [oracle for oracle in self.scope.aim.watched(index) if oracle.of_forward]
        keeps_output = any(not oracle.is_loss for oracle in watched)
        keeps_output |= index in self.losses.parted
        looks_at_loss = any(oracle.is_loss for oracle in watched)
        if not looks_at_loss and index not in self.losses.needed:
            return [f"out = {call}" if keeps_output else call, *waits]
        terms = self._terms(op)
        loss = self.watch.loss(index)
        several = len(terms) > 1 or len(re.findall(r"\bout\b", terms[0])) > 1
        if several or keeps_output or waits:
            return [f"out = {call}", *waits, *self._sum(loss, terms)]
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
        if len(terms) > 1 and self.scope.aim.seeded:
            return [f"{loss} = {' + '.join(terms)}"]
        return loss_lines(loss, terms)

    def _goes_straight_into_backward(self, index: int) -> bool:
        keeps = self.scope.aim.trains_reference and self.scope.aim.op is None
        once = self.losses.taken.get(index + 1) == [index] and not self.ops[index + 1].retains
        return once and self.inlines and not keeps

    def term(self, op: Call, index: int, output: str) -> str:
        """The term of the output at ``index``, which the expression ``output`` stands for."""
        output = whole_text(self.case, output)
        target = ""
        if LOSSES[self.case.loss].has_target and not self.scope.aim.seeded:
            where = output if has_precision(self.case) or self.case.dtypes else "device"
            name = self.inputs.name("target", op, index)
            target = f"values({self._shape(op, index)}, {name}).to({where})"
        return term_text(self.case, op, index, output, target, self.inputs.variables(op))

    def _shape(self, op: Call, index: int) -> str:
        value = facts(self.case).output_values[op.target][index]
        sizes = (value.patches, value.size) if value.patches else (value.size,)
        return tuple_text(self.inputs.shape(op.batch, *sizes))


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
