"""What one training of one model leaves on one rank: tensors on the CPU, in the order of time."""

from __future__ import annotations

import dataclasses
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fuzzshard.subject.report import Kind
from fuzzshard.subject.steps import Batches, floats, leaves

Named = Mapping[str, torch.Tensor | None]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor was seen; ``step`` is -1 before training.

    ``microbatch`` counts those of all ranks within the step, -1: outside of one.
    """

    step: int
    kind: Kind
    name: str
    microbatch: int = -1


@dataclasses.dataclass
class Record:
    """Tensors by where they were seen, and the dtypes that modules computed in.

    ``num_updates`` counts those of each step, ``num_batches`` the batches that it trains on.
    ``frozen`` are the parameters that take no gradient, ``switched`` those of which that changed
    after training began. ``options`` are those of the optimizer in each step by parameter,
    ``modes`` say of modules whether they were in training mode. ``stale_optimizer`` says that the
    optimizer had none of the parameters, ``unsharded`` that it had none when it updated them.
    ``elsewhere`` are parameters and buffers that other ranks along ``pp`` have, and not this one.
    ``draws`` says whether a forward drew random numbers, ``mixes`` whether one was of no single
    batch; ``seeds`` are those that the user's code set meanwhile. ``lost`` are the states that did
    not come back when the training was resumed.
    """

    tensors: dict[Place, torch.Tensor | None] = dataclasses.field(default_factory=dict)
    dtypes: set[torch.dtype] = dataclasses.field(default_factory=set)
    aliases: frozenset[frozenset[str]] = frozenset()
    num_updates: list[int] = dataclasses.field(default_factory=list)
    num_batches: list[int] = dataclasses.field(default_factory=list)
    frozen: set[str] = dataclasses.field(default_factory=set)
    switched: set[str] = dataclasses.field(default_factory=set)
    options: dict[int, dict[str, dict[str, Any]]] = dataclasses.field(default_factory=dict)
    modes: dict[str, bool] = dataclasses.field(default_factory=dict)
    stale_optimizer: bool = False
    unsharded: bool = False
    elsewhere: set[str] = dataclasses.field(default_factory=set)
    draws: bool = False
    mixes: bool = False
    seeds: list[int] = dataclasses.field(default_factory=list)
    lost: tuple[str, ...] = ()

    def add(self, step: int, kind: Kind, tensors: Named, microbatch: int = -1) -> None:
        """Keep ``tensors`` as they are now."""
        for name, tensor in tensors.items():
            place = Place(step, kind, name, microbatch)
            self.tensors[place] = None if tensor is None else kept(tensor)

    @property
    def coarsest(self) -> torch.dtype:
        """The coarsest dtype that was computed in, as far as modules gave outputs."""
        tensors = (t for t in self.tensors.values() if t is not None and t.is_floating_point())
        seen = self.dtypes or {tensor.dtype for tensor in tensors}
        return max(seen, key=lambda dtype: torch.finfo(dtype).eps)

    def of(self, kind: Kind) -> dict[Place, torch.Tensor | None]:
        """Return the tensors of one kind."""
        return {place: t for place, t in self.tensors.items() if place.kind == kind}


def untyped(function: Callable[..., None]) -> Callable[..., None]:
    """Return what is ours within a step, which ``spmd_types`` should not check for the user."""
    types = sys.modules.get("spmd_types")
    return types.no_typecheck(function) if types else function


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU; of a DTensor, of the whole of it, for which all ranks must ask."""
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.to("cpu", copy=True)


def seed_everything(seed: int) -> None:
    """Seed every generator that a model may draw from."""
    random.seed(seed)
    torch.manual_seed(seed)  # every device
    try:
        import numpy as np
    except ImportError:
        return
    np.random.seed(seed % 2**32)


def random_state(device: torch.device) -> torch.Tensor:
    """Return the state of the generator that models on ``device`` draw from."""
    if device.type == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _storages(batch: Any) -> set[int]:
    """The memory of the tensors in a nest: of views the same as of what they are views of."""
    plain = (leaf for leaf in leaves(batch) if type(leaf) is torch.Tensor)
    return {leaf.untyped_storage().data_ptr() for leaf in plain} - {0}


@dataclasses.dataclass
class _Call:
    """A forward of the model or, where a step goes round that, of a module of it.

    ``batch`` is the number of the batch that it is of, -1: of no single one.
    """

    name: str
    batch: int
    has_graph: bool
    in_training: bool
    outputs: list[tuple[str, int, torch.Tensor]] = dataclasses.field(
        default_factory=list, compare=False
    )


