"""The Case: one complete experiment, an immutable JSON-serialisable value."""

from __future__ import annotations

import itertools
import math
import operator
from typing import TYPE_CHECKING, Literal, Union

from msgspec.structs import replace

from fuzzshard.case.graph import Block
from fuzzshard.case.options import (
    DDP,
    FSDP1,
    SPMD,
    ContextParallel,
    Delay,
    Expect,
    ParameterDtype,
    Pipelining,
    TensorParallel,
)
from fuzzshard.parts.engines import ENGINES as SPECS
from fuzzshard.parts.losses import DEFAULT as DEFAULT_LOSS
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.options.optimizer import Optimizer as Optimizer
from fuzzshard.parts.options.wrap_group import WrapGroup as WrapGroup
from fuzzshard.parts.part import Part

ALL_ENGINES = tuple(SPECS)
ENGINES = tuple(name for name, spec in SPECS.items() if spec.choice is None)
"""The engines that a case has unless it says otherwise."""
TRACED_BACKWARD = ("aot_eager", "inductor")
"""The backends of ``compile`` that make a graph of the backward too."""
WAYS = {
    "flattened": "a mesh with an axis that was two, flattened",
    "unflattened": "a mesh whose axes were one",
    "from_groups": "a mesh of process groups that there are",
    "transposed": "a mesh whose ranks lie column by column",
    "reversed": "a mesh whose process groups begin with the last rank",
}
"""In which other ways a mesh is made (:mod:`fuzzshard.program.mesh`), and what each gives."""


if TYPE_CHECKING:
    AnyOp = Op
    EngineName = str
    LossName = str
    Made = str
else:  # what msgspec decodes goes by the classes and the names
    AnyOp = Union[*OPS]
    EngineName = Literal[*SPECS]
    LossName = Literal[*LOSSES]
    Made = Literal["plainly", *WAYS]


class TensorSpec(Part, frozen=True, kw_only=True):
    """One input of the root: a float tensor of ``size`` features, or ids below ``size``."""

    kind: Literal["float", "ids"] = "float"
    size: int
    requires_grad: bool = False


class RankBatch(Part, frozen=True, kw_only=True):
    """Data-parallel rank ``rank`` has ``rows`` rows in batch ``batch`` (None: in every batch); 0
    is empty.
    """

    rank: int
    rows: int
    batch: int | None = None


class Inputs(Part, frozen=True, kw_only=True):
    """What the root is fed: every float tensor is (batch, size), or (batch, seq, size) when seq >=
    1.

    Data-parallel ranks get different tensors unless ``same_on_ranks``, and as many rows each
    unless ``rank_batches`` say otherwise. With ``on_host`` they are on the CPU, and the engine
    moves them (on CUDA).
    """

    batch: int
    seq: int = 0
    tensors: tuple[TensorSpec, ...]
    same_on_ranks: bool = False
    on_host: bool = False
    rank_batches: tuple[RankBatch, ...] = ()


class Tie(Part, frozen=True, kw_only=True):
    """``parameter`` (an FQN) is the very ``nn.Parameter`` registered at ``source``."""

    parameter: str
    source: str


class Mesh(Part, frozen=True, kw_only=True):
    """Ranks 0..size-1 as a mesh with the axes (pp, replicate, shard, tp), of which only ``shard``
    must be.

    ``replicate`` makes it the HSDP mesh. ``tensor`` is the tensor-parallel axis; its ranks get
    equal data. The slices along ``pipeline`` have equal data: there the engine ``pipelining`` has
    the stages of one model, and under every other engine they train side by side and never meet.
    ``made`` is how: by ``init_device_mesh``, or in one of :data:`WAYS`.
    """

    shard: int
    replicate: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    made: Made = "plainly"

    @property
    def size(self) -> int:
        """The number of ranks in the mesh."""
        return self.data_size * (self.tensor or 1) * (self.pipeline or 1)

    @property
    def data_size(self) -> int:
        """The number of ranks that gradients are averaged over."""
        return self.shard * (self.replicate or 1)

    @property
    def axes(self) -> dict[str, int]:
        """The sizes of the axes that it has, by name; outermost first."""
        names = ("pipeline", "replicate", "shard", "tensor")
        return {name: size for name in names if (size := getattr(self, name)) is not None}

    @property
    def flattened(self) -> tuple[int, int]:
        """The sizes of the two axes, outer and inner, that a flattened shard axis was."""
        inner = 2 - self.shard % 2
        return self.shard // inner, inner

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks as they lie along the axes, next to each other along the innermost."""
        if self.made == "transposed":
            sizes = tuple(self.axes.values())
            steps = [math.prod(sizes[:axis]) for axis in range(len(sizes))]
            places = itertools.product(*map(range, sizes))
            return tuple(sum(map(operator.mul, place, steps)) for place in places)
        return tuple(range(self.size))[:: -1 if self.made == "reversed" else 1]

    @property
    def saves_in_slices(self) -> bool:
        """Whether slices along the pipeline each save for themselves: tensor parallelism needs all
        ranks.
        """
        return self.pipeline is not None and self.tensor is None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """All data-parallel axes that its ranks can have, those of one axis first."""
        ranks = self.data_size
        divisors = (n for n in range(1, ranks + 1) if ranks % n == 0)
        return [(ranks,), *((n, ranks // n) for n in divisors)]

    def along(self, axes: tuple[int, ...]) -> Mesh:
        """Return it with the data-parallel ``axes`` ``(shard,)`` or ``(replicate, shard)``."""
        *replicate, shard = axes
        return replace(self, shard=shard, replicate=replicate[0] if replicate else None)

    def text(self) -> str:
        """Return ``"shard 4"``, or ``"replicate 2 x shard 2"`` for HSDP, outermost axis first."""
        text = " x ".join(f"{axis} {size}" for axis, size in self.axes.items())
        return text if self.made == "plainly" else f"{text}, {self.made.replace('_', ' ')}"


class Freeze(Part, frozen=True, kw_only=True):
    """A module or parameter whose ``requires_grad`` is off from the start, set before or after
    wrapping.
    """

    target: str
    after_wrap: bool = False


CheckpointImplementation = Literal["utils", "wrapper", "composable"]
"""The most public one first: the composable API is private, and the wrapper's module is."""


