"""Interprets the schedule of a case under one engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from fuzzshard.analysis.batches import input_specs, num_rows
from fuzzshard.analysis.losses import losses
from fuzzshard.analysis.optimized import shares
from fuzzshard.analysis.schedule_state import ScheduleState
from fuzzshard.analysis.stages import evaluations, loss_scale
from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.paths import is_within_any
from fuzzshard.engines.base import Engine
from fuzzshard.model.values import APART, named_ids, named_values
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Call, Op, Taking, names_rank
from fuzzshard.parts.statements import seed_of
from fuzzshard.training.collectives import Recorder
from fuzzshard.training.delays import Delays
from fuzzshard.training.observer import Observer
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
            msgspec.structs.replace(case, delays=()), engine.mesh.device, engine.mesh.rank
        )
        self.rank = engine.mesh.global_rank
        self.in_stages = engine.scope.engine.in_stages
        self.at = ScheduleState(case, self.rank)
        self.losses = losses(case, len(case.schedule) - 1, rank=self.rank)
        self._tell_scope()
        self.first_dtype = engine.dtype
        self.states = States(engine)
        self.make_optimizer()
        self.pending: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        """Those of the last forward, while a loss of some outputs is still to come."""
        parted = (i for i, op in enumerate(case.schedule) if op.takes and op.takes.outputs)
        self._last_parted = max(parted, default=-1)
        self._at_once: Mapping[int, Call] = {}
        """The forwards that stages run at once, and what these have computed."""
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.feed = Feed(self)
        self.observer = None if trace is None else Observer(self, trace)

    def make_optimizer(self) -> None:
        """Make the optimizer and what goes with it, over all parameters, frozen ones included;
        also when parameters were replaced. What is set apart goes to the second one, if there is
        one.
        """
        scope, every, spec = self.engine.scope, self.engine.trained, self.case.optimizer
        held = [fqn for fqn in every if not is_within_any(fqn, spec.left_out)]
        parts = enumerate(shares(spec, held))
        given = {f"parameters{i}": [every[fqn] for fqn in part] for i, part in parts}
        names = [name if parameters else "" for name, parameters in given.items()]
        made = self.engine.execute(scope.optimizer_lines(names), **given)
        self.optimizers: list[torch.optim.Optimizer] = [made[name] for name in spec.each]
        kept = (*spec.each, "scheduler", "scaler")
        self.made = {name: made.get(name) for name in kept}

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
                if self.recorder.streams is not None:
                    self.recorder.streams.op = index
                self.engine.before_op(index, self.optimizers)
                skipped = names_rank(op.ranks, self.rank) and op.run(self, index) is False
                self.at.advance(skipped=skipped)
                if self.observer is not None and not (self.in_stages and op.begins):
                    self.observer.observe(index, op)
            self.engine.finish()
            self.states.finish()
            if self.observer is not None:
                self.observer.observe_leftovers()
        finally:
            torch.set_grad_enabled(True)
            if context := LOSSES[self.case.loss].context:  # which an exception may have left open
                self.engine.execute([f"with {context}:", "    pass"])
            self.states.remove()

    def rebuild(self, index: int, mesh: tuple[int, ...]) -> None:
        """Build model and optimizer anew, with other initial values, on these axes of the mesh;
        what the ops before that at ``index`` have set applies to the new ones too.
        """
        seed = seed_of(self.case.seed, "rebuilt")
        other = msgspec.structs.replace(self.at.case.on(mesh), seed=seed)
        self.engine = self.engine.rebuilt(other, self.first_dtype)
        self._tell_scope()
        for op in self.case.schedule[:index]:
            if names_rank(op.ranks, self.rank):
                self.engine.execute(op.settings(self.engine.scope))
        if self.at.cast:
            self.engine.take_dtype(self.at.cast)
        self.make_optimizer()
        self.states.saved["averaged"] = None
        self.forget_tensors()

    def _tell_scope(self) -> None:
        """Statements of the engine are for where this run is."""
        self.engine.scope.now, self.engine.scope.losses = self.at, self.losses

    def forget_tensors(self) -> None:
        """Forget the model's tensors, which are others now: what was kept of the old ones says
        nothing about them.
        """
        self.states.taken = {}
        if self.observer is not None:
            self.observer.forget()

    def execute(self, lines: Sequence[str]) -> None:
        """Run statements as a script has them, and keep what they save."""
        states = self.states
        variables = self.made | states.saved
        variables |= {"renewed": self._renewed, "new_folder": states.new_folder}
        variables["saving_group"] = states.saving_group
        with original_errors(), self.engine.mesh.as_world():
            states.keep(self.engine.execute(lines, **variables))

    def _renewed(self) -> tuple[Any, ...]:
        """Make the optimizers of parameters that were replaced, and what goes with them."""
        self.engine.take_parameters()
        self.make_optimizer()
        return *self.optimizers, self.made["scheduler"], self.made["scaler"]

    def forward(self, index: int, op: Op, call: Call) -> None:
        """Run a forward and keep its loss. In a pipeline, a schedule runs it with its backward, or
        with the last one of consecutive evaluations.
        """
        if self.in_stages:
            places = evaluations(self.case).get(index, ())
            ops = ((place, self.case.schedule[place]) for place in places)
            if forwards := {place: each.call for place, each in ops if each.call}:
                self._run_at_once(op, forwards, buffers=True)
            return
        if self.observer is not None:
            self.observer.calls()
        made = self.iteration(index, op, call, wait=self.delays.at)
        outputs, loss = made["outputs"], made["loss"]
        if self.observer is not None:
            self.observer.computed(index, call.target, outputs, loss)
        if call.grad:
            self.pending.append(loss)
        self.outputs = outputs if index < self._last_parted else []

    def iteration(self, index: int, op: Op, call: Call, **known: Any) -> dict[str, Any]:
        """Run the statements of an op that begins a forward; they wait nowhere unless told."""
        mesh = self.engine.mesh
        _seed_generators(seed_of(self.case.seed, "dropout", index, mesh.rank), mesh.device)
        known = {"wait": lambda site: None, **known}
        known["target"] = self.engine.call_target(call.target)
        return self._compute(op.statements(self.engine.scope), call, **known)

    def _compute(self, lines: list[str], call: Call, **known: Any) -> dict[str, Any]:
        """Run statements that compute outputs or losses of ``call``."""
        inputs = {f"x{i}": tensor for i, tensor in enumerate(self.feed.inputs(call))}
        known["target_of"] = functools.partial(self.feed.target, call)
        return self.engine.execute(lines, **known, **inputs)

    def _loss(self, call: Call, outputs: list[torch.Tensor]) -> torch.Tensor:
        lines = self.engine.scope.loss(call, len(outputs))
        loss: torch.Tensor = self._compute(lines, call, outputs=outputs)["loss"]
        return loss

    def _run_at_once(self, op: Op, forwards: Mapping[int, Call], *, buffers: bool) -> None:
        """Runs forwards by all stages at once, with their backward if they have gradients; records
        what they computed.
        """
        self._at_once, self._seen = forwards, {}
        device = self.engine.mesh.device
        batches = (self.feed.inputs(call)[0].to(device) for call in forwards.values())
        known = {f"x{number}": batch for number, batch in enumerate(batches)}
        lines = op.statements(self.engine.scope)
        made = self.engine.execute(lines, loss_fn=self._loss_of_stages, **known)
        if self._seen:  # what is returned counts
            outputs = {place: output for place, (output, _) in self._seen.items()}
            losses = {place: loss for place, (_, loss) in self._seen.items()}
            if "out" in made:
                merged = made["out"].chunk(len(forwards), self.case.pipelining.merge_dim)
                outputs = dict(zip(forwards, merged, strict=True))
            if "losses" in made:
                scale = loss_scale(self.case, len(forwards))
                returned = [loss / scale for loss in made["losses"]]
                losses = dict(zip(forwards, returned, strict=True))
            self._seen = {place: (outputs[place], losses[place]) for place in self._seen}
        self._observe_all(forwards, self._seen, buffers=buffers)

    def _loss_of_stages(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        place, call = [*self._at_once.items()][int(number)]
        made = self._compute(self.engine.scope.judged(call), call, out=output)
        loss: torch.Tensor = made["loss"]
        self._seen[place] = made["outputs"][0], loss
        return loss_scale(self.case, len(self._at_once)) * loss

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

    def backward(self, index: int, op: Op, takes: Taking) -> bool:
        """Runs the backward of pending losses; False where none of them depends on anything
        trainable, as the case says.
        """
        if self.in_stages:
            forwards = {each.place: each.call for each in self.at.taken}
            # recomputation has changed buffers again by now
            self._run_at_once(op, forwards, buffers=not self.case.checkpoints)
            return True
        taken = self.pending[takes.places]
        if takes.outputs is not None:
            taken = [self._loss(each.call, self.outputs) for each in self.at.taken]
        if not takes.retains:
            del self.pending[takes.places]
        if not (lines := op.statements(self.engine.scope)):
            if self.trace is not None:
                self.trace.skipped.append(index)
            return False
        named = {
            f"loss{each.place}": loss for each, loss in zip(self.at.taken, taken, strict=True)
        }
        self.engine.before_backward()
        self.engine.execute(lines, **named, scaler=self.made["scaler"])
        self.recorder.explicit = True
        self.engine.after_backward(index)
        self.recorder.explicit = False
        self.delays.at("after_backward")
        return True


def _seed_generators(seed: int, device: torch.device) -> None:
    """What ``torch.manual_seed`` does to the generators that a case can use, and no more.

    It formats a stack for every kind of accelerator that this process has not initialised: 8 % of
    a case.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class Feed:
    """The data of one training run on one rank; ``batches`` are those used so far, by target and
    number.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.case = trainer.case
        self.batches: dict[tuple[str, int], list[torch.Tensor]] = {}

    def inputs(self, op: Call) -> list[torch.Tensor]:
        """Return the input tensors of a forward, the same ones for the same target and batch."""
        key = (op.target, op.batch)
        if key not in self.batches:
            specs = enumerate(input_specs(self.case, op.target))
            with self.trainer.recorder.unseen():
                self.batches[key] = [self._input(op, i, spec) for i, spec in specs]
        return self.batches[key]

    def differentiable(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the inputs so far that require a gradient, by name."""
        for (target, batch), tensors in self.batches.items():
            for i, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    yield f"input {i} of batch {batch}{' of ' + target if target else ''}", tensor

    def forget(self, op: Call) -> None:
        """Drops the inputs of a forward whose iteration was lost: nothing says which of their
        gradients came before the exception.
        """
        self.batches.pop((op.target, op.batch), None)

    def _input(self, op: Call, index: int, spec: TensorSpec) -> torch.Tensor:
        rows, seq = num_rows(self.case, self._data_rank(), op.batch), self.case.inputs.seq
        leading = (rows, seq) if seq else (rows,)
        name = (self.case.seed, "input", op.target, index, op.batch, self._data_rank())
        device = (
            torch.device("cpu") if self.case.inputs.on_host else self.trainer.engine.mesh.device
        )
        if spec.kind == "ids":
            return named_ids(spec.size, leading, *name).to(device)
        shape = (*leading, spec.size)
        return self._values(shape, *name).to(device).requires_grad_(spec.requires_grad)

    def _values(self, shape: tuple[int, ...], *name: object, exponent: int = 0) -> torch.Tensor:
        engine = self.trainer.engine
        values = named_values(self.case.values, shape, engine.dtype, *name, exponent=exponent)
        if engine.shaken is not None:
            engine.shaken.apply(values, name)
        return values

    def _data_rank(self) -> int:
        """Return the number by which this rank's data differs from that of others."""
        return 0 if self.case.inputs.same_on_ranks else self.trainer.engine.mesh.rank

    def target(self, op: Call, index: int, output: torch.Tensor) -> torch.Tensor:
        """Return what the loss compares the ``index``-th output of a forward with."""
        name = (self.case.seed, "target", op.target, index, op.batch, self._data_rank())
        backwards = sum(bool(o.takes) for o in self.case.schedule[: self.trainer.recorder.op])
        exponent = APART if (backwards + self._data_rank()) % 2 else -APART
        with self.trainer.recorder.unseen():
            values = self._values(tuple(output.shape), *name, exponent=exponent)
            return values.to(output.device, output.dtype)
