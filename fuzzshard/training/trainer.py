"""Interprets the schedule of a case under one engine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from fuzzshard.case.case import Case
from fuzzshard.case.progress import Progress, names_rank
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    Op,
    Ranks,
    Reshard,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetMode,
    SetPath,
    SetRequiresGrad,
    Step,
    TakeStateDict,
    Unshard,
    ZeroGrad,
)
from fuzzshard.engines.base import DTYPES, Engine
from fuzzshard.model.names import seed_of
from fuzzshard.training.calls import call, flatten
from fuzzshard.training.collectives import Recorder
from fuzzshard.training.delays import Delays
from fuzzshard.training.feed import Feed
from fuzzshard.training.interrupt import interrupted
from fuzzshard.training.observer import Observer
from fuzzshard.training.optimizers import make_optimizer
from fuzzshard.training.states import States, rebuild, zero
from fuzzshard.training.trace import Key, Trace

OnOp = Callable[[int], None]


class Trainer:
    """One training run. With a trace it observes after every op; without, it only trains.

    Inputs and targets are functions of (case seed, name, batch, rank). The dropout seed is set before
    every forward from (case seed, op, rank).
    """

    def __init__(
        self, case: Case, engine: Engine, trace: Trace | None, recorder: Recorder | None = None
    ) -> None:
        self.case = case
        self.engine = engine
        self.trace = trace
        self.recorder = recorder or Recorder()
        self.delays = self.recorder.delays or Delays(_undelayed(case), engine.mesh.device, engine.mesh.rank)
        self.progress = Progress(case, engine.mesh.global_rank)
        self.first_dtype = engine.dtype
        self.states = States()
        self.make_optimizer()
        self.pending: list[torch.Tensor] = []
        self.feed = Feed(self)
        self.observer = None if trace is None else Observer(self, trace)

    def make_optimizer(self) -> None:
        """Makes the optimizer, at the beginning and when parameters were replaced."""
        self.optimizer = make_optimizer(self.case, self.engine.optimized())
        if self.case.optimizer.post_optim_event:
            self.engine.record_post_optim_event(self.optimizer)

    def run(self, on_op: OnOp | None = None) -> None:
        """Runs the whole schedule; ``on_op`` is called with the index of each op before it runs."""
        if self.observer is not None:
            self.observer.observe_registration(-1)
        try:
            for index, op in enumerate(self.case.schedule):
                if on_op is not None:
                    on_op(index)
                self.recorder.op = index
                skipped = self._run(index, op) is False
                self.progress.advance(skipped=skipped)
                if self.observer is not None:
                    self.observer.observe(index, op)
            self.engine.finish()
            if self.observer is not None:
                self.observer.observe_remains()
        finally:
            self.states.remove()

    def _run(self, index: int, op: Op) -> bool | None:
        """Runs one op; False for a backward that had nothing to differentiate."""
        match op:
            case Forward():
                self._forward(index, op)
            case Backward():
                return self._backward(index, op)
            case Step():
                self._step()
            case ZeroGrad():
                self.optimizer.zero_grad(set_to_none=op.set_to_none)
            case SetFlag():
                self.engine.set_flag(op)
            case SetRequiresGrad() if self._concerns(op.ranks) and not self._spared(op):
                self._before_change()
                for parameter in self.engine.parameters_at(op.target):
                    parameter.requires_grad_(op.value)
            case SetMode():
                self.engine.module.train(op.train)
            case SetPath() if self._concerns(op.ranks):
                self.engine.set_path(op.target, op.path)
            case SetDivideFactor():
                self.engine.set_divide_factor(op)
            case Unshard():
                self.engine.unshard(op)
            case Reshard():
                self.engine.reshard(op)
            case Abort():
                self._abort(index, op)
            case ClipGradNorm():
                self.engine.clip_grad_norm(op)
            case Cast():
                self._before_change()
                self.engine.cast(DTYPES[op.dtype])
                self.feed.batches.clear()
                self.make_optimizer()
                self._forget_tensors()
            case TakeStateDict():
                self.states.take(self.engine)
            case SaveState():
                self.states.save(self, op.via)
            case CorruptState():
                self._corrupt(index, op)
            case LoadState():
                self.states.load(self, assign=op.assign)
                if op.assign:
                    self._forget_tensors()
            case _:
                pass
        return None

    def _corrupt(self, index: int, op: CorruptState) -> None:
        self._before_change()
        if op.how == "zero":
            zero(self)
        else:
            rebuild(self, index)
            self._forget_tensors()

    def _forget_tensors(self) -> None:
        """The model's tensors are others now: what was kept of the old ones says nothing about them."""
        self.states.taken = {}
        if self.observer is not None:
            self.observer.forget()

    def _concerns(self, ranks: Ranks) -> bool:
        return names_rank(ranks, self.engine.mesh.global_rank)

    def _spared(self, op: SetRequiresGrad) -> bool:
        return op.engines_only and self.engine.name == "reference"

    def _step(self) -> None:
        self._before_change()
        self.delays.at("before_step")
        self.optimizer.step()
        self.engine.after_step()
        self.delays.at("after_step")

    def _before_change(self) -> None:
        """Parameters may only change while they are sharded."""
        if self.progress.may_be_unsharded:
            self.engine.before_change()

    def _forward(self, index: int, op: Forward) -> None:
        _seed_generators(
            seed_of(self.case.seed, "dropout", index, self.engine.mesh.rank), self.engine.mesh.device
        )
        module = self.engine.call_target(op.target)
        with torch.set_grad_enabled(op.grad):
            outputs = flatten(call(self.engine, op.target, module, self.feed.inputs(op)))
            self.delays.at("after_forward")
            loss = self._loss(op, outputs)
        if self.trace is not None:
            for i, output in enumerate(outputs):
                self.trace.record(Key(index, "output", f"output {i} of {op.target or 'the root'}"), output)
            self.trace.record(Key(index, "loss", "loss"), loss)
        if op.grad:
            self.pending.append(loss)

    def _abort(self, index: int, op: Abort) -> None:
        """Loses an iteration, and goes on as the docstring of ``FSDPModule.reset_iter_state`` says."""
        _seed_generators(
            seed_of(self.case.seed, "dropout", index, self.engine.mesh.rank), self.engine.mesh.device
        )
        forward = Forward(batch=op.batch)
        in_backward = op.during == "backward"
        with interrupted(self.engine.submodule(op.target), in_backward=in_backward):
            outputs = flatten(call(self.engine, "", self.engine.call_target(""), self.feed.inputs(forward)))
            loss = self._loss(forward, outputs)
            if in_backward and loss.requires_grad:
                self.engine.before_backward()
                torch.autograd.backward(loss)
        self.engine.recover()
        for parameter in self.engine.trained.values():
            parameter.grad = None

    def _loss(self, op: Forward, outputs: list[torch.Tensor]) -> torch.Tensor:
        used = range(len(outputs)) if op.outputs is None else op.outputs
        terms = []
        for i in used:
            output = outputs[i]
            match self.case.loss:
                case "sum":
                    terms.append(output.sum())
                case "mean_square":
                    terms.append(output.square().mean())
                case "dot":
                    terms.append((output * self.feed.target(op, i, output)).sum())
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0]

    def _backward(self, index: int, op: Backward) -> bool:
        match op.which:
            case "all":
                taken, self.pending = self.pending, []
            case "oldest":
                taken = [self.pending.pop(0)]
            case "newest":
                taken = [self.pending.pop()]
        losses = [loss for loss in taken if loss.requires_grad]
        if not losses:
            if self.trace is not None:
                self.trace.skipped.append(index)
            return False
        self.engine.before_backward()
        torch.autograd.backward(losses[0] if len(losses) == 1 else torch.stack(losses).sum())
        self.engine.finalize_backward()
        self.recorder.explicit = True
        self.engine.after_backward()
        self.recorder.explicit = False
        self.delays.at("after_backward")
        return True


def _undelayed(case: Case) -> Case:
    return msgspec.structs.replace(case, delays=())


def _seed_generators(seed: int, device: torch.device) -> None:
    """What ``torch.manual_seed`` does to the generators that a case can use, and no more.

    It formats a stack for every kind of accelerator that this process has not initialised: 8 % of a case.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