class Checkpoint(Part, frozen=True, kw_only=True):
    """Activation checkpointing of one module, non-reentrant.

    By the composable API, by the module wrapper, or by ``torch.utils.checkpoint`` wherever the
    module is called, by another module or by the schedule.
    """

    module: str
    implementation: CheckpointImplementation = "composable"


class Case(Part, frozen=True, kw_only=True):
    """One experiment.

    ``seed`` with names seeds every tensor. ``wrap`` is in application order, bottom-up, ``""`` is
    the root. ``engines`` are judged against the reference. ``values="dyadic"`` draws small
    integers times powers of two, so that sums are exact in any order, and ``"apart"`` powers of
    two, so that they are so in a promised dtype and not in a coarser one. ``loss`` reduces the
    used outputs (:data:`LOSSES`).

    ``ignored`` are modules or parameters that no group manages: they are given to ``fully_shard``
    as ``ignored_params`` or, ``ignored_by`` being ``"adding"``, are modules that the model gets
    when it is wrapped already, as adapters may be. With
    ``init="meta"`` the model is wrapped on the meta device and gets its values afterwards. With
    ``finalize`` the root has ``set_manual_backward_finalization(True)``, and ``finalize_backward``
    is called after every backward. ``compile`` is the backend of ``module.compile()`` on the
    wrapped root. ``observe="losses"`` compares nothing else; with ``"memory"`` every engine trains
    again after that, to see whether its memory grows; with ``"races"`` what its
    streams do is recorded.
    """

    seed: int
    model: Block
    inputs: Inputs
    mesh: Mesh
    schedule: tuple[AnyOp, ...]
    wrap: tuple[WrapGroup, ...] = ()
    ties: tuple[Tie, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    optimizer: Optimizer = Optimizer()
    dtype: Literal["float32", "float64"] = "float32"
    values: Literal["gaussian", "dyadic", "apart"] = "gaussian"
    loss: LossName = DEFAULT_LOSS
    engines: tuple[EngineName, ...] = ENGINES
    dtypes: tuple[ParameterDtype, ...] = ()
    tensor_parallel: tuple[TensorParallel, ...] = ()
    ignored: tuple[str, ...] = ()
    ignored_by: Literal["argument", "adding"] = "argument"
    init: Literal["device", "meta"] = "device"
    finalize: Literal["wait", "async"] | None = None
    compile: Literal["eager", "aot_eager", "inductor"] | None = None
    fsdp1: FSDP1 = FSDP1()
    ddp: DDP = DDP()
    pipelining: Pipelining = Pipelining()
    context_parallel: ContextParallel = ContextParallel()
    spmd: SPMD = SPMD()
    delays: tuple[Delay, ...] = ()
    expect: tuple[Expect, ...] = ()
    observe: Literal["everything", "losses", "memory", "races"] = "everything"

    @property
    def tied(self) -> dict[str, str]:
        """The parameter that each tied one is, by FQN."""
        return {tie.parameter: tie.source for tie in self.ties}

    @property
    def root_is_wrapped(self) -> bool:
        """Whether one FSDP root manages the whole model, so that a backward finalises every
        group.
        """
        return any("" in group.modules for group in self.wrap)

    @property
    def added(self) -> tuple[str, ...]:
        """The modules that the model gets after wrapping."""
        return self.ignored if self.ignored_by == "adding" else ()

    def on(self, axes: tuple[int, ...]) -> Case:
        """Return it on a mesh with the data-parallel ``axes``; without any, on the same mesh."""
        return replace(self, mesh=self.mesh.along(axes)) if axes else self

    @property
    def on_meshes(self) -> tuple[Case, ...]:
        """The same on each of the meshes that its models are built on."""
        return (
            self,
            *map(self.on, dict.fromkeys(op.rebuilds for op in self.schedule if op.rebuilds)),
        )
