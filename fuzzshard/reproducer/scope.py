"""What statements of a script are written for: the ops up to the one that is looked at, and the
variables there are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from typing_extensions import override

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.losses import losses
from fuzzshard.analysis.schedule_state import ScheduleState, first, ops_that_run
from fuzzshard.analysis.stages import loss_scale
from fuzzshard.analysis.sync_flags import UNMANAGED
from fuzzshard.case.case import Case
from fuzzshard.case.edit import split
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Call, Op, Ranks, Taking
from fuzzshard.parts.ops import grads
from fuzzshard.parts.ops.set_flag import flags_set
from fuzzshard.parts.statements import LONG, at, call_lines, indented
from fuzzshard.program import scope
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import checkpoint_lines
from fuzzshard.reproducer.assertion import Assertion
from fuzzshard.reproducer.averages import Average, averages
from fuzzshard.reproducer.values import Inputs, model_lines
from fuzzshard.reproducer.watch import Watch

UNWRAPPED = 'inner = getattr(model, "module", model)'
"""What a function that trains does first, if attributes of the model are below a wrapper."""


class Scope(scope.Scope):
    """Writes the ops up to the one that the assertion is about: :meth:`lines`.

    ``called`` is the variable that a forward of the root calls, ``model`` the one whose attributes
    are modules and parameters: they differ for engines that put a module around the model.
    """

    def __init__(self, case: Case, assertion: Assertion, called: str, model: str) -> None:
        names, engine = MeshNames(case), spec_of(assertion.engine)
        trained = f"{called if engine.in_stages else model}.parameters()"
        shared = assertion.trains_reference
        super().__init__(case, engine, called, model, names, trained, shared=shared)
        self.assertion, self.now = assertion, ScheduleState(case)
        every, op = ops_that_run(case, assertion.engine), assertion.op
        last = every.stop - 1 if op is None else op
        self.ops = case.schedule[: last + 1]
        self._averages = first(case, lambda at: at.averaged) <= last
        self.losses = losses(case, last)
        self.averages = averages(case, assertion, last) if shared else dict[int, Average]()
        self.inputs = Inputs(case, self.ops, assertion.seed)
        self.watch = Watch(self)
        self._inlined: dict[int, str] = {}
        """The losses that are written into their backwards."""

    def lines(self) -> list[str]:
        """Write the whole schedule."""
        lines = self.freeze_lines()
        if grads(enabled=False) in self.ops:
            lines.append("torch.set_grad_enabled(True)")
        lines += self.renewed
        lines += ["averaged = None"] * self._averages
        if self.keeps_hooks:
            lines.append("hooks = []  # of the reference, for when its gradients are averaged")
        if self.shared and self.assertion.op is None:
            lines.append("seen = {}")
        for silent, ops in itertools.groupby(self.ops, self._is_silent):
            block = [line for op in ops for line in self._op(op)]
            if silent and block:
                both = f" if {self.called} is not reference else contextlib.nullcontext()"
                entering = f"with {self.called}.no_sync(){both if self.shared else ''}:"
                lines.append(entering)
                block = self.script.no_sync_lines(self.case, entering) + block
            lines += indented(block) if silent else block
        return lines

    def _is_silent(self, op: Op) -> bool:
        """Return whether an op stands within ``no_sync()``."""
        return bool(self.engine.wrapper) and not (self.now.synced or op.rebuilds)

    def _op(self, op: Op) -> list[str]:
        index = self.now.index
        lines = _on_ranks(op.ranks, op.statements(self))
        if not (self.assertion.stops_at_op and self.assertion.op == index):
            lines += _on_ranks(op.ranks, self.watch.lines(op))
        synced = self.now.synced
        self.now.advance(skipped=index in self.losses.skipped)
        if self.now.synced != synced:
            lines += self._sync_lines()
        return self.assertion.rule.around(self, lines) if self.assertion.op == index else lines

    # The model:

    @property
    def models(self) -> tuple[str, ...]:
        """The variables of the model, as a function that trains gets it."""
        if self.shared:
            return tuple(dict.fromkeys(("model", self.called)))
        return tuple(dict.fromkeys((self.called, self.model)))

    @property
    def made(self) -> tuple[str, ...]:
        """All variables that building the model makes."""
        return (*self.models, *self.script.made)

    @property
    def rebuilds(self) -> bool:
        """Whether the model is built a second time, with other values."""
        return any(op.rebuilds is not None for op in self.ops)

    @property
    def moves(self) -> bool:
        """Whether that happens on another mesh."""
        return any(op.rebuilds for op in self.ops)

    @override
    def rebuilt(self, mesh: tuple[int, ...]) -> list[str]:
        seed = self.assertion.seed + 1
        given, variables = [f"seed={seed}"], ", ".join(self.made)
        if self.moves:
            names = MeshNames(self.now.case.on(mesh))
            given.append(f"{names.variable}={names.expression()}")
        lines = call_lines(f"{variables} = make_model", given)
        if self.shared:
            others = (*(name for name in self.models if name != "model"), "reference")
            lines = [
                f"if {self.called} is reference:",
                *indented(model_lines(self.case, "model", seed)),
                f"    {' = '.join(others)} = model",
                *indented(checkpoint_lines(self.case, "model", reference=True)),
                "else:",
                *indented(lines),
                *([UNWRAPPED] if self.model != "model" else []),
            ]
        lines += self.freeze_lines()
        self.has_schedule = self.puts_off = self.joined = False
        earlier = self.ops[: self.now.index]
        lines += [line for each in earlier for line in _on_ranks(each.ranks, each.settings(self))]
        lines += [] if self.now.synced else self._sync_lines()
        lines += ["averaged = None"] * self._averages
        return [*lines, *self.renewed]

    def _sync_lines(self) -> list[str]:
        """Switch synchronisation, where an engine has neither flags nor ``no_sync()``."""
        if self.engine.applies_groups or self.engine.wrapper or self.engine.in_stages:
            return []
        return self.unless_reference([self.script.sync_line(self.called, self.now.synced)])

    @property
    @override
    def renewed(self) -> list[str]:
        lines = []
        if parameter := self.watch.parameter:
            lines.append(f"{parameter} = {self.at(self.assertion.name)}")
        if self.assertion.rule.takes_parameters or self.watch.uses_parameters:
            pairs = f"{self.model}.named_parameters()"
            renamed = self.engine.wrapper or self.has_wrapper_modules
            if renamed and not self.script.flat_units(self.case):
                pairs = f"zip(names, {self.model}.parameters())"
            lines.append(f"params = dict({pairs})")
        if self.shared and (unmanaged := self._unmanaged):
            lines += [
                "by_hand = list(model.parameters())",
                "if model is not reference:  # the others the engine averages by itself",
                *indented(call_lines("by_hand = ", [*map(self.at, unmanaged)], "[]")),
            ]
        scales = bool(self.case.optimizer.scaler)
        needs = (op.of_optimizer or (op.takes and scales) for op in self.ops)
        return [*lines, *(self._all_optimizer_lines() if any(needs) else [])]

    def _all_optimizer_lines(self) -> list[str]:
        """Make the optimizers, and what goes with them."""
        lines, parameters, spec = list[str](), [self.trained], self.case.optimizer
        if apart := self.within(spec.exclude):
            lines = call_lines("apart = ", apart, "{}")
            listed = f"[p for p in {self.trained} if p {{}} apart]"
            parameters = [listed.format("not in"), listed.format("in")][: len(spec.each)]
        return [*lines, *self.optimizer_lines(parameters)]

    @override
    def either(self, plain: list[str], wrapped: list[str]) -> list[str]:
        if not self.shared or plain == wrapped:
            return wrapped
        condition = f"if {self.called} is reference:"
        lines = [condition, *indented(plain)] if plain else []
        others = ["else:" if plain else f"if {self.called} is not reference:", *indented(wrapped)]
        return [*lines, *(others if wrapped else [])]

    def part(self, fqn: str) -> str:
        """Write the expression for what ``fully_shard`` holds of a parameter."""
        module, name = split(fqn)
        return f'part({self.model}, {self.at(module)}, "{name}")'

    # Forwards and backwards:

    @override
    def inputs_of(self, call: Call) -> list[str]:
        """Return the inputs of all forwards, where they are not there, and the seed of dropout."""
        drops = any(leaf.drops for leaf in inferred(self.case).leaves.values())
        seeds = [f"torch.manual_seed({1000 * (self.now.index + 1)} + rank)"] * drops
        return [*self.inputs.drawn(self.now.cast or self.case.dtype), *seeds]

    def _call(self, call: Call) -> str:
        """The call; what engines put around a module has a ``forward`` and no other method."""
        target = call.target
        wrapped = any(
            c.module == target and c.implementation == "wrapper" for c in self.case.checkpoints
        )
        by_forward = wrapped or (not target and not self.engine.applies_groups)
        callee = at(self.model if target else self.called, target)
        return self.call_text(call, callee, by_forward=by_forward)

    @override
    def variables(self, call: Call) -> list[str]:
        return self.inputs.variables(call)

    @override
    def computed(self, call: Call) -> list[str]:
        """Return the call and its loss, in as few statements as what is looked at allows."""
        index, text = self.now.index, self._call(call)
        watched = [oracle for oracle in self.assertion.watched(index) if oracle.of_forward]
        keeps_output = any(not oracle.is_loss for oracle in watched)
        keeps_output |= index in self.losses.parted
        is_parallel = bool(LOSSES[self.case.loss].context)
        wants_loss = any(oracle.is_loss for oracle in watched) or is_parallel
        if not wants_loss and index not in self.losses.needed:
            return [f"out = {text}" if keeps_output else text]
        loss, terms = self.watch.loss(index), " + ".join(self._terms(call))
        if keeps_output or is_parallel or len(re.findall(r"\bout\b", terms)) > 1:
            return [f"out = {text}", *self.in_context(_summed(loss, self._terms(call)))]
        terms = re.sub(r"\bout\b", lambda _: text, terms)
        keeps = self.assertion.stops_at_op or (self.shared and self.assertion.op is None)
        once = self.losses.taken.get(index + 1) == [index]
        takes = self.ops[index + 1].takes if once else None
        if takes and not (takes.retains or keeps or call.contexts):
            self._inlined[index] = terms
            return []
        return [f"{loss} = {terms}"]

    def _terms(self, call: Call) -> list[str]:
        """Return the losses of the outputs of ``out``."""
        is_shared = bool(LOSSES[self.case.loss].context)  # of DTensors as they are
        outputs = self.shared_outputs if is_shared else self.whole_outputs
        return self.terms(call, outputs(call.target))

    @override
    def aborted(self, call: Call, *, in_backward: bool) -> list[str]:
        return self.iteration(call) if in_backward else [self._call(call)]

    @override
    def iteration(self, call: Call) -> list[str]:
        loss = f"loss = {' + '.join(self._terms(call))}"
        return [f"out = {self._call(call)}", *self.in_context([loss, "loss.backward()"])]

    @override
    def average_lines(self, ranks: str) -> list[str]:
        return self.averaging_lines(ranks, f"{self.called}.parameters()")

    @override
    def differentiated(self, takes: Taking) -> list[str]:
        index, made = self.now.index, list[str]()
        if index in self.losses.skipped:
            return []
        places = self.losses.taken[index]
        taken = [self._inlined.get(place, self.watch.loss(place)) for place in places]
        if takes.outputs is not None:
            taken = [f"part{index}"]
            made = self.in_context(_summed(taken[0], self._terms(self.now.taken[0].call)))
        lines = [*made, *self.backward_lines(taken, retains=takes.retains)]
        if not (self.assertion.stops_at_op and self.assertion.op == index):
            lines += self._average(index)
        leaves_waiting = "is_last_backward" in flags_set(self.ops)
        if leaves_waiting and self.assertion.wants_reduced(index):  # only the last one waits
            lines += ['if device == "cuda":', "    torch.cuda.synchronize()"]
        return lines

    @override
    def schedule_lines(self, calls: Sequence[Call]) -> list[str]:
        """Make it of a loss, or of a list of such that forwards have by their place."""
        lines = []
        every = (op.begins for op in self.ops if op.begins)
        terms = [*dict.fromkeys(term for call in every for term in self._terms(call))]
        if len(terms) > 1:
            own = (term for call in calls for term in self._terms(call))
            lines += ["terms = [", *(f"    lambda out: {term}," for term in own), "]"]
        if not self.has_schedule:
            times = loss_scale(self.case, len(calls))
            scale = f"{times} * " if times > 1 else ""
            term = terms[0] if len(terms) == 1 else "terms[place](out)"
            lines += ["def loss_fn(out, place):", f"    return {scale}{term}"]
        return [*lines, *super().schedule_lines(calls)]

    @override
    def batches(self, calls: Sequence[Call]) -> list[str]:
        return [batch for call in calls for batch in self.arguments(call)]

    def _average(self, index: int) -> list[str]:
        """Average gradients of the reference, and those that no group of the engine manages."""
        average = self.averages.get(index, Average(()))
        if average.names == ():
            return []
        parameters = "by_hand" if self._unmanaged else "model.parameters()"
        named = []
        if average.names is not None:
            parameters = "synced"
            named = call_lines("synced = ", [*map(self.at, average.names)], "[]")
        several = sum(each.names != () for each in self.averages.values()) > 1
        if several and average.divisor is None:
            lines = [*named, f"average({parameters})"]
        else:
            lines = [*named, *self.averaging_lines(average.divisor, parameters)]
        if self.keeps_hooks:
            lines += ["for p, hook in hooks:", "    if p.grad is not None:", "        hook(p)"]
        if self._unmanaged or self.engine.in_stages:
            return lines
        return ["if model is reference:  # the engine does this by itself", *indented(lines)]

    def averaging_lines(self, divisor: float | str | None, parameters: str) -> list[str]:
        """Average the gradients of ``parameters``, or divide their sums by ``divisor``."""
        case, names = self.case, self.names
        alone = case.mesh.data_size == 1 and divisor is not None
        local = ["    grad = grad.to_local() if isinstance(grad, DTensor) else grad"]
        lines = [
            *(local if case.tensor_parallel and parameters != "model.parameters()" else []),
            *([] if alone else [f"    dist.all_reduce(grad{names.group_argument})"]),
            f"    grad /= {names.data_size if divisor is None else divisor}",
        ]
        if half := self.engine.averages_in_half(case):
            lines = [
                f"    half = grad.to(torch.{half}) / {names.data_size}  # as the hook does",
                f"    dist.all_reduce(half{names.group_argument})",
                "    grad.copy_(half)",
            ]
        return [f"for grad in [p.grad for p in {parameters} if p.grad is not None]:", *lines]

    @property
    def _unmanaged(self) -> list[str]:
        """The parameters whose gradients the engine's model averages by hand."""
        if not (self.engine.applies_groups and any(a.names != () for a in self.averages.values())):
            return []
        return [fqn for fqn, owner in inferred(self.case).owners.items() if owner is UNMANAGED]

    @property
    @override
    def keeps_hooks(self) -> bool:
        hooked = first(self.case, lambda at: at.hooked) < len(self.ops)
        return hooked and any(average.names != () for average in self.averages.values())


def _on_ranks(ranks: Ranks, lines: list[str]) -> list[str]:
    """Restrict ``lines`` to some ranks."""
    return lines if ranks == "all" or not lines else ["if dist.get_rank() > 0:", *indented(lines)]


def _summed(name: str, terms: Sequence[str]) -> list[str]:
    """Name the sum of these, in one line if that is short enough to read."""
    first, *others = terms
    line = f"{name} = {' + '.join(terms)}"
    if len(line) <= LONG:
        return [line]
    return [f"{name} = {first}", *(f"{name} = {name} + {term}" for term in others)]
