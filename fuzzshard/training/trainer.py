"""Interprets the schedule of a case under one engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case, TensorSpec
from fuzzshard.case.graph import BatchNorm, Conv1d
from fuzzshard.case.groups import root_is_wrapped
from fuzzshard.case.schedule import (
    Backward,
    Forward,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.engines.base import Engine
from fuzzshard.model.names import seed_of
from fuzzshard.model.values import named_ids, named_values
from fuzzshard.training.trace import Key, Observation, Trace

OnOp = Callable[[int], None]


def make_optimizer(case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of ``case`` over every parameter, frozen ones included.

    Sharded and plain parameters go into a parameter group each: the foreach implementations, the default
    on CUDA, refuse lists that mix DTensors and Tensors.
    """
    spec = case.optimizer
    kinds = [[p for p in parameters if isinstance(p, DTensor) is sharded] for sharded in (False, True)]
    groups: list[dict[str, Any]] = [{"params": kind} for kind in kinds if kind]
    match spec.kind:
        case "sgd":
            return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay)
        case "adam":
            return torch.optim.Adam(groups, lr=spec.lr, weight_decay=spec.weight_decay)
        case "adamw":
            return torch.optim.AdamW(groups, lr=spec.lr, weight_decay=spec.weight_decay)


class Trainer:
    """One training run. With a trace it observes after every op; without, it only trains.

    Inputs and targets are functions of (case seed, name, batch, rank). The dropout seed is set before
    every forward from (case seed, op, rank).
    """

    def __init__(self, case: Case, engine: Engine, trace: Trace | None) -> None:
        self.case = case
        self.engine = engine
        self.trace = trace
        self.optimizer = make_optimizer(case, list(engine.trained.values()))
        self.pending: list[torch.Tensor] = []
        self.forwarded = False
        self.keeps_unsharded = not root_is_wrapped(case)
        self.copies: dict[str, tuple[int, Observation]] = {}
        self.batches: dict[tuple[str, int], list[torch.Tensor]] = {}

    def run(self, on_op: OnOp | None = None) -> None:
        """Runs the whole schedule; ``on_op`` is called with the index of each op before it runs."""
        self._observe_registration(-1)
        for index, op in enumerate(self.case.schedule):
            if on_op is not None:
                on_op(index)
            match op:
                case Forward():
                    self._forward(index, op)
                case Backward():
                    self._backward(index, op)
                case Step():
                    self._before_change()
                    self.optimizer.step()
                    self.engine.after_step()
                case ZeroGrad():
                    self.optimizer.zero_grad(set_to_none=op.set_to_none)
                case SetFlag():
                    self.engine.set_flag(op)
                    self.keeps_unsharded |= op.flag == "reshard_after_backward" and not op.value
                case SetRequiresGrad():
                    self._before_change()
                    for parameter in self.engine.parameters_at(op.target):
                        parameter.requires_grad_(op.value)
                case SetMode():
                    self.engine.module.train(op.train)
            if self.trace is not None:
                self._observe(index, op)

    def _before_change(self) -> None:
        """Parameters may only change while they are sharded.

        A forward may have undone that, or a flag, or a backward that went through other FSDP roots only.
        """
        if self.forwarded or self.keeps_unsharded:
            self.engine.before_change()

    def _inputs(self, op: Forward) -> list[torch.Tensor]:
        key = (op.target, op.batch)
        if key not in self.batches:
            specs = self.case.inputs.tensors if not op.target else self._specs_of(op.target)
            self.batches[key] = [self._input(op, i, spec) for i, spec in enumerate(specs)]
        return self.batches[key]

    def _specs_of(self, target: str) -> list[TensorSpec]:
        values = self.engine.facts.input_values[target]
        return [TensorSpec(kind="ids" if v.ids else "float", size=v.size) for v in values]

    def _input(self, op: Forward, index: int, spec: TensorSpec) -> torch.Tensor:
        leading = self._leading()
        name = (self.case.seed, "input", op.target, index, op.batch, self.engine.mesh.rank)
        if spec.kind == "ids":
            return named_ids(spec.size, leading, *name).to(self.engine.mesh.device)
        shape = (*leading, spec.size)
        tensor = named_values(self.case.values, shape, self.engine.dtype, *name)
        return tensor.to(self.engine.mesh.device).requires_grad_(spec.requires_grad)

    def _leading(self) -> tuple[int, ...]:
        inputs = self.case.inputs
        return (inputs.batch, inputs.seq) if inputs.seq else (inputs.batch,)

    def _forward(self, index: int, op: Forward) -> None:
        torch.manual_seed(seed_of(self.case.seed, "dropout", index, self.engine.mesh.rank))
        self.forwarded = True
        module = self.engine.call_target(op.target)
        with torch.set_grad_enabled(op.grad):
            outputs = flatten(self._call(op.target, module, self._inputs(op)))
            loss = self._loss(op, outputs)
        if self.trace is not None:
            for i, output in enumerate(outputs):
                self.trace.record(Key(index, "output", f"output {i} of {op.target or 'the root'}"), output)
            self.trace.record(Key(index, "loss", "loss"), loss)
        if op.grad:
            self.pending.append(loss)

    def _call(self, target: str, module: nn.Module, args: list[torch.Tensor]) -> Any:
        leaf = self.engine.facts.modules[target]
        if isinstance(leaf, Conv1d) or (isinstance(leaf, BatchNorm) and self.case.inputs.seq):
            return module(args[0].transpose(1, 2)).transpose(1, 2)
        return module(*args)

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
                    terms.append((output * self._target(op, i, output)).sum())
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0]

    def _target(self, op: Forward, index: int, output: torch.Tensor) -> torch.Tensor:
        name = (self.case.seed, "target", op.target, index, op.batch, self.engine.mesh.rank)
        values = named_values(self.case.values, tuple(output.shape), self.engine.dtype, *name)
        return values.to(output.device)

    def _backward(self, index: int, op: Backward) -> None:
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
            return
        self.engine.before_backward()
        torch.autograd.backward(losses[0] if len(losses) == 1 else torch.stack(losses).sum())
        self.engine.after_backward()
        self.forwarded = False

    def _observe(self, index: int, op: object) -> None:
        match op:
            case Forward():
                self._observe_registration(index)
                self._observe_parameters(index)
                self._observe_buffers(index)
            case Backward():
                self._observe_registration(index)
                self._observe_inputs(index)
                self._observe_gradients(index)
            case Step():
                self._observe_registration(index)
                self._observe_trained(index)
            case SetRequiresGrad():
                self._observe_registration(index)
            case _:
                pass

    def _observe_registration(self, index: int) -> None:
        if self.trace is not None and self.engine.reregisters:
            for fqn in self.engine.facts.parameters:
                self.trace.register(Key(index, "registration", fqn), self.engine.parameter(fqn))

    def _observe_parameters(self, index: int) -> None:
        """What is registered; a tensor that only an in-place op can change is copied once a version."""
        assert self.trace is not None
        for fqn in self.engine.facts.parameters:
            key = Key(index, "registered_parameter", fqn)
            parameter = self.engine.parameter(fqn)
            version, copy = self.copies.get(fqn, (-1, None))
            if copy is not None and version == parameter._version:
                self.trace.tensors[key] = copy
                continue
            self.trace.record(key, parameter)
            if not self.engine.reregisters:
                self.copies[fqn] = parameter._version, self.trace.tensors[key]

    def _observe_trained(self, index: int) -> None:
        assert self.trace is not None
        for fqn, parameter in self.engine.trained.items():
            self.trace.record(Key(index, "parameter", fqn), parameter)

    def _observe_gradients(self, index: int) -> None:
        assert self.trace is not None
        for oracle, gradients in self.engine.gradients().items():
            for fqn, gradient in gradients.items():
                self.trace.record(Key(index, oracle, fqn), gradient)

    def _observe_inputs(self, index: int) -> None:
        assert self.trace is not None
        for (target, batch), tensors in self.batches.items():
            for i, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    name = f"input {i} of batch {batch}{' of ' + target if target else ''}"
                    self.trace.record(Key(index, "input_gradient", name), tensor.grad)

    def _observe_buffers(self, index: int) -> None:
        assert self.trace is not None
        for name, buffer in self.engine.model.named_buffers():
            name = name.replace("_checkpoint_wrapped_module.", "")
            self.trace.record(Key(index, "buffer", name), buffer)


def flatten(output: Any) -> list[torch.Tensor]:
    """The tensors of an output: a tensor, a tuple or a dict of them, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    return list(output.values() if isinstance(output, dict) else output)
