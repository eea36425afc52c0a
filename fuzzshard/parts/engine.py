"""What every engine says of itself without torch; generic code asks this, and never which engine
it is.

How an engine trains, what it refuses and what its scripts say is in its folder of
``fuzzshard/engines``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.leaf import Role
from fuzzshard.parts.op import Choice
from fuzzshard.parts.op import Reasons as Reasons

if TYPE_CHECKING:  # what an engine is shown of the layers above, for types alone
    from fuzzshard.analysis.inferred import Inferred as Inferred
    from fuzzshard.case.case import Case as Case
else:  # nobody looks at annotations when it runs
    Case = Inferred = None


COMPILED: Excludes = dict.fromkeys(
    (
        "compile:inductor & leaf:dropout",
        "compile:aot_eager & leaf:dropout & edge:unused_value|edge:unused_output",
    ),
    Exclusion(
        "dropouts draw other values compiled: Inductor's all, a graph's after one that nothing "
        "reads",
        "github.com/pytorch/pytorch/issues/141645: Inductor has a generator of its own, by "
        "design; a graph leaves out what nothing reads",
    ),
)


UNEVEN = "op:uneven_*"
"""Features of training within ``join()`` where some ranks end first."""


class EngineSpec:
    """One way to train a model."""

    name: ClassVar[str]
    """Its name in JSON and signatures, and that of its folder."""
    title: ClassVar[str]
    """The name that its users know, in Markdown."""
    tag: ClassVar[str]
    """What titles of issues begin with."""
    nicknames: ClassVar[tuple[str, ...]] = ()
    """What else people call it, in small letters."""
    meaning: ClassVar[str] = ""
    """What the feature means that it runs."""
    options: ClassVar[str] = ""
    """The field of a case that has its options, if there is one."""
    excludes: ClassVar[Excludes] = {
        **COMPILED,
        "schedule:ranks_differ": Exclusion(
            "ranks run different programs, which FSDP1 alone looks for",
            "distributed.py, class docstring: 'each distributed process has the exact same "
            "model'; fully_sharded_data_parallel.py checks the order of units at debug level "
            "DETAIL",
        ),
        UNEVEN: Exclusion(
            "ranks have inputs of different numbers, which only DDP and its optimizer may have",
            "torch/distributed/algorithms/join.py, Join: 'joinables (List[Joinable])', which "
            "inherit from Joinable",
        ),
    }
    """What its contract does not cover."""
    choice: ClassVar[Choice | None] = None
    """The choice of swarms without which it does not run; None: it runs in every case."""
    wrapper: ClassVar[str] = ""
    """The class of the module that it puts around the model, which has ``no_sync()`` in place of
    flags.
    """
    applies_groups: ClassVar[bool] = False
    """Whether it applies the wrap groups one by one, and has all that ``FSDPModule`` has: flags,
    ``unshard``. What no group manages is averaged by hand.
    """
    keeps_whole: ClassVar[bool] = False
    """Whether every rank keeps whole parameters of its groups: replicated DTensors are registered
    in place of sharded ones, and gradients are reduced over all data-parallel axes as over one.
    """
    has_units: ClassVar[bool] = False
    """Whether every wrapped module is a unit with a flat parameter, of which a rank has a range:
    what is registered, and what gradients are of. It warns where iterations are not alike:
    forwards in one order, a backward that synchronises, and the step.
    """
    spreads: ClassVar[Role | None] = None
    """Which leaves it runs over the shard axis: with ``experts`` ranks have some of them each, and
    groups of these have the replicate axis alone; with ``attention`` ranks have a part of the
    positions of all of its rows meanwhile.
    """
    names_dims: ClassVar[bool] = False
    """Whether it is told names of axes of the mesh, on which every parameter is a DTensor, and so
    is what forwards get and return.
    """
    in_stages: ClassVar[bool] = False
    """Whether a rank has some stages of the model, as ``mesh.pipeline`` cuts it, and runs all
    forwards of a backward with that backward.
    """
    ignores_modules: ClassVar[bool] = False
    """Whether it is told which of the ignored modules it leaves to the user."""
    differs_in: ClassVar[tuple[str, ...]] = ()
    """The oracles of what a rank may have otherwise than the reference for a documented reason
    (:mod:`fuzzshard.oracles.allowed`), or only in part.
    """

    def shards_stages(self, case: Case) -> bool:
        """Return whether groups of its stages are sharded, and not the stages replicated."""
        return self.in_stages and not case.pipelining.replicates

    def shards(self, case: Case) -> int:
        """Return over how many ranks gradients of its groups are reduce-scattered."""
        return 1 if self.keeps_whole else case.mesh.shard

    def averages_again(self, case: Case) -> bool:
        """Return whether a backward averages all that ``.grad`` holds, what was averaged before
        included, and not what it adds alone.
        """
        return False

    def averages_in_half(self, case: Case) -> Dtype | None:
        """Return the half precision in which a hook averages gradients, if one does."""
        options = getattr(case, self.options) if self.options else None
        return getattr(options, "averages_in_half", None)

    def features(self, case: Case, found: Inferred) -> Iterator[str]:
        """Yield the features of its options, where it runs."""
        for option, value in getattr(case, self.options).told() if self.options else ():
            yield from option.named(value)

    def misfits(self, case: Case, found: Inferred) -> Reasons:
        """Yield where its options cannot be meant, or do not fit the case."""
        return iter(())
