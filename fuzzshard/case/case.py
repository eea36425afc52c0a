"""The Case: one complete experiment, an immutable JSON-serialisable value."""

from __future__ import annotations

from typing import Literal

from fuzzshard.case.graph import Block, Part
from fuzzshard.case.schedule import Op

EngineName = Literal["ddp", "fully_shard"]
ENGINES: tuple[EngineName, ...] = ("ddp", "fully_shard")


class TensorSpec(Part, frozen=True, kw_only=True):
    """One input of the root: a float tensor of ``size`` features, or ids below ``size``."""

    kind: Literal["float", "ids"] = "float"
    size: int
    requires_grad: bool = False


class Inputs(Part, frozen=True, kw_only=True):
    """What the root is fed: every float tensor is (batch, size), or (batch, seq, size) when seq >= 1."""

    batch: int
    seq: int = 0
    tensors: tuple[TensorSpec, ...]


class Tie(Part, frozen=True, kw_only=True):
    """``parameter`` (an FQN) is the very ``nn.Parameter`` registered at ``source``."""

    parameter: str
    source: str


class Mesh(Part, frozen=True, kw_only=True):
    """Ranks 0..size-1 as a 1D mesh, or with ``replicate`` as the 2D HSDP mesh (replicate, shard)."""

    shard: int
    replicate: int | None = None

    @property
    def size(self) -> int:
        """The number of ranks in the mesh."""
        return self.shard * (self.replicate or 1)


class WrapGroup(Part, frozen=True, kw_only=True):
    """One call ``fully_shard(modules, reshard_after_forward=...)``; a list group has several modules."""

    modules: tuple[str, ...]
    reshard_after_forward: bool | int | None = None


class Freeze(Part, frozen=True, kw_only=True):
    """A module or parameter whose ``requires_grad`` is off from the start, set before or after wrapping."""

    target: str
    after_wrap: bool = False


class Checkpoint(Part, frozen=True, kw_only=True):
    """Activation checkpointing of one module, non-reentrant: the composable API or the module wrapper."""

    module: str
    implementation: Literal["composable", "wrapper"] = "composable"


class Optimizer(Part, frozen=True, kw_only=True):
    """The optimizer and its hyperparameters; ``momentum`` is SGD's, ``weight_decay`` anyone's."""

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.125
    momentum: float = 0.0
    weight_decay: float = 0.0


class Case(Part, frozen=True, kw_only=True):
    """One experiment.

    ``seed`` with names seeds every tensor. ``wrap`` is in application order, bottom-up, ``""`` is the
    root. ``engines`` are judged against the reference. ``values="dyadic"`` draws small integers times
    powers of two, so that sums are exact in any order. ``loss`` reduces the used outputs: ``sum``,
    ``dot`` (with a target of the same kind of values) or ``mean_square``.
    """

    seed: int
    model: Block
    inputs: Inputs
    mesh: Mesh
    schedule: tuple[Op, ...]
    wrap: tuple[WrapGroup, ...] = ()
    ties: tuple[Tie, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    optimizer: Optimizer = Optimizer()
    dtype: Literal["float32", "float64"] = "float32"
    values: Literal["gaussian", "dyadic"] = "gaussian"
    loss: Literal["sum", "dot", "mean_square"] = "dot"
    engines: tuple[EngineName, ...] = ENGINES
