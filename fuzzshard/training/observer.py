"""Records what an op of the schedule left behind: registration, parameters, gradients, buffers,
states.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

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


class Received:
    """The dtypes of what the modules within a model are called with, while a forward runs.

    Its hooks know nothing else, as copies of the model have them too.
    """

    def __init__(self, engine: Engine) -> None:
        self.is_forward = False
        self.tensors: dict[str, torch.Tensor] = {}
        """Scalars of these dtypes; the name says which tensor of which call it is."""
        self._calls: collections.Counter[str] = collections.Counter()
        for path in filter(None, engine.inferred.modules):
            module, note = engine.model.get_submodule(path), self._noting(path)
            module.register_forward_pre_hook(note, prepend=True, with_kwargs=True)

    def begin(self) -> None:
        """Forgets the forward before, and notes what comes."""
        self.is_forward = True
        self.tensors.clear()
        self._calls.clear()

    def _noting(self, path: str) -> Callable[[nn.Module, Any, dict[str, Any]], None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.is_forward:
                given = (t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor))
                for number, tensor in enumerate(given):
                    name = f"input {number} {self._calls[path]} of {path}"
                    self.tensors[name] = torch.zeros((), dtype=tensor.dtype)
                self._calls[path] += 1

        return note


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
        self._take(trainer.engine)

    def _take(self, engine: Engine) -> None:
        unseen = self.trainer.in_stages or self.trainer.case.compile or not self.trace.has_tensors
        self._received = None if unseen else Received(engine)
        self._engine, self._hooks = engine, hook_counts(engine)

    def forget(self) -> None:
        """Forget the model's tensors, which are others now, and its modules, which may be."""
        self.copies.clear()
        if self.trainer.engine is not self._engine:
            self._take(self.trainer.engine)

    def observe_leftovers(self) -> None:
        """Records what the run has left behind."""
        self.trace.leftovers = leftovers(self.trainer, self._hooks)

    def observe(self, index: int, op: Op) -> None:
        """Records what the op at ``index`` may have changed."""
        if op.updates:  # fused optimizers count no version (pytorch PR 191154)
            self.copies.clear()
        for look in op.looks:
            self.look(index, look)
        if op.takes and self.trainer.case.checkpoints:
            with self.trainer.recorder.unseen():
                counts = {n: b for n, b in self.buffers() if not b.is_floating_point()}
                self.trace.counts |= {(index, name): int(count) for name, count in counts.items()}

    def look(self, index: int, look: str) -> None:
        """Records what stands in ``look`` after the op at ``index``."""
        with self.trainer.recorder.unseen():
            for oracle in _LOOKING[look]:
                if self.trace.has_tensors or not isinstance(oracle, TensorOracle):
                    oracle.record(self, index, look)
        self._gradients = None

    def calls(self) -> None:
        """Called before a forward."""
        if self._received is not None:
            self._received.begin()

    def computed(
        self, index: int, target: str, outputs: Sequence[torch.Tensor], loss: torch.Tensor
    ) -> None:
        """Records what a forward has computed."""
        where = target or "the root"
        self.outputs = {f"output {i} of {where}": output for i, output in enumerate(outputs)}
        self.loss = loss
        self.look(index, "outputs")
        del self.outputs, self.loss
        if self._received is not None:
            self._received.is_forward = False

    def begin(self) -> None:
        """Records what there is before the first op."""
        self.look(-1, "registered")

    # What oracles record:

    @property
    def received(self) -> Mapping[str, torch.Tensor]:
        """What modules were called with in the forward that has run: its dtypes, by name."""
        return {} if self._received is None else self._received.tensors

    @property
    def engine(self) -> Engine:
        """The engine that is looked at."""
        return self.trainer.engine

    def key(self, oracle: Oracle, index: int, name: str) -> Key:
        """Return what an observation is kept under."""
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

    @property
    def norm(self) -> torch.Tensor | None:
        """Return the whole of the norm that was returned last."""
        norm: torch.Tensor | None = self.trainer.states.saved["norm"]
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        return None if norm is None else norm.to(self.engine.mesh.device)

    @property
    def scale(self) -> torch.Tensor | None:
        """Return what losses are scaled with, if they are."""
        scaler = self.trainer.made["scaler"]
        return None if scaler is None else torch.tensor(scaler.get_scale())

    def gradients(self, kind: str) -> Iterable[tuple[str, torch.Tensor | None]]:
        """Return those of one kind; the engine is asked for all of them once after an op."""
        if self._gradients is None:
            self._gradients = self.engine.gradients()
        return self._gradients.get(kind, {}).items()

    def optimizer_states(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Return the states of the optimizer, by name."""
        return optimizer_states(self.trainer)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers of the model, by the names that the plain one gives them."""
        for name, buffer in self.engine.buffers():
            yield plain_name(name), buffer
