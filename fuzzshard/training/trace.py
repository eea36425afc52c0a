"""What one engine produced on one rank, in order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from fuzzshard.instruments.streams.clocks import Race
from fuzzshard.parts.oracle import TensorOracle
from fuzzshard.parts.oracles import tensor_oracle
from fuzzshard.training.collectives import Collective
from fuzzshard.training.hooks import Hook
from fuzzshard.training.leftovers import Leftovers


class Key(NamedTuple):
    """What an observation is of: the index of the op, the oracle it serves, and the name of the
    thing.
    """

    op: int
    oracle: str
    name: str

    @property
    def rule(self) -> TensorOracle:
        """The oracle."""
        return tensor_oracle(self.oracle)


class Piece(NamedTuple):
    """One cut of a shard: part ``part`` of ``parts`` along ``dim``, as ``torch.chunk`` cuts."""

    dim: int
    parts: int
    part: int


class Flat(NamedTuple):
    """The elements [start, stop) of the flattened whole."""

    start: int
    stop: int


Pieces = tuple[Piece | Flat, ...]
"""Cuts that follow one another; none of them: the whole."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """A tensor as this rank holds it (None: there is none), and which piece of the whole it is."""

    tensor: torch.Tensor | None
    pieces: Pieces = ()


@dataclasses.dataclass(frozen=True)
class Registration:
    """How a parameter is registered: ``Tensor`` or ``DTensor`` with its placements and mesh
    shape.
    """

    kind: str
    placements: tuple[str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool

    def __str__(self) -> str:
        where = (
            f" {', '.join(self.placements)} on mesh {list(self.mesh)}" if self.placements else ""
        )
        grad = "" if self.requires_grad else ", frozen"
        return f"{self.kind}{list(self.shape)} {self.dtype}{where}{grad}"


@dataclasses.dataclass
class Trace:
    """Everything recorded of one run of ``engine``. ``skipped`` are backwards whose loss required
    no gradient.

    ``has_tensors`` says whether any are recorded. ``leftovers`` is what the run has left behind,
    if it went to its end. ``leaked`` are modules and parameters that were still there without
    their engine. ``counts`` are the batches that batch norms in checkpoints have counted after
    each backward, by its op and the name of the buffer. ``races`` are accesses to memory that
    nothing orders, where streams are watched.
    """

    tensors: dict[Key, Observation] = dataclasses.field(default_factory=dict)
    registrations: dict[Key, Registration] = dataclasses.field(default_factory=dict)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    hooks: list[Hook] = dataclasses.field(default_factory=list)
    skipped: list[int] = dataclasses.field(default_factory=list)
    leftovers: Leftovers | None = None
    leaked: tuple[str, ...] = ()
    counts: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)
    races: list[Race] = dataclasses.field(default_factory=list)
    engine: str = ""
    has_tensors: bool = True

    @property
    def values(self) -> dict[Key, torch.Tensor | None]:
        """The tensors as this rank holds them."""
        return {key: observation.tensor for key, observation in self.tensors.items()}

    def record(
        self, key: Key, tensor: torch.Tensor | None, flat: tuple[int, int] | None = None
    ) -> None:
        """Keeps a copy of ``tensor``; of a DTensor, of the local shard, which may be offloaded
        from its mesh.

        ``flat`` says that it is these elements, (start, stop), of the flattened whole.
        """
        pieces: Pieces = () if flat is None else (Flat(*flat),)
        if tensor is None:
            self.tensors[key] = Observation(None, pieces)
            return
        if isinstance(tensor, DTensor):
            with (
                torch.no_grad()
            ):  # gives the shard itself; detaching a DTensor first costs five times as much
                local, device = tensor.to_local(), tensor.device_mesh.device_type
                # a plain tensor, whatever class the shard has
                shard = torch.empty(local.shape, dtype=local.dtype, device=device)
                shard.copy_(local)
            pieces = pieces_of(tensor.device_mesh, tensor.placements)
            self.tensors[key] = Observation(shard, pieces)
        else:
            self.tensors[key] = Observation(tensor.detach().clone(), pieces)

    def map(self, key: Key, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Keeps what ``function`` makes of a tensor that was recorded."""
        tensor, pieces = self.tensors[key].tensor, self.tensors[key].pieces
        self.tensors[key] = Observation(tensor if tensor is None else function(tensor), pieces)

    def without_gradient(self) -> dict[int, set[str]]:
        """Return the parameters that had no gradient at all after each backward, by the index of
        its op.
        """
        held: dict[tuple[int, str], list[bool]] = {}
        for key, observation in self.tensors.items():
            if key.rule.gradient in ("reduced", "local"):
                held.setdefault((key.op, key.name), []).append(observation.tensor is not None)
        found: dict[int, set[str]] = {}
        for (op, name), there in held.items():
            if not any(there):
                found.setdefault(op, set()).add(name)
        return found

    def unreduced(self) -> set[int]:
        """Return the backwards, by index, that leave accumulated gradients unreduced.

        A backward that had nothing to differentiate changed nothing, and does not count.
        """
        return {key.op for key in self.tensors if key.rule.gradient == "local"}.difference(
            self.skipped
        )

    def register(self, key: Key, parameter: torch.Tensor) -> None:
        """Keeps how ``parameter`` is registered."""
        placements: tuple[str, ...] = ()
        mesh: tuple[int, ...] = ()
        if isinstance(parameter, DTensor):
            placements, mesh = (
                tuple(map(str, parameter.placements)),
                tuple(parameter.device_mesh.shape),
            )
        self.registrations[key] = Registration(
            kind="DTensor" if isinstance(parameter, DTensor) else "Tensor",
            placements=placements,
            mesh=mesh,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
        )


@functools.lru_cache(maxsize=256)
def pieces_of(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Pieces:
    """Return where a DTensor's local shard lies in the whole; the innermost mesh axis cuts first.

    So ``fully_shard`` shards what tensor parallelism has sharded (``_StridedShard``).
    """
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    return tuple(
        Piece(placement.dim, mesh.size(axis), coordinate[axis])
        for axis, placement in reversed(list(enumerate(placements)))
        if isinstance(placement, Shard | _StridedShard)
    )


def cut(whole: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    """Return the part of ``whole`` that ``pieces`` name; past the last chunk it is empty."""
    for piece in pieces:
        if isinstance(piece, Flat):
            whole = whole.flatten()[piece.start : piece.stop]
            continue
        dim, parts, part = piece
        chunks = torch.chunk(whole, parts, dim)
        whole = chunks[part] if part < len(chunks) else whole.narrow(dim, 0, 0)
    return whole
