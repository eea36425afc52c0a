"""Records what an op of the schedule left behind: registration, parameters, gradients, buffers,
states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzzshard.engines.base import plain_name
from fuzzshard.parts.op import Op
from fuzzshard.training.remains import hook_counts, remains
from fuzzshard.training.states import optimizer_states
from fuzzshard.training.trace import Key, Observation, Trace

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer


class Observer:
    """Looks at the engine of one trainer, op by op, and fills its trace."""

    def __init__(self, trainer: Trainer, trace: Trace) -> None:
        self.trainer = trainer
        self.trace = trace
        self.copies: dict[str, tuple[int, Observation]] = {}
        """What was last recorded of each registered parameter, and its version."""
        self._engine, self._hooks = trainer.engine, hook_counts(trainer.engine)

    def forget(self) -> None:
        """The model's tensors are others now, and its modules may be."""
        self.copies.clear()
        if self.trainer.engine is not self._engine:
            self._engine, self._hooks = self.trainer.engine, hook_counts(self.trainer.engine)

    def observe_remains(self) -> None:
        """Records what the run has left behind."""
        self.trace.remains = remains(self.trainer, self._hooks)

    def observe(self, index: int, op: Op) -> None:
        """Records what the op at ``index`` may have changed."""
        for look in op.looks:
            getattr(self, f"_{look}")(index)

    def begin(self) -> None:
        """Records what there is before the first op."""
        self._registration(-1)

    def _registration(self, index: int) -> None:
        """Records how every parameter is registered, where the engine registers others in
        training.
        """
        if self.trainer.engine.reregisters:
            for fqn in self.trainer.engine.facts.parameters:
                self.trace.register(
                    Key(index, "registration", fqn), self.trainer.engine.parameter(fqn)
                )

    def _parameters(self, index: int) -> None:
        """What is registered; a tensor that only an in-place op can change is copied once a
        version.
        """
        for fqn in self.trainer.engine.facts.parameters if self.trainer.engine.registers else ():
            key = Key(index, "registered_parameter", fqn)
            parameter = self.trainer.engine.parameter(fqn)
            version, copy = self.copies.get(fqn, (-1, None))
            if copy is not None and version == parameter._version:
                self.trace.tensors[key] = copy
                continue
            self.trace.record(key, parameter)
            if not self.trainer.engine.reregisters:
                self.copies[fqn] = parameter._version, self.trace.tensors[key]

    def _trained(self, index: int, oracle: str = "parameter") -> None:
        for fqn, parameter in self.trainer.engine.observed().items():
            self.trace.record(
                Key(index, oracle, fqn), parameter, self.trainer.engine.flat_range(fqn)
            )

    def _resumed(self, index: int) -> None:
        self._trained(index, "resume")

    def _optimizer(self, index: int) -> None:
        for name, state in optimizer_states(self.trainer):
            self.trace.record(Key(index, "resume", name), state)

    def _state_dict(self, index: int) -> None:
        for fqn, tensor in self.trainer.states.taken.items():
            self.trace.record(Key(index, "state_dict", fqn), tensor)

    def _taken(self, index: int) -> None:
        """What a state dict that was taken earlier holds now, where its tensors are the model's
        own.
        """
        if self.trainer.engine.state_dict_aliases:
            self._state_dict(index)

    def _gradients(self, index: int) -> None:
        for oracle, gradients in self.trainer.engine.gradients().items():
            for fqn, gradient in gradients.items():
                self.trace.record(
                    Key(index, oracle, fqn), gradient, self.trainer.engine.flat_range(fqn)
                )

    def _unreduced(self, index: int) -> None:
        for fqn, gradient in self.trainer.engine.unreduced_gradients().items():
            self.trace.record(Key(index, "unreduced_gradient", fqn), gradient)

    def _inputs(self, index: int) -> None:
        for (target, batch), tensors in self.trainer.feed.batches.items():
            for i, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    name = f"input {i} of batch {batch}{' of ' + target if target else ''}"
                    self.trace.record(Key(index, "input_gradient", name), tensor.grad)

    def _buffers(self, index: int) -> None:
        for name, buffer in self.trainer.engine.model.named_buffers():
            self.trace.record(Key(index, "buffer", plain_name(name)), buffer)
