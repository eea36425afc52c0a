"""What a user gives to be checked, the names of functions, and what is changed around that: plan,
freezes, schedule, precision. No torch import.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import msgspec

from fuzzshard.errors import UsageError, did_you_mean

Aspect = Literal["plan", "freeze", "mesh", "schedule", "precision"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
Setting = Literal["precision", "compile", "checkpointing"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
"""What ``--vary`` changes, one at a time."""


class Variation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of a training; the defaults change nothing.

    ``wrapped`` are the modules that are wrapped before the root, in place of the blocks, None: the
    blocks. ``reshard`` is what ``reshard_after_forward`` is, None: torch's default. ``frozen`` are
    modules and parameters, ``checkpointed`` modules that are computed again in the backward,
    ``compiled`` ones are compiled before they are wrapped. ``unsynced`` accumulates all
    microbatches but the last without reducing, ``evaluates`` runs a forward in evaluation mode
    before each step. Wrappers compute in ``param_dtype``. The ``lists`` of blocks keep their first
    ``depth``, 0: all. ``size`` is what ``smaller`` is called with, 0: ``build`` gives the model.
    ``only`` is the one module that is trained, cut out of the model, on the inputs that it gets
    there; empty: the whole model.
    """

    wrapped: tuple[str, ...] | None = None
    reshard: bool | None = None
    frozen: tuple[str, ...] = ()
    checkpointed: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    unsynced: bool = False
    evaluates: bool = False
    param_dtype: Literal["", "bfloat16"] = ""
    depth: int = 0
    lists: tuple[str, ...] = ()
    size: int = 0
    only: str = ""

    def kept(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` that are trained, as they are called there.

        Others are beyond the first ``depth`` blocks or outside of ``only``.
        """
        there = (name for name in names if not any(self._cuts(it, name) for it in self.lists))
        if not self.only:
            return tuple(there)
        within = f"{self.only}."
        return tuple(name.removeprefix(within) for name in there if name.startswith(within))

    def whole_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return ``names`` of what is trained as the whole model has them."""
        within = f"{self.only}." if self.only else ""
        return tuple(f"{within}{name}" for name in names)

    def _cuts(self, blocks: str, name: str) -> bool:
        number = name.removeprefix(f"{blocks}.").partition(".")[0]
        within = name.startswith(f"{blocks}.") and number.isdigit()
        return within and 0 < self.depth <= int(number)

    def words(self) -> Iterator[str]:
        """Yield what is changed, in words."""
        for field, text in _WORDS.items():
            if (value := getattr(self, field)) != getattr(Variation(), field):
                if isinstance(value, tuple):
                    value = ", ".join(name or "the model" for name in value) or "nothing"
                yield text.format(value)


_WORDS = {
    "size": "smaller({})",
    "only": "{} alone, on the inputs that it gets in the model",
    "depth": "the first {} of each list of blocks",
    "wrapped": "wrapped: {} and the root",
    "reshard": "reshard_after_forward={}",
    "frozen": "frozen: {}",
    "checkpointed": "checkpointed: {}",
    "compiled": "compiled by aot_eager: {}",
    "unsynced": "microbatches that accumulate without reduction",
    "evaluates": "a forward in evaluation mode before each step",
    "param_dtype": "parameters cast to {}",
}


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a model has that a variation may name.

    ``modules`` have parameters and are below the root, ``blocks`` are the repeated ones, ``lists``
    hold them and can be cut, ``depth`` is the length of the longest. ``wrappable``
    modules hold all names of a parameter or none: ``fully_shard`` refuses to put a parameter into
    two groups ("For shared/tied parameters, use fully_shard([module_a, module_b])",
    _fsdp_state.py).
    """

    modules: tuple[str, ...] = ()
    wrappable: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    depth: int = 0


DATA_AXES = ("dp_replicate", "dp_shard", "dp")
"""Names of mesh axes along which ranks get data of their own, as along any name not known."""

MODEL_AXES = ("tp", "pp", "cp", "ep", "sp")
"""Names of mesh axes along which ranks get equal data."""

_AXES = (*DATA_AXES, *MODEL_AXES)
_ALIKE = 0.85
"""How like a known name an axis is that may be mistyped (:mod:`difflib`): ``dp_shard_cp`` is none.
"""


class Subject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model and how it is trained, as names of functions: ``module:function`` or
    ``path/to/file.py:function``.

    ``build()`` gives the plain module, ``inputs(step, dp_rank, dp_size)`` a batch: a tensor, a
    tuple of arguments or a dict of keyword arguments. ``loss(outputs, batch)`` gives a scalar; by
    default it is the mean of the squares of all floating-point outputs. ``parallelize(model,
    mesh)`` changes the model or returns another module. ``optimizer(parameters)`` gives the
    optimizer. ``train_step(model, optimizer, batches)`` is a whole step on the microbatches of a
    rank; the plain model gets those of all data-parallel ranks. ``loss_weight(batch)`` is the
    weight of a batch in the mean over all batches of a step. ``smaller(size)`` builds the model
    in a size from 1 on. ``save(model, optimizer, folder)`` and ``load(model, optimizer, folder)``
    are called to resume a training; by default ``torch.distributed.checkpoint`` is. ``names`` are
    the plain names of parameters that ``parallelize`` renames.
    """

    build: str
    inputs: str
    loss: str = ""
    parallelize: str = ""
    optimizer: str = ""
    train_step: str = ""
    loss_weight: str = ""
    smaller: str = ""
    save: str = ""
    load: str = ""
    names: dict[str, str] = {}

    @property
    def functions(self) -> dict[str, str]:
        """The names that are given, by what they are for."""
        fields = (field for field in self.__struct_fields__ if field != "names")
        return {field: name for field in fields if (name := getattr(self, field))}

    @property
    def of_one_module(self) -> Subject:
        """The subject without the functions that are about the outputs of the whole model."""
        return msgspec.structs.replace(self, loss="", loss_weight="", train_step="")


class MeshShape(msgspec.Struct, frozen=True):
    """The axes of a device mesh and their sizes, outermost first."""

    axes: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """Return the mesh of ``dp_replicate=2,dp_shard=2``; raises :class:`UsageError`."""
        axes: dict[str, int] = {}
        for part in text.split(","):
            name, equals, size = part.strip().partition("=")
            good = equals and name.isidentifier() and size.isdigit() and int(size) > 0
            if not good or name in axes:
                raise UsageError(
                    f"{text!r} is not a mesh", "write dp_shard=2 or dp_replicate=2,dp_shard=2"
                )
            axes[name] = int(size)
        return cls(axes)

    def check_axes(self) -> None:
        """Raise :class:`UsageError` for a name that is not known, and where none is of data."""
        for name, meant in self._unknown(cutoff=0.6):
            raise UsageError(
                f"{name!r} is no mesh axis that fuzzshard knows{did_you_mean(meant)}",
                f"use {', '.join(_AXES)}, or a --parallelize of yours, which may take any",
            )
        if not self.data_axes:
            raise UsageError(
                f"the mesh {self} has no axis along which ranks get data of their own",
                "add dp_shard=2, or say in a --parallelize of yours what the others are for",
            )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Names that may be mistyped, in words: a ``parallelize`` of the user's may take any."""
        return tuple(
            f"ranks along the mesh axis {name!r} get data of their own{did_you_mean(meant)}"
            for name, meant in self._unknown(cutoff=_ALIKE)
            if meant
        )

    def _unknown(self, *, cutoff: float) -> Iterator[tuple[str, str]]:
        """Every name that is not known, and the known one that it is like, if there is one."""
        for name in self.axes:
            if name not in _AXES:
                close = difflib.get_close_matches(name.lower(), _AXES, n=1, cutoff=cutoff)
                yield name, "".join(close)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(self.axes.values())

    @property
    def data_axes(self) -> tuple[str, ...]:
        """The axes along which ranks get data of their own."""
        return tuple(name for name in self.axes if name not in MODEL_AXES)

    @property
    def data_size(self) -> int:
        """The number of ranks that get data of their own."""
        return math.prod(self.axes[name] for name in self.data_axes)

    def data_rank(self, rank: int) -> int:
        """Return which of the ranks with data of their own a rank is, by outer axes first."""
        number, stride = 0, self.size
        for name, size in self.axes.items():
            stride //= size
            number = number if name in MODEL_AXES else number * size + rank // stride % size
        return number

    @property
    def copies(self) -> int:
        """How many ranks get equal data."""
        return self.size // self.data_size

    @property
    def shards(self) -> list[int]:
        """The numbers of shards that a tensor may have."""
        return sorted({*self.axes.values(), self.size})

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes.items())


_SETTINGS: dict[str, Setting] = {
    "param_dtype": "precision",
    "compiled": "compile",
    "checkpointed": "checkpointing",
}


IN_FLOAT64 = ", in float64"
"""What a rank adds to what it is doing while it trains in that."""


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train a subject: the mesh, who parallelises it, for how long.

    ``engine`` wraps the model where the subject has no ``parallelize``. ``repeat`` trains the
    plain model twice to see that it computes the same. ``variation`` is what a fuzzer changes.
    Before the step of the number ``resume`` the parallelised model is saved, built anew and
    loaded; 0: never. It goes on in ``resume_mesh``, if that is given. ``full_state_dicts`` are
    saved in place of shards. With ``global_batch`` the plain model gets the batches of all ranks
    as one.
    With ``finer`` two that differ are trained in float64 as well.
    ``operators``: the first one that differs is looked for, which takes some more trainings.
    With ``races`` the streams of the parallelised model are watched.
    """

    mesh: MeshShape
    engine: str = ""
    steps: int = 3
    microbatches: int = 1
    seed: int = 0
    repeat: bool = True
    resume: int = 0
    resume_mesh: MeshShape | None = None
    full_state_dicts: bool = False
    global_batch: bool = False
    finer: bool = True
    operators: bool = True
    races: bool = False
    variation: Variation = Variation()

    def mesh_of(self, step: int) -> MeshShape:
        """Return the mesh in which a step is trained."""
        return self.resume_mesh if self.resume_mesh and step >= self.resume else self.mesh

    @property
    def label(self) -> str:
        """Which training of a check it is."""
        changed = [name for field, name in _SETTINGS.items() if getattr(self.variation, field)]
        return ", ".join([str(self.mesh), self.engine or "parallelize", *changed])

    @property
    def size(self) -> int:
        """The number of ranks. In a smaller mesh several groups of ranks do the same."""
        return max(mesh.size for mesh in (self.mesh, self.resume_mesh) if mesh)
