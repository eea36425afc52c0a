"""Records what an op of the schedule left behind: registration, parameters, gradients, buffers,
states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fuzzshard.engines.base import Engine, plain_name
from fuzzshard.parts.op import Op
from fuzzshard.parts.oracle import Oracle, TensorOracle
from fuzzshard.parts.oracles import ORACLES
from fuzzshard.training.leftovers import hook_counts, leftovers
from fuzzshard.training.states import optimizer_states
from fuzzshard.training.trace import Key, Observation, Trace

if TYPE_CHECKING:
    from fuzzshard.training.trainer import Trainer


_LOOKING = {
    look: tuple(oracle for oracle in ORACLES if look in oracle.looks)
    for look in dict.fromkeys(look for oracle in ORACLES for look in oracle.looks)
}
"""The oracles that look at what an op may have changed."""


class Observer:
    """Looks at the engine of one trainer, op by op, and fills its trace."""

    def __init__(self, trainer: Trainer, trace: Trace) -> None:
        self.trainer = trainer
        self.trace = trace
        self.outputs: Mapping[str, torch.Tensor]
        self.loss: torch.Tensor
        self.copies: dict[str, tuple[int, Observation]] = {}
        """What was last recorded of each registered parameter, and its version."""
        self._gradients: dict[str, dict[str, torch.Tensor | None]] | None = None
        self._engine, self._hooks = trainer.engine, hook_counts(trainer.engine)

    def forget(self) -> None:
        """The model's tensors are others now, and its modules may be."""
        self.copies.clear()
        if self.trainer.engine is not self._engine:
            self._engine, self._hooks = self.trainer.engine, hook_counts(self.trainer.engine)

    def observe_leftovers(self) -> None:
        """Records what the run has left behind."""
        self.trace.leftovers = leftovers(self.trainer, self._hooks)

    def observe(self, index: int, op: Op) -> None:
        """Records what the op at ``index`` may have changed."""
        for look in op.looks:
            self.look(index, look)
        if op.takes and self.trainer.case.checkpoints:
            counts = {n: b for n, b in self.buffers() if not b.is_floating_point()}
            self.trace.counts |= {(index, name): int(count) for name, count in counts.items()}

    def look(self, index: int, look: str) -> None:
        """Records what stands in ``look`` after the op at ``index``."""
        for oracle in _LOOKING[look]:
            if self.trace.has_tensors or not isinstance(oracle, TensorOracle):
                oracle.record(self, index, look)
        self._gradients = None

    def computed(
        self, index: int, target: str, outputs: Sequence[torch.Tensor], loss: torch.Tensor
    ) -> None:
        """Records what a forward has computed."""
        where = target or "the root"
        self.outputs = {f"output {i} of {where}": output for i, output in enumerate(outputs)}
        self.loss = loss
        self.look(index, "outputs")
        del self.outputs, self.loss

    def begin(self) -> None:
        """Records what there is before the first op."""
        self.look(-1, "registered")

    # What oracles record:

    @property
    def engine(self) -> Engine:
        """The engine that is looked at."""
        return self.trainer.engine

    def key(self, oracle: Oracle, index: int, name: str) -> Key:
        """What an observation is kept under."""
        return Key(index, oracle.name, name)

    def keep(
        self,
        oracle: Oracle,
        index: int,
        name: str,
        tensor: torch.Tensor | None,
        flat: tuple[int, int] | None = None,
    ) -> None:
        """Keeps a copy of ``tensor`` (:meth:`Trace.record`)."""
        self.trace.record(self.key(oracle, index, name), tensor, flat)

    def keep_once(self, oracle: Oracle, index: int, fqn: str, parameter: torch.Tensor) -> None:
        """Keeps a registered parameter; one that only an in-place op can change is copied once a
        version. One that modules compute with rounded values of may be registered with those.
        """
        key = self.key(oracle, index, fqn)
        version, copy = self.copies.get(fqn, (-1, None))
        if copy is not None and version == parameter._version:
            self.trace.tensors[key] = copy
            return
        self.trace.record(key, parameter)
        if (rounding := self.engine.roundings.get(fqn)) is not None:
            self.trace.map(key, rounding)
        if self.engine.counts_versions and not self.engine.reregisters:
            self.copies[fqn] = parameter._version, self.trace.tensors[key]

    def gradients(self, kind: str) -> Iterable[tuple[str, torch.Tensor | None]]:
        """Those of one kind; the engine is asked for all of them once after an op."""
        if self._gradients is None:
            self._gradients = self.engine.gradients()
        return self._gradients.get(kind, {}).items()

    def optimizer_states(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """The states of the optimizer, by name."""
        return optimizer_states(self.trainer)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers of the model, by the names that the plain one gives them."""
        for name, buffer in self.engine.buffers():
            yield plain_name(name), buffer
