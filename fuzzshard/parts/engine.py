"""What every engine says of itself without torch; generic code asks this, and never which engine
it is.

How an engine trains, what it refuses and what its scripts say is in its folder of
``fuzzshard/engines``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fuzzshard.parts.exclusion import Excludes, Exclusion
from fuzzshard.parts.op import Choice
from fuzzshard.parts.op import Reasons as Reasons

if TYPE_CHECKING:  # what an engine is shown of the layers above, for types alone
    from fuzzshard.analysis.inferred import Inferred as Inferred
    from fuzzshard.case.case import Case as Case
    from fuzzshard.parts.options.precision import Precision as Precision
    from fuzzshard.parts.oracle import TensorOracle as TensorOracle
else:  # nobody looks at annotations when it runs
    Case = Inferred = Precision = TensorOracle = None


WrapsModels = Literal["no", "if asked", "always"]

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
    meanings: ClassVar[Mapping[str, str]] = {}
    """What each feature of its :attr:`options` means."""
    excludes: ClassVar[Excludes] = {
        **COMPILED,
        "schedule:ranks_differ": Exclusion(
            "ranks run different programs, which FSDP1 alone looks for",
            "distributed.py, class docstring: 'each distributed process has the exact same "
            "model'; fully_sharded_data_parallel.py checks the order of units at debug level "
            "DETAIL",
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
    keeps_order: ClassVar[bool] = False
    """Whether iterations are to be alike: forwards in one order, a backward that synchronises, and
    the step. It warns of other orders.
    """
    has_units: ClassVar[bool] = False
    """Whether every wrapped module is a unit with a flat parameter, of which a rank has a range:
    what is registered, and what gradients are of.
    """
    has_all_states: ClassVar[bool] = True
    """Whether every rank has what it trains of the optimizer's states."""
    shards_experts: ClassVar[bool] = False
    """Whether the shard axis has the experts of mixtures, and groups of these have the replicate
    axis alone, beyond what is predicted of groups.
    """
    shards_positions: ClassVar[bool] = False
    """Whether attention runs over the shard axis, whose ranks have a part of the positions of all
    of its rows meanwhile.
    """
    rounds_otherwise: ClassVar[bool] = False
    """Whether its attention rounds where that of the reference may not round at all: no bits have
    to be equal, and the reference rounds as a ring of ranks where noise is measured.
    """
    in_stages: ClassVar[bool] = False
    """Whether a rank has some stages of the model, as ``mesh.pipeline`` cuts it, and runs all
    forwards of a backward with that backward.
    """
    differentiates_twice: ClassVar[bool] = False
    """Whether a backward may go through a backward."""
    ignores_modules: ClassVar[bool] = False
    """Whether it is told which of the ignored modules it leaves to the user."""
    differs_in: ClassVar[tuple[str, ...]] = ()
    """Which gradients (:attr:`fuzzshard.parts.oracle.TensorOracle.gradient`), or "buffers", it may
    have otherwise than the reference for a documented reason (:mod:`fuzzshard.oracles.allowed`).
    """
    wraps_models: ClassVar[WrapsModels] = "no"
    """Whether it wraps models of the user's own, which say nothing of wrap groups."""
    wraps_blocks: ClassVar[bool] = False
    """Whether it wraps the repeated blocks of such a model one by one, and then the model."""
    outlives_run: ClassVar[str] = ""
    """Why its models may outlive every reference to them, if they do on stock torch."""

    @property
    def has_dtensors(self) -> bool:
        """Whether parameters may be DTensors."""
        return self.applies_groups or self.in_stages

    @property
    def predicts_groups(self) -> bool:
        """Whether collectives and registration are predicted from the groups that it applies."""
        return self.applies_groups and not self.shards_experts

    @property
    def implementation(self) -> str:
        """Return the engine whose code it runs: no witness for it."""
        return self.name

    def may_differ(self, oracle: TensorOracle) -> bool:
        """Whether what ``oracle`` compares is among what it :attr:`differs_in`."""
        of_buffers = oracle.of_buffers and "buffers" in self.differs_in
        return of_buffers or oracle.gradient in self.differs_in

    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        """Return whether a forward of ``target`` moves inputs from the host to the device."""
        return False

    def has_flat_parameters(self, case: Case) -> bool:
        """Return whether its parameters, and their gradients, are flat ones of several."""
        return False

    def shards_stages(self, case: Case) -> bool:
        """Return whether groups of its stages are sharded, and not the stages replicated."""
        return self.in_stages and not case.pipelining.does("wraps_stages")

    def policy(self, case: Case) -> Precision | None:
        """Return the mixed precision that it has for the whole model in place of groups."""
        return None

    def features(self, case: Case, found: Inferred) -> Iterator[str]:
        """Yield the features of its options, where it runs."""
        return iter(())

    def needs_cuda(self, case: Case) -> str | None:
        """Return why it cannot run ``case`` on CPU ranks, in one line; None if it can."""
        return None

    def misfits(self, case: Case, found: Inferred) -> Reasons:
        """Yield where its options cannot be meant, or do not fit the case."""
        return iter(())
