"""Inputs and targets of forwards: functions of (case seed, name, batch, rank)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from fuzzshard.case.batches import num_rows
from fuzzshard.case.case import TensorSpec
from fuzzshard.model.values import named_ids, named_values
from fuzzshard.parts.op import Call

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer


class Feed:
    """The data of one training run on one rank; ``batches`` are those used so far, by target and
    number.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.case = trainer.case
        self.batches: dict[tuple[str, int], list[torch.Tensor]] = {}

    def inputs(self, op: Call) -> list[torch.Tensor]:
        """The input tensors of a forward, the same ones for the same target and batch."""
        key = (op.target, op.batch)
        if key not in self.batches:
            specs = self.case.inputs.tensors if not op.target else self._specs_of(op.target)
            self.batches[key] = [self._input(op, i, spec) for i, spec in enumerate(specs)]
        return self.batches[key]

    def differentiable(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The inputs so far that require a gradient, by name."""
        for (target, batch), tensors in self.batches.items():
            for i, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    yield f"input {i} of batch {batch}{' of ' + target if target else ''}", tensor

    def forget(self, op: Call) -> None:
        """Drops the inputs of a forward whose iteration was lost: nothing says which of their
        gradients came before the exception.
        """
        self.batches.pop((op.target, op.batch), None)

    def _specs_of(self, target: str) -> list[TensorSpec]:
        values = self.trainer.engine.facts.input_values[target]
        return [TensorSpec(kind="ids" if v.ids else "float", size=v.size) for v in values]

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

    def _values(self, shape: tuple[int, ...], *name: object) -> torch.Tensor:
        engine = self.trainer.engine
        values = named_values(self.case.values, shape, engine.dtype, *name)
        if engine.shaken is not None:
            engine.shaken.apply(values, name)
        return values

    def _data_rank(self) -> int:
        """The number by which this rank's data differs from that of others."""
        return 0 if self.case.inputs.same_on_ranks else self.trainer.engine.mesh.rank

    def target(self, op: Call, index: int, output: torch.Tensor) -> torch.Tensor:
        """What the loss compares the ``index``-th output of a forward with."""
        name = (self.case.seed, "target", op.target, index, op.batch, self._data_rank())
        return self._values(tuple(output.shape), *name).to(output.device, output.dtype)
