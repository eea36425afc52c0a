"""What statements of a script are written for: the ops up to the one that is looked at, and the
variables there are.
"""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.losses import losses
from fuzzshard.analysis.schedule_state import ScheduleState, ops_that_run
from fuzzshard.analysis.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.case.case import Case
from fuzzshard.case.edit import split
from fuzzshard.model.statements import call_lines, indented
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.op import Call, Hooked, Op, Ranks, Switch, Taking
from fuzzshard.program import scope
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import checkpoint_lines
from fuzzshard.reproducer.assertion import Assertion
from fuzzshard.reproducer.averages import Average, averages
from fuzzshard.reproducer.forward_lines import ForwardLines
from fuzzshard.reproducer.optimizer import optimizer_lines
from fuzzshard.reproducer.values import Inputs, model_lines
from fuzzshard.reproducer.watch import Watch

UNWRAPPED = 'inner = getattr(model, "module", model)'
"""What a function that trains does first, if attributes of the model are below a wrapper."""

_WITH, _END_WITH = "with no_sync", "end of no_sync"
"""Where the context manager begins and ends, until :func:`_with_blocks` writes it."""


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
        last = (
            ops_that_run(case, assertion.engine).stop - 1 if assertion.op is None else assertion.op
        )
        self.ops = case.schedule[: last + 1]
        self.losses = losses(case, last)
        self.averages = averages(case, assertion, last) if shared else dict[int, Average]()
        self.inputs = Inputs(case, self.ops, assertion.seed)
        self.watch = Watch(self)
        self.forwards = ForwardLines(self)
        self._flags = SyncFlags(case)

    def lines(self) -> list[str]:
        """Write the whole schedule."""
        lines = self.freeze_lines()
        if any(op.grad_enabled is not None for op in self.ops):
            lines.append("torch.set_grad_enabled(True)")
        lines += self.renewed
        lines += ["averaged = None"] if any(op.averages for op in self.ops) else []
        if self._keeps_hooks:
            lines.append("hooks = []  # of the reference, for when its gradients are averaged")
        if self.shared and self.assertion.op is None:
            lines.append("seen = {}")
        return lines + _with_blocks(_merged([line for op in self.ops for line in self._op(op)]))

    def _op(self, op: Op) -> list[str]:
        index = self.now.index
        lines = _on_ranks(op.ranks, op.statements(self))
        if op.casts_to:
            self.inputs.dtype = op.casts_to
        if not (self.assertion.stops_at_op and self.assertion.op == index):
            lines += _on_ranks(op.ranks, self.watch.lines(op))
        self.now.advance(skipped=index in self.losses.skipped)
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
        return any(op.rebuilds for op in self.ops)

    @property
    def moves(self) -> bool:
        """Whether that happens on another mesh, which the engine gets."""
        takes_mesh = self.script.takes_mesh(self.case) or not self.names.flat
        return takes_mesh and any(op.mesh for op in self.ops)

    @override
    def rebuilt(self, op: Op) -> list[str]:
        seed = self.assertion.seed + 1
        given, variables = [f"seed={seed}"], ", ".join(self.made)
        if self.moves:
            names = MeshNames(self.now.case.on(op.mesh))
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
        self._flags = SyncFlags(self.case)
        self.forwards.stages.has_schedule = False
        earlier = self.ops[: self.now.index]
        lines += [line for each in earlier for line in _on_ranks(each.ranks, each.settings(self))]
        lines += ["averaged = None"] if any(each.averages for each in self.ops) else []
        return [*lines, *self.renewed]

    @property
    @override
    def renewed(self) -> list[str]:
        lines = []
        if parameter := self.watch.parameter:
            lines.append(f"{parameter} = {self.at(self.assertion.name)}")
        if self.assertion.rule.takes_parameters or self.watch.uses_parameters:
            lines.append(f"params = {self.parameters(self.model)}")
        if self.shared and (unmanaged := self._unmanaged):
            lines += [
                "by_hand = list(model.parameters())",
                "if model is not reference:  # the others the engine averages by itself",
                *indented(call_lines("by_hand = ", [*map(self.at, unmanaged)], "[]")),
            ]
        scales = bool(self.case.optimizer.scaler)
        needs = (
            op.of_optimizer or op.via or op.loads or op.corrupts or (op.takes and scales)
            for op in self.ops
        )
        return [*lines, *(optimizer_lines(self) if any(needs) else [])]

    @property
    def renamed(self) -> bool:
        """Whether the names that a wrapped model gives its parameters differ from the plain
        model's.
        """
        return bool(self.engine.wrapper) or self.has_wrapper_modules

    @property
    def has_flat_parameters(self) -> bool:
        """Whether the parameters of the engine's model are those of its units."""
        return self.engine.has_flat_parameters(self.case)

    def parameters(self, model: str) -> str:
        """Write a dict of the parameters of a model, by the names that the plain model gives
        them.
        """
        if self.has_flat_parameters or not self.renamed:
            return f"dict({model}.named_parameters())"
        return f"dict(zip(names, {model}.parameters()))"

    @override
    def either(self, plain: list[str], wrapped: list[str]) -> list[str]:
        if not self.shared:
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
    def forward(self, call: Call) -> list[str]:
        return self.forwards.lines(call)

    @override
    def aborted(self, call: Call, target: str, *, in_backward: bool) -> list[str]:
        return self.forwards.aborted(call, target, in_backward=in_backward)

    @override
    def backward(self, takes: Taking) -> list[str]:
        index, forwards = self.now.index, self.now.taken
        if index in self.losses.skipped:
            return []
        made: list[str] = []
        taken = [self.forwards.loss(place) for place in self.losses.taken[index]]
        if takes.outputs is not None:
            taken = [f"part{index}"]
            made = self.forwards.of_outputs(taken[0], forwards[0].call)
        loss = self.scaled(taken[0] if len(taken) == 1 else f"({' + '.join(taken)})")
        plain = [*made, f"{loss}.backward({'retain_graph=True' if takes.retains else ''})"]
        plain += self._finalize()
        if not (self.assertion.stops_at_op and self.assertion.op == index):
            plain += self._average(index)
        switches = (each.switch for each in self.ops if each.switch)
        leaves_waiting = any(switch.flag == "is_last_backward" for switch in switches)
        if leaves_waiting and self.assertion.has("reduced", index):  # only the last backward waits
            plain += ['if device == "cuda":', "    torch.cuda.synchronize()"]
        if not self.engine.in_stages:
            return plain
        calls = [forward.call for forward in forwards]
        return self.either(plain, self.forwards.stages.iteration(calls))

    def _finalize(self) -> list[str]:
        """Write what the user has to call after a backward that synchronises something."""
        if not (self.engine.applies_groups or self.synced):
            return []
        return self.unless_reference(self.script.finalize_lines(self.case, self.called))

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
            lines = [*named, *averaging_lines(self.case, average.divisor, parameters)]
        if self._keeps_hooks:
            lines += ["for p, hook in hooks:", "    if p.grad is not None:", "        hook(p)"]
        if self._unmanaged or self.engine.in_stages:
            return lines
        return ["if model is reference:  # the engine does this by itself", *indented(lines)]

    @property
    def _unmanaged(self) -> list[str]:
        """The parameters whose gradients the engine's model averages by hand."""
        if not (self.engine.applies_groups and any(a.names != () for a in self.averages.values())):
            return []
        return [fqn for fqn, owner in inferred(self.case).owners.items() if owner is UNMANAGED]

    # What is set:

    @property
    def synced(self) -> bool:
        """Whether the engines that have one switch for everything synchronise now."""
        return self._flags.synced(UNMANAGED)

    @override
    def flag_lines(self, op: Op, switch: Switch) -> list[str]:
        before = self.synced
        self._flags.set(switch)
        if self.engine.applies_groups:
            return super().flag_lines(op, switch)
        if self.synced == before:
            return []
        if not self.engine.wrapper:
            return self.unless_reference([self.script.sync_line(self.called, self.synced)])
        if not before:
            return [_END_WITH]
        both = f" if {self.called} is not reference else contextlib.nullcontext()"
        return [f"{_WITH} {self.called}.no_sync(){both if self.shared else ''}"]

    @override
    def hook_lines(self, hooked: Hooked, call: str, function: str) -> list[str]:
        """The reference runs hooks on what has accumulated when its gradients are averaged."""
        registered = super().hook_lines(hooked, call, function)
        if not (hooked.accumulated and self._keeps_hooks):
            return registered
        return self.either(
            [f"hooks.append(({self.at(hooked.parameter)}, {function}))"], registered
        )

    @property
    def _keeps_hooks(self) -> bool:
        hooked = any(op.hooked and op.hooked.accumulated for op in self.ops)
        return hooked and any(average.names != () for average in self.averages.values())


