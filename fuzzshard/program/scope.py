"""What statements are written for: the case, the engine, and the variables there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fuzzshard.analysis.batches import input_specs, rows_of_batch
from fuzzshard.analysis.conditions import lacks_optimizer
from fuzzshard.analysis.inferred import inferred, updates_buffers
from fuzzshard.analysis.losses import Losses
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.analysis.stages import evaluations
from fuzzshard.analysis.tensor_parallel import passes_dtensors
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.case.paths import is_within_any
from fuzzshard.model.expressions import (
    call_expression,
    class_name,
    is_checkpointed_at_call,
    result_expression,
)
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.engines import REFERENCE
from fuzzshard.parts.loss import Term
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Below, Call, Taking
from fuzzshard.parts.statements import LONG, at, indented
from fuzzshard.program.engine_script import EngineScript, engine_script
from fuzzshard.program.mesh import MeshNames
from fuzzshard.program.setup import (
    each_parameter_lines,
    flat_requires_grad_lines,
    requires_grad_lines,
)
from fuzzshard.program.states import States
from fuzzshard.program.wrapping import each_wrapped, event_lines, if_wrapped


@dataclasses.dataclass
class Scope:
    """``called`` is the variable that a forward of the root calls; attributes of ``model`` are
    modules.

    They differ for engines that put a module around the model. ``trained`` is the expression for
    what is trained. Statements may be ``shared`` with the plain model, which runs them too.
    """

    case: Case
    engine: EngineSpec
    called: str
    model: str
    names: MeshNames
    trained: str = "parameters"
    shared: bool = False
    now: ScheduleState = dataclasses.field(init=False)
    """Where the schedule is; whoever follows it says so, and its ``losses``."""
    losses: Losses = dataclasses.field(init=False)
    puts_off: bool = False
    """Whether DDP leaves the broadcast of buffers to the forward after the next one."""
    joined: bool = False
    """Whether the model was within ``join()``: DDP takes buffers of another rank since then."""
    has_schedule: bool = False
    """Whether stages have one, since the model was built."""

    @property
    def script(self) -> EngineScript:
        """Return what the engine says in its own words."""
        return engine_script(self.engine.name)

    @property
    def shards(self) -> bool:
        """Whether the engine applies wrap groups, and the case has some."""
        return self.engine.applies_groups and bool(self.case.wrap)

    @property
    def states(self) -> States:
        """Return the statements that save, lose and load states."""
        return States(self)

    def either(self, plain: list[str], wrapped: list[str]) -> list[str]:
        """Choose ``plain`` lines for the plain model, ``wrapped`` ones for that of an engine."""
        return plain if self.engine is REFERENCE else wrapped

    def at(self, path: str) -> str:
        """Write the expression for the module or parameter at ``path``."""
        if path in inferred(self.case).parameters:
            return self.script.parameter(self.model, path)
        return at(self.model, path)

    def within(self, paths: Sequence[str]) -> list[str]:
        """Write the expressions for the parameters, maybe flat ones, at these modules or names."""
        if flat := self.script.flat_units(self.case):
            held = [unit for unit, fqns in flat.items() if is_within_any(fqns[0], paths)]
            return [f"{self.at(unit)}._flat_param" for unit in held]
        every = inferred(self.case).parameters
        return [self.at(fqn) for fqn in every if is_within_any(fqn, paths)]

    @property
    def is_reference(self) -> bool:
        """Whether statements are for the plain model alone."""
        return self.engine is REFERENCE

    def unless_reference(self, lines: list[str]) -> list[str]:
        """Restrict ``lines`` to the engine's model."""
        if self.shared and lines:
            return [f"if {self.called} is not reference:", *indented(lines)]
        return [] if self.engine is REFERENCE else lines

    def for_wrapper(self, lines: list[str], others: list[str]) -> list[str]:
        """Choose ``lines`` for a model with a module of the engine around it, else ``others``."""
        if not self.shared or lines == others:
            return lines
        wrapped = [f"if isinstance({self.called}, {self.engine.wrapper}):", *indented(lines)]
        return [*(wrapped if lines else []), *(["else:", *indented(others)] if others else [])]

    # What the ops of a schedule say; scripts say some of it otherwise:

    def forward(self, call: Call) -> list[str]:
        """Run a forward, and compute its loss; stages run several at once."""
        lines = self.computed(call)
        if call.contexts:
            lines = [f"with {', '.join(call.contexts)}:", *indented(lines)]
        if self.engine.in_stages:
            places = evaluations(self.case).get(self.now.index, ())
            calls = [each for place in places if (each := self.case.schedule[place].call)]
            lines = self.either(lines, self._at_once(calls) if calls else [])
        return [*self.inputs_of(call), *self.broadcast_lines(call), *lines]

    def inputs_of(self, call: Call) -> list[str]:
        """Make the inputs of a forward, where they are not there."""
        return []

    def computed(self, call: Call) -> list[str]:
        """Call ``target`` on inputs that have numbers, and compute the loss."""
        outputs, *loss = self.judged(call)
        called = f"out = {self.call_text(call, 'target', by_forward=True)}"
        return [called, outputs, 'wait("after_forward")', *loss]

    def judged(self, call: Call) -> list[str]:
        """Write the outputs of ``out`` as whole tensors, and compute the loss of the call."""
        whole = self.whole_outputs(call.target)
        loss = self.loss(call, len(whole))
        if LOSSES[self.case.loss].context:  # of DTensors as they are
            loss = self._loss_of(call, self.shared_outputs(call.target))
        return [f"outputs = [{', '.join(whole)}]", *loss]

    def call_text(self, call: Call, callee: str, *, by_forward: bool) -> str:
        """Call a module, ``by_forward`` where what the engine made of it has no other method.

        The reference computes again what changes buffers, and nothing else: a batch norm counts
        twice, with any engine.
        """
        case, path = self.case, call.target
        module = inferred(case).modules[path]
        if isinstance(module, Block) and by_forward:
            module = replace(module, method="forward")
        again = self.engine is not REFERENCE or updates_buffers(case, path)
        checkpointed = is_checkpointed_at_call(case, path) and again
        arguments, seq = self.arguments(call), case.inputs.seq
        return call_expression(
            module, callee, arguments, seq, path=path, checkpointed=checkpointed
        )

    def arguments(self, call: Call) -> list[str]:
        """Write what a forward passes; inputs on the host are moved by hand unless the engine
        moves them, which the plain model does not.
        """
        variables, on_host = self.variables(call), self.case.inputs.on_host
        moved = [f"{variable}.to(device)" for variable in variables] if on_host else variables
        moves = on_host and self.script.moves_inputs(self.case, call.target)
        now = self.now.case
        own = [self.script.argument(now, each) for each in (variables if moves else moved)]
        if not self.shared or own == moved:
            return own
        both = zip(moved, own, strict=True)
        return [f"{m} if model is reference else {v}" for m, v in both]

    def variables(self, call: Call) -> list[str]:
        """List the input tensors of a forward."""
        return [f"x{i}" for i, _ in enumerate(input_specs(self.case, call.target))]

    def outputs(self, target: str) -> list[str]:
        """List the tensors of ``out``, the result of a forward."""
        module, values = inferred(self.case).modules[target], inferred(self.case).output_values
        if not isinstance(module, Block):
            return ["out"]
        return [result_expression(module, "out", i) for i in range(len(values[target]))]

    def whole_outputs(self, target: str) -> list[str]:
        """Return the same as whole tensors: they may be DTensors."""
        outputs = self.outputs(target)
        local = not (passes_dtensors(self.case) or self.engine.names_dims)
        return outputs if local else [self.script.whole(self.now.case, text) for text in outputs]

    def shared_outputs(self, target: str) -> list[str]:
        """Return what a loss gets whose classes tensor-parallel ranks share: DTensors on their
        axis alone, or tensors of which it makes such.
        """
        on_all_axes = self.engine.names_dims
        return self.whole_outputs(target) if on_all_axes else self.outputs(target)

    def terms(self, call: Call, outputs: Sequence[str], target: str = "") -> list[str]:
        """Write what each of ``outputs`` adds to the loss of a call, if it is of that; it is
        compared with a ``target`` perhaps, made of its number and its expression.
        """
        case, values = self.case, inferred(self.case).output_values[call.target]
        rank = "0" if case.inputs.same_on_ranks else "rank"
        loss = LOSSES[case.loss]
        specs = zip(self.variables(call), () if call.target else case.inputs.tensors, strict=False)
        inputs = tuple(variable for variable, spec in specs if spec.requires_grad)
        terms = []
        for i in call.used(len(outputs)):
            of_row = (case.inputs.seq or 1) * (values[i].patches or 1)
            tokens = tuple(rows * of_row for rows in rows_of_batch(case, call.batch))
            due = target.format(i, outputs[i])
            term = Term(outputs[i], due, tokens, rank, inputs)
            terms.append(self._term(term) if loss.context else loss.text(term))
        return terms

    def _term(self, term: Term) -> str:
        """Write what it adds to a loss that tensor-parallel ranks share, but for the plain
        model.
        """
        mesh = "" if self.engine is REFERENCE else 'world_mesh["tp"]'
        if self.shared:
            mesh = f"None if {self.called} is reference else {mesh}"
        return LOSSES[self.case.loss].text(term._replace(mesh=mesh))

    def in_context(self, lines: list[str]) -> list[str]:
        """Run a loss or its backward in what it wants to be in."""
        context = LOSSES[self.case.loss].context
        return [f"with {context}:", *indented(lines)] if context and lines else lines

    def _at_once(self, calls: Sequence[Call]) -> list[str]:
        """Run these forwards by all stages, with their backward if they are to have one."""
        batches, mode = self.batches(calls), calls[0].mode
        finalizes = self.now.synced
        lines = self.script.run_lines(self.case, batches, mode=mode, finalizes=finalizes)
        return [*self.schedule_lines(calls), *self.in_context(lines)]

    def batches(self, calls: Sequence[Call]) -> list[str]:
        """Write the expressions for their inputs."""
        return [f"x{number}" for number, _ in enumerate(calls)]

    def schedule_lines(self, calls: Sequence[Call]) -> list[str]:
        """Make the schedule that runs so many forwards, where there is none yet."""
        has_schedule, self.has_schedule = self.has_schedule, True
        return [] if has_schedule else self.script.schedule_lines(self.case, len(calls))

    def broadcast_lines(self, call: Call) -> list[str]:
        """Do what DDP does by itself "at beginning of the forward function", where the case says
        so: a forward without gradients, or without their synchronisation, puts it off for the next
        one (``_post_forward`` in torch/nn/parallel/distributed.py).
        """
        if call.target:  # past DDP
            return []
        puts_off, self.puts_off = self.puts_off, not (call.grad and self.now.synced)
        source = self.case.ddp.buffers_from(self.case.mesh.data_size, joined=self.joined)
        return [] if puts_off else self.either(self.broadcast(str(source)), [])

    def broadcast(self, source: str) -> list[str]:
        """Give all ranks the buffers of one, if DDP does so and forwards change them."""
        if not (self.case.ddp.broadcasts_buffers and updates_buffers(self.case, "")):
            return []
        return [
            "for buffer in model.buffers():  # DDP does this by itself",
            f"    dist.broadcast(buffer{self.names.group_argument}, group_src={source})",
        ]

    def iteration(self, call: Call) -> list[str]:
        """Run a forward and its backward, which synchronises nothing of a plain model."""
        return [*self.computed(call), *self.in_context(["loss.backward()"])]

    def average_lines(self, ranks: str) -> list[str]:
        """Average gradients of a plain model over so many ranks; all others have zeros."""
        return [f"average({ranks})"]

    def loss(self, call: Call, count: int) -> list[str]:
        """Add up the terms of those of ``count`` outputs that the loss of a call is of."""
        return self._loss_of(call, [f"outputs[{i}]" for i in range(count)])

    def _loss_of(self, call: Call, outputs: Sequence[str]) -> list[str]:
        line = f"loss = {' + '.join(self.terms(call, outputs, 'target_of({}, {})'))}"
        return [line] if self.engine.in_stages else self.in_context([line])

    def backward(self, takes: Taking) -> list[str]:
        """Run the backward of forwards; stages run these, too."""
        lines = self.differentiated(takes)
        if self.engine.in_stages:
            lines = self.either(lines, self._at_once([each.call for each in self.now.taken]))
        return lines

    def differentiated(self, takes: Taking) -> list[str]:
        """Differentiate the losses of forwards, each of which has the number of its op."""
        named = [f"loss{place}" for place in self.losses.taken.get(self.now.index, ())]
        return self.backward_lines(named, retains=takes.retains) if named else []

    def backward_lines(self, losses: list[str], *, retains: bool) -> list[str]:
        """Differentiate their sum, whose graph perhaps stays for another backward; then do what
        the user has to after a backward that synchronises something.
        """
        loss = losses[0] if len(losses) == 1 else f"({' + '.join(losses)})"
        loss = f"scaler.scale({loss})" if self.case.optimizer.scaler else loss
        syncs = self.engine.applies_groups or self.now.synced
        own = self.script.finalize_lines(self.case, self.called) if syncs else []
        line = f"{loss}.backward({'retain_graph=True' if retains else ''})"
        return [*self.in_context([line]), *self.unless_reference(own)]

    def aborted(self, call: Call, *, in_backward: bool) -> list[str]:
        """Run a forward that an exception ends, or its backward."""
        body = self.forward(call)
        if in_backward:
            backward = ["before_backward()", *self.in_context(["loss.backward()"])]
            body += ["if loss.requires_grad:", *indented(backward)]
        return body

    @property
    def keeps_hooks(self) -> bool:
        """Whether hooks on what has accumulated wait until the gradients of the plain model are
        averaged; ranks see to that themselves.
        """
        return False

    def rebuilt(self, mesh: tuple[int, ...]) -> list[str]:
        """Build model and optimizer anew."""
        return ["rebuild()"]

    @property
    def renewed(self) -> list[str]:
        """Make again what was made of parameters that are others now."""
        return [f"{', '.join([*self.case.optimizer.each, 'scheduler', 'scaler'])} = renewed()"]

    def on_groups(self, below: Below, calls: Callable[[str], list[str]]) -> list[str]:
        """Write what is called on wrapped modules; those of stages are all that there are."""
        if self.engine.shards_stages(self.case):
            lines = if_wrapped("module", calls("module"), guarded=True)
            return [f"for module in {self.called}.modules():", *indented(lines)]
        if not self.shards:
            return []
        return each_wrapped(self.case, self.model, below, calls, guarded=self.shared)

    def requires_grad_lines(self, target: str, value: bool) -> list[str]:
        """Set ``requires_grad``."""
        if flat := self.script.flat_units(self.case):
            return flat_requires_grad_lines(flat, self.model, target, value)
        return requires_grad_lines(self.case, self.model, target, value, self.script)

    def attribute_lines(self, target: str, said: str) -> list[str]:
        """Set an attribute of every parameter at ``target``."""
        return each_parameter_lines(self.case, self.model, target, said, self.script)

    def freeze_lines(self) -> list[str]:
        """Freeze what is frozen after wrapping."""
        frozen = [f.target for f in self.case.freezes if f.after_wrap]
        return [line for target in frozen for line in self.requires_grad_lines(target, False)]

    @property
    def has_wrapper_modules(self) -> bool:
        """Whether attributes of ``model`` may be set on a wrapper in place of the module that is
        meant.
        """
        wrapped = any(c.implementation == "wrapper" for c in self.case.checkpoints)
        return wrapped or self.engine.has_units

    def path_lines(self, block: str, path: int) -> list[str]:
        """Choose among alternatives; the block is found by its class where a wrapper would get the
        attribute.
        """
        if not block or not self.has_wrapper_modules:
            return [f"{at(self.model, block)}.path = {path}"]
        return [
            f"for module in {self.model}.modules():",
            f"    if isinstance(module, {class_name(block)}):",
            f"        module.path = {path}",
        ]

    def optimizer_lines(self, parameters: Sequence[str]) -> list[str]:
        """Make every optimizer, also of no ``parameters``, and what changes the learning rate and
        scales losses; what the case leaves at torch's default is not said.
        """
        own, plain = (self._optimizers(parameters, s) for s in (self.script, EngineScript()))
        scheduler = self.case.optimizer.scheduler
        made = [f"scheduler = {scheduler}"] if scheduler else []
        return [*self.for_wrapper(own, plain), *made]

    def _optimizers(self, parameters: Sequence[str], script: EngineScript) -> list[str]:
        lines, nothing = [], "[{'params': []}]"
        lacks = self.engine.in_stages and lacks_optimizer(self.case)
        for (name, spec), given in zip(self.case.optimizer.each.items(), parameters, strict=True):
            if "vectors_apart" in spec.flags:
                given = f"vectors_apart([*{given or []}], {spec.lr / 2})"
            else:
                given = f"[*{given}] or {nothing}" if lacks and given else given or nothing
            fused = spec.fused_flags
            if self.engine is REFERENCE:
                spec = spec.without_flags(*fused)
            kind, options = spec.call()
            if self.shared:
                own = {f"{flag}=True": f"{flag}={self.called} is not reference" for flag in fused}
                options = [own.get(option, option) for option in options]
            arguments = [given, *options]
            line = f"{name} = {script.optimizer_call(kind, arguments, self.names)}"
            if len(line) > LONG:
                lines.append(f"given = {arguments[0]}")
                line = f"{name} = {script.optimizer_call(kind, ['given', *options], self.names)}"
            rate = f"torch.tensor({spec.lr}, dtype=torch.float64)"
            if len(line) > LONG and rate in line:
                lines.append(f"rate = {rate}")
                line = line.replace(rate, "rate")
            lines.append(line)
        if scaler := self.case.optimizer.scaler:
            lines.append(f"scaler = {script.scaler_call(scaler, self.names)}")
        return lines

    @property
    def event_lines(self) -> list[str]:
        """Record an event after a step, if the case gives one to its FSDP roots to wait for."""
        return event_lines(self.case, self.model, guarded=self.shared) if self.shards else []