class Forwards:
    """Watches the forwards of a model: seeds each one, and keeps what its modules give.

    A forward is of the batch that its inputs are part of, or else of the one that was taken last,
    and draws the same numbers on whatever rank it runs. A step may have any number of them of each
    batch: those that train are kept, others, of an evaluation say, only of a batch that has none.
    What is computed again in a backward is no forward. ``inside`` is the module that runs, with
    its hooks; after it the module that holds it.
    """

    def __init__(
        self,
        model: nn.Module,
        plain_name: Callable[[str], str],
        record: Record,
        seed: int,
        device: torch.device,
    ) -> None:
        self.record = record
        self.seed = seed
        self.device = device
        self.step = 0
        self.inside = ""
        self._entered: Counter[str] = Counter()
        self._modules: dict[str, nn.Module] = {}
        self._calls: list[_Call] = []
        self._outermost = 0
        self._seen: list[tuple[str, int, torch.Tensor]] = []
        self._taken: list[int] = []
        self._was_called = False
        self._owners: dict[int, set[int]] = {}
        self._last_seed = torch.initial_seed()
        self._state = torch.empty(0)
        for path, module in model.named_modules():
            name = plain_name(path)
            if name and name == plain_name(path.rpartition(".")[0]):
                continue  # its wrapper is watched
            self._modules[name] = module
            enter, leave = self._hooks(module, name, is_root=not path)
            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            module.register_forward_hook(leave)

    @property
    def number(self) -> int:
        """How many forwards this step has begun."""
        return len(self._calls)

    @property
    def latest(self) -> int:
        """The number of the batch that was taken last."""
        return self._taken[-1]

    @property
    def at(self) -> tuple[int, str, int]:
        """The batch of the latest forward (-1: of no single one), the module that runs in it, and
        the number of that call of the module (0: outside of any).
        """
        batch = self._calls[-1].batch if self._calls else -1
        return batch, self.inside, self._entered[self.inside] if self._outermost else 0

    def begin_step(self, step: int, batches: Mapping[int, Any]) -> Batches:
        """Begin another step; ``batches`` have their numbers among those of all ranks."""
        self.step, self._calls, self._taken, self._owners = step, [], [], {}
        self._last_seed = torch.initial_seed()
        for number, batch in batches.items():
            for storage in _storages(batch):
                self._owners.setdefault(storage, set()).add(number)
        return Batches(batches, self._take)

    def end_step(self) -> None:
        """Keep what forwards of this step gave: each module's by how often the batch called it."""
        counts: Counter[tuple[int, str, int]] = Counter()
        kept = [call for call in self._calls if self._is_kept(call)]
        self.record.num_batches.append(len({call.batch for call in kept}))
        for call in self._calls:
            self.record.dtypes.update(tensor.dtype for _, _, tensor in call.outputs)
        for call in kept:
            for name, index, tensor in call.outputs:
                counts[call.batch, name, index] += 1
                calls = counts[call.batch, name, index]
                label = name + (f" (call {calls})" if calls > 1 else "")
                label += f"[{index}]" if index else ""
                self.record.add(self.step, "outputs", {label: tensor}, call.batch)
            call.outputs = []

    def _is_kept(self, call: _Call) -> bool:
        """Whether a call is of one batch, and no other one of that is more like training."""
        others = [other for other in self._calls if other.batch == call.batch]
        if call.batch < 0 or any(other.has_graph > call.has_graph for other in others):
            return False
        return not any(o.name == call.name and o.in_training > call.in_training for o in others)

    def _hooks(
        self, watched: nn.Module, name: str, *, is_root: bool
    ) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the hooks before and after a module; what is below the root may be compiled.

        A copy of a module has these hooks, too, and is not watched. Dynamo follows no module into
        an attribute, so that the outermost one is known by its id.
        """
        own = id(watched)

        @untyped
        def enter(module: nn.Module, arguments: Any, keywords: Any) -> None:
            if module is watched:
                if is_root or not torch.compiler.is_compiling():
                    self._begin(module, name, (arguments, keywords))
                self.inside = name

        @untyped
        def leave(module: nn.Module, _arguments: Any, output: Any) -> None:
            if module is watched:
                self.inside = name.rpartition(".")[0]
                if not self._outermost:
                    return
                if name or self._outermost == own:
                    for index, tensor in enumerate(floats(output)):
                        self._seen.append((name or "output", index, tensor.detach().clone()))
                if is_root or not torch.compiler.is_compiling():
                    self._end(own)

        return enter, leave

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _begin(self, module: nn.Module, name: str, inputs: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # a backward computes it again
            return
        if self._outermost:
            self._entered[name] += self.inside != name  # a wrapper is no call of its own
            return
        self._entered = Counter([name])
        call = _Call(name, self._batch_of(inputs), torch.is_grad_enabled(), module.training)
        if call.has_graph:
            self.record.modes.update({n: m.training for n, m in self._modules.items()})
        again = self._calls.count(call)
        self.record.mixes |= call.batch < 0
        self._calls.append(call)
        self._outermost, self._seen, self._was_called = id(module), call.outputs, True
        self._set_seed(call.batch, 7_919 * again + zlib.crc32(name.encode()))
        self._state = random_state(self.device)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _end(self, module: int) -> None:
        if self._outermost == module:
            self._outermost = 0
            self.record.draws |= not torch.equal(self._state, random_state(self.device))

    def _batch_of(self, inputs: Any) -> int:
        owners = (self._owners.get(storage, set()) for storage in _storages(inputs))
        numbers = {number for of_one in owners if len(of_one) == 1 for number in of_one}
        numbers = numbers or set(self._taken)
        return numbers.pop() if len(numbers) == 1 else -1

    def _take(self, number: int) -> None:
        """Note that forwards may now be of this batch: of several, if all are put together."""
        if self._was_called or number in self._taken:
            self._taken = []
        self._taken.append(number)
        self._was_called, self._outermost = False, 0
        self._set_seed(number)

    def _set_seed(self, number: int, more: int = 0) -> None:
        if torch.initial_seed() != self._last_seed:
            self.record.seeds.append(torch.initial_seed())
        self._last_seed = self.seed * 1_000_003 + self.step * 10_007 + number % 10_007 + more
        seed_everything(self._last_seed)