def averaging_lines(case: Case, divisor: float | None, parameters: str) -> list[str]:
    """Average the gradients of ``parameters``, or divide their sums by ``divisor``."""
    names = MeshNames(case)
    alone = case.mesh.data_size == 1 and divisor is not None
    local = ["    grad = grad.to_local() if isinstance(grad, DTensor) else grad"]
    return [
        f"for grad in [p.grad for p in {parameters} if p.grad is not None]:",
        *(local if case.tensor_parallel and parameters != "model.parameters()" else []),
        *([] if alone else [f"    dist.all_reduce(grad{names.group_argument})"]),
        f"    grad /= {names.data_size if divisor is None else divisor}",
    ]


def _on_ranks(ranks: Ranks, lines: list[str]) -> list[str]:
    """Restrict ``lines`` to some ranks."""
    return lines if ranks == "all" or not lines else ["if dist.get_rank() > 0:", *indented(lines)]


def _merged(lines: list[str]) -> list[str]:
    """Let an ``if`` that follows another one of the same condition go on with its body."""
    result: list[str] = []
    condition = ""
    for line in lines:
        if line.startswith("if ") and line == condition:
            continue
        if not line.startswith(" "):
            condition = line if line.startswith("if ") else ""
        result.append(line)
    return result


def _with_blocks(lines: list[str]) -> list[str]:
    """Write a ``with`` statement from every :data:`_WITH` to its end."""
    result, inside = [], False
    for line in lines:
        if line.startswith(_WITH):
            result.append(f"with {line.removeprefix(_WITH).strip()}:")
            inside = True
        elif line == _END_WITH:
            inside = False
            result += ["    pass"] if result[-1].startswith("with ") else []
        else:
            result.append(f"    {line}" if inside else line)
    return [*result, "    pass"] if result and result[-1].startswith("with ") else result
