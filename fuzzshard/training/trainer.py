"""Interprets the schedule of a case under one engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch
from torch.optim.lr_scheduler import LRScheduler

from fuzzshard.case.case import Case
from fuzzshard.case.groups import moves_inputs
from fuzzshard.case.losses import losses
from fuzzshard.case.schedule_state import ScheduleState
from fuzzshard.case.stages import evaluations
from fuzzshard.engines.base import Engine
from fuzzshard.model.names import seed_of
from fuzzshard.parts.op import TAKEN, Call, Op
from fuzzshard.program.forward import (
    backward_line,
    call_text,
    loss_lines,
    output_texts,
    sum_text,
    term_text,
    whole_text,
)
from fuzzshard.training.collectives import Recorder
from fuzzshard.training.delays import Delays
from fuzzshard.training.feed import Feed
from fuzzshard.training.interrupt import interrupted
from fuzzshard.training.observer import Observer
from fuzzshard.training.optimizers import make_optimizer
from fuzzshard.training.states import States, original_errors
from fuzzshard.training.trace import Trace

OnOp = Callable[[int], None]


class Trainer:
    """One training run. With a trace it observes after every op; without, it only trains.

    Inputs and targets are functions of (case seed, name, batch, rank). The dropout seed is set
    before every forward from (case seed, op, rank).
    """

    def __init__(
        self, case: Case, engine: Engine, trace: Trace | None, recorder: Recorder | None = None
    ) -> None:
        self.case = case
        self.engine = engine
        self.trace = trace
        self.recorder = recorder or Recorder()
        self.delays = self.recorder.delays or Delays(
            _undelayed(case), engine.mesh.device, engine.mesh.rank
        )
        self.rank = engine.mesh.global_rank
        self.in_stages = engine.scope.engine.in_stages
        self.at = ScheduleState(case, self.rank)
        self.losses = losses(case, len(case.schedule) - 1, rank=self.rank)
        self.first_dtype = engine.dtype
        self.states = States(engine)
        self.make_optimizer()
        self.pending: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        """Those of the last forward, while a loss of some outputs is still to come."""
        parted = (i for i, op in enumerate(case.schedule) if op.loss_of is not None)
        self._last_parted = max(parted, default=-1)
        self.feed = Feed(self)
        self.observer = None if trace is None else Observer(self, trace)

    def make_optimizer(self) -> None:
        """Makes the optimizer and what goes with it, also when parameters were replaced."""
        self.made = make_optimizer(self.case, self.engine)
        self.optimizers = [each for each in self.made[:2] if each is not None]

    def run(self, on_op: OnOp | None = None) -> None:
        """Runs the whole schedule; ``on_op`` is called with the index of each op before it
        runs.
        """
        if self.observer is not None:
            self.observer.begin()
        try:
            for index, op in enumerate(self.case.schedule):
                if on_op is not None:
                    on_op(index)
                self.recorder.op = index
                self.engine.before_op(index, self.optimizers)
                skipped = op.runs_on(self.rank) and op.run(self, index) is False
                self.at.advance(skipped=skipped)
                if self.observer is not None and not (self.in_stages and op.begins):
                    self.observer.observe(index, op)
            self.engine.finish()
            self.states.finish()
            if self.observer is not None:
                self.observer.observe_remains()
        finally:
            torch.set_grad_enabled(True)
            self.states.remove()

    def rebuild(self, index: int) -> None:
        """Build model and optimizer anew, with other initial values, on the mesh that the op at
        ``index`` names; what those before it have set applies to the new ones too.
        """
        seed = seed_of(self.case.seed, "rebuilt")
        other = msgspec.structs.replace(self.at.case.on(self.at.op.mesh), seed=seed)
        self.engine = self.engine.rebuilt(other, self.first_dtype)
        for op in self.case.schedule[:index]:
            if op.runs_on(self.rank):
                op.run_again(self.engine)
        self.make_optimizer()
        self.states.saved["averaged"] = None
        self.forget_tensors()

    def forget_tensors(self) -> None:
        """The model's tensors are others now: what was kept of the old ones says nothing about
        them.
        """
        self.states.taken = {}
        if self.observer is not None:
            self.observer.forget()

    def execute(self, lines: Sequence[str]) -> None:
        """Run statements as a script has them, and keep what they save."""
        states = self.states
        variables = {**self.made._asdict(), **states.saved}
        variables |= {"renewed": self._renewed, "new_folder": states.new_folder}
        variables["saving_group"] = states.saving_group
        with original_errors():
            states.keep(self.engine.execute(lines, **variables))

    def _renewed(self) -> tuple[torch.optim.Optimizer | LRScheduler | None, ...]:
        """Make the optimizers of parameters that were replaced, and the scheduler."""
        self.engine.take_parameters()
        self.make_optimizer()
        return *self.optimizers, self.made.scheduler

    def forward(self, index: int, op: Call) -> None:
        """Runs a forward, and keeps its loss; or leaves it to its backward, or to the last one of
        those that run at once.
        """
        if self.in_stages:
            if index in evaluations(self.case):
                self._evaluate(evaluations(self.case)[index])
            return
        outputs, loss = self._called(index, op, delayed=True)
        if self.observer is not None:
            self.observer.computed(index, op.target, outputs, loss)
        if op.grad:
            self.pending.append(loss)
        self.outputs = outputs if index < self._last_parted else []

    def _called(
        self, index: int, op: Call, *, delayed: bool = False
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The outputs of a forward, and its loss."""
        _seed_generators(
            seed_of(self.case.seed, "dropout", index, self.engine.mesh.rank),
            self.engine.mesh.device,
        )
        inputs = {f"x{i}": tensor for i, tensor in enumerate(self.feed.inputs(op))}
        known = {"target": self.engine.call_target(op.target), **inputs}
        with torch.inference_mode() if op.inference else torch.set_grad_enabled(op.grad):
            outputs = self.engine.execute(self._call_lines(op.target, list(inputs)), **known)
            if delayed:
                self.delays.at("after_forward")
            return outputs["outputs"], self._loss(op, outputs["outputs"])

    def _call_lines(self, target: str, names: list[str]) -> list[str]:
        case, scope = self.case, self.engine.scope
        if case.inputs.on_host and not moves_inputs(case, self.engine.name, target):
            names = [f"{name}.to(device)" for name in names]
        texts = [whole_text(case, text) for text in output_texts(case, target)]
        return [
            f"out = {call_text(scope, target, 'target', names, by_forward=True)}",
            f"outputs = [{', '.join(texts)}]",
        ]

    def abort(self, index: int, forward: Call, target: str, *, in_backward: bool) -> None:
        """Loses an iteration, and goes on as the docstring of ``FSDPModule.reset_iter_state``
        says.
        """
        with interrupted(self.engine.submodule(target), in_backward=in_backward):
            _, loss = self._called(index, forward)
            if in_backward and loss.requires_grad:
                self.engine.before_backward()
                torch.autograd.backward(loss)
        self.engine.recover()
        self.feed.forget(forward)
        for parameter in self.engine.trained.values():
            parameter.grad = None

    def _loss(self, op: Call, outputs: list[torch.Tensor]) -> torch.Tensor:
        inputs = {f"x{i}": tensor for i, tensor in enumerate(self.feed.inputs(op))}
        terms = [
            term_text(self.case, op, i, f"outputs[{i}]", f"target({i})", [*inputs])
            for i in op.used(len(outputs))
        ]

        def target(index: int) -> torch.Tensor:
            return self.feed.target(op, index, outputs[index])

        known = {"outputs": outputs, "target": target, **inputs}
        total: torch.Tensor = self.engine.execute(loss_lines("total", terms), **known)["total"]
        return total

    def _iterate(self) -> None:
        """Runs all pending forwards and their backward at once."""
        forwards = {each.place: each.call for each in self.at.taken}
        seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def term(place: int, output: torch.Tensor) -> torch.Tensor:
            loss = self._loss(forwards[place], [output])
            seen[place] = output, loss
            return loss

        terms = [functools.partial(term, place) for place in forwards]
        self.engine.iterate(self._batches(forwards), terms)
        # recomputation has changed buffers again by now
        self._observe_all(forwards, seen, buffers=not self.case.checkpoints)

    def _evaluate(self, places: Sequence[int]) -> None:
        """Runs these forwards at once, without gradients."""
        forwards = {place: op.call for place in places if (op := self.case.schedule[place]).call}

        def term(call: Call, output: torch.Tensor) -> torch.Tensor:
            return self._loss(call, [output])

        terms = [functools.partial(term, call) for call in forwards.values()]
        mode = forwards[places[-1]].mode
        outputs, losses = self.engine.evaluate(self._batches(forwards), terms, mode)
        seen = zip(outputs, losses, strict=True)
        self._observe_all(forwards, dict(zip(forwards, seen, strict=False)), buffers=True)

    def _batches(self, forwards: Mapping[int, Call]) -> list[torch.Tensor]:
        device = self.engine.mesh.device
        return [self.feed.inputs(call)[0].to(device) for call in forwards.values()]

    def _observe_all(
        self,
        forwards: Mapping[int, Call],
        seen: Mapping[int, tuple[torch.Tensor, torch.Tensor]],
        *,
        buffers: bool,
    ) -> None:
        """Records what forwards that ran at once have computed, which is ``seen`` by the rank that
        computes losses.
        """
        if self.observer is None:
            return
        for place, (output, loss) in seen.items():
            self.observer.computed(place, "", [output], loss)
        if buffers:
            *_, last = forwards
            self.observer.observe(last, self.case.schedule[last])

    def backward(self, index: int, op: Op) -> bool:
        """Runs the backward of pending losses; False where none of them depends on anything
        trainable, as the case says.
        """
        if self.in_stages:
            self._iterate()
            return True
        places = TAKEN[op.takes]
        taken = self.pending[places]
        if op.loss_of is not None:
            taken = [self._loss(each.call, self.outputs) for each in self.at.taken]
        if not op.retains:
            del self.pending[places]
        differentiated = self.losses.taken.get(index, ())
        named = {
            f"loss{i}": loss
            for i, (loss, forward) in enumerate(zip(taken, self.at.taken, strict=True))
            if forward.place in differentiated
        }
        if not named:
            if self.trace is not None:
                self.trace.skipped.append(index)
            return False
        self.engine.before_backward()
        scaled = self.engine.scope.scaled(sum_text([*named]))
        lines = [backward_line(scaled, retains=op.retains), *self.engine.finalize_lines()]
        self.engine.execute(lines, **named, scaler=self.made.scaler)
        self.recorder.explicit = True
        self.engine.after_backward(index)
        self.recorder.explicit = False
        self.delays.at("after_backward")
        return True


def _undelayed(case: Case) -> Case:
    return msgspec.structs.replace(case, delays=())


def _seed_generators(seed: int, device: torch.device) -> None:
    """What ``torch.manual_seed`` does to the generators that a case can use, and no more.

    It formats a stack for every kind of accelerator that this process has not initialised: 8 % of
    a case.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
