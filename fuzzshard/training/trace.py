"""What one engine produced on one rank, in order."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor, Shard

from fuzzshard.training.collectives import Collective


class Key(NamedTuple):
    """What an observation is of: the index of the op, the oracle it serves, and the name of the thing."""

    op: int
    oracle: str
    name: str


class Piece(NamedTuple):
    """One cut of a shard: part ``part`` of ``parts`` along ``dim``, as ``torch.chunk`` cuts."""

    dim: int
    parts: int
    part: int


@dataclasses.dataclass(frozen=True)
class Observation:
    """A tensor as this rank holds it (None: there is none), and which piece of the whole it is."""

    tensor: torch.Tensor | None
    pieces: tuple[Piece, ...] = ()


@dataclasses.dataclass(frozen=True)
class Registration:
    """How a parameter is registered: ``Tensor`` or ``DTensor`` with its placements and mesh shape."""

    kind: str
    placements: tuple[str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool

    def __str__(self) -> str:
        where = f" {', '.join(self.placements)} on mesh {list(self.mesh)}" if self.placements else ""
        grad = "" if self.requires_grad else ", frozen"
        return f"{self.kind}{list(self.shape)} {self.dtype}{where}{grad}"


@dataclasses.dataclass
class Trace:
    """Everything recorded of one run. ``skipped`` are backwards whose loss required no gradient."""

    tensors: dict[Key, Observation] = dataclasses.field(default_factory=dict)
    registrations: dict[Key, Registration] = dataclasses.field(default_factory=dict)
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    skipped: list[int] = dataclasses.field(default_factory=list)

    def record(self, key: Key, tensor: torch.Tensor | None) -> None:
        """Keeps a copy of ``tensor``; of a DTensor, of the local shard."""
        if tensor is None:
            self.tensors[key] = Observation(None)
            return
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            self.tensors[key] = Observation(tensor.to_local().clone(), pieces_of(tensor))
        else:
            self.tensors[key] = Observation(tensor.clone())

    def register(self, key: Key, parameter: torch.Tensor) -> None:
        """Keeps how ``parameter`` is registered."""
        placements: tuple[str, ...] = ()
        mesh: tuple[int, ...] = ()
        if isinstance(parameter, DTensor):
            placements, mesh = tuple(map(str, parameter.placements)), tuple(parameter.device_mesh.shape)
        self.registrations[key] = Registration(
            kind="DTensor" if isinstance(parameter, DTensor) else "Tensor",
            placements=placements,
            mesh=mesh,
            shape=tuple(parameter.shape),
            dtype=str(parameter.dtype).removeprefix("torch."),
            requires_grad=parameter.requires_grad,
        )


def pieces_of(tensor: DTensor) -> tuple[Piece, ...]:
    """Where the local shard of ``tensor`` lies in the whole."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    return tuple(
        Piece(placement.dim, tensor.device_mesh.size(axis), coordinate[axis])
        for axis, placement in enumerate(tensor.placements)
        if isinstance(placement, Shard)
    )


def cut(whole: torch.Tensor, pieces: tuple[Piece, ...]) -> torch.Tensor:
    """The part of ``whole`` that ``pieces`` name; ranks past the last chunk hold an empty one."""
    for dim, parts, part in pieces:
        chunks = torch.chunk(whole, parts, dim)
        whole = chunks[part] if part < len(chunks) else whole.narrow(dim, 0, 0)
    return whole
