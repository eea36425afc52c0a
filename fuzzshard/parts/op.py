"""What every op of a schedule says of itself; generic code asks this, and never which op it is.

An op is one statement of a training run, and means the same under every engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.moments import Moment, Never
from fuzzshard.parts.names import check_path
from fuzzshard.parts.part import Part

if TYPE_CHECKING:  # what an op is shown of the layers above, for types alone
    from fuzzshard.analysis.checker import Checker as Checker
    from fuzzshard.analysis.inferred import Inferred as Inferred
    from fuzzshard.analysis.schedule_state import ScheduleState as ScheduleState
    from fuzzshard.case.case import Case as Case
    from fuzzshard.program.scope import Scope as Scope
    from fuzzshard.strategies.schedules import Run as Run
    from fuzzshard.strategies.tape import Tape as Tape
    from fuzzshard.training.trainer import Trainer as Trainer
else:  # nobody looks at annotations when it runs
    Case = Checker = Inferred = Run = ScheduleState = Scope = Tape = Trainer = None

Ranks = Literal["all", "others"]
"""Which ranks an op runs on: ``others`` are all but rank 0."""
Which = Literal["all", "oldest", "newest"]
"""Which of the pending losses a backward takes."""
_TAKEN: Mapping[Which, slice] = {
    "all": slice(None),
    "oldest": slice(1),
    "newest": slice(-1, None),
}
Zeroed = Literal["none", "zero"]
"""How gradients are zeroed: removed, or in place."""
Via = Literal["dcp", "stateful", "get_state_dict", "state_dict"]
BY_NAME: tuple[Via, ...] = ("dcp", "get_state_dict")
"""Those in which ``get_optimizer_state_dict`` names states, and makes those that there are not."""
ON_DISK: tuple[Via, ...] = ("dcp", "stateful")
"""Those in which ``torch.distributed.checkpoint`` writes files, one copy of each value."""
StateOption = Literal[
    "full_state_dict",
    "cpu_offload",
    "ignore_frozen_params",
    "flatten_optimizer_state_dict",
    "broadcast_from_rank0",
    "not_strict",
]
"""The fields of ``StateDictOptions`` that are not what they are by default."""
Lost = Literal["zero", "rebuild"]
"""How what was trained is lost: zeroed, or with a model and an optimizer that are built anew."""
Flag = Literal[
    "requires_gradient_sync",
    "requires_all_reduce",
    "is_last_backward",
    "reshard_after_backward",
    "reshard_after_forward",
]


class Call(NamedTuple):
    """A forward of ``target``; ``outputs`` are those that enter the loss (None: all). ``context``
    is a context manager that it and its loss are computed in, as an expression.
    """

    target: str = ""
    batch: int = 0
    grad: bool = True
    outputs: tuple[int, ...] | None = None
    inference: bool = False
    context: str = ""

    @property
    def mode(self) -> str:
        """The context manager of ``torch`` that it runs under; empty with gradients."""
        return "" if self.grad else "inference_mode" if self.inference else "no_grad"

    @property
    def contexts(self) -> list[str]:
        """The context managers that it is computed in, from the outermost."""
        mode = f"torch.{self.mode}()" if self.mode else ""
        return [context for context in (mode, self.context) if context]

    def used(self, count: int) -> Sequence[int]:
        """Return which of ``count`` outputs enter the loss."""
        return range(count) if self.outputs is None else self.outputs


class Taking(NamedTuple):
    """A backward of those losses, which stay pending where it ``retains`` their graph; ``outputs``
    are those of the last forward that alone make the loss (None: all).
    """

    which: Which = "all"
    retains: bool = False
    outputs: tuple[int, ...] | None = None

    @property
    def places(self) -> slice:
        """Where they are among the pending losses."""
        return _TAKEN[self.which]


class Below(NamedTuple):
    """The wrapped modules that an op is for: those at and below ``target``, or it alone."""

    target: str = ""
    recurse: bool = True

    @property
    def everything(self) -> bool:
        """Whether all wrapped modules are meant."""
        return not self.target and self.recurse

    @property
    def alone(self) -> str:
        """The argument that spares modules below."""
        return "" if self.recurse else ", recurse=False"


class Switch(NamedTuple):
    """A flag of wrapped modules that is set."""

    flag: Flag
    value: bool
    below: Below = Below()


class Retyped(NamedTuple):
    """The parameters at ``target``, whose gradients are of ``dtype``, or of any (None)."""

    target: str
    dtype: Dtype | None


class Choice(NamedTuple):
    """A choice of swarms: in ``percent`` of the cases that have any extension.

    ``place`` is the order of drawing: changing it changes what every seed generates. ``excludes``:
    choices that do not go together with it; ``excluded_by``: those that it does not go together
    with. ``needed_by``: choices that would rarely come to anything without it. ``brings``: choices
    that are made more often where this one is, as it has code of its own for them. ``new``:
    engines older than ``fully_shard`` have nothing for it. ``of_stages``: it may be combined with
    pipelining.
    """

    name: str
    percent: int
    place: int
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    excluded_by: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    new: bool = False
    of_stages: bool = False


AMID_STEPS = ("step_begins", "before_second_forward", "before_backward", "between_rounds")
"""Where what needs no gradients may come within a step."""


class Op(Part, frozen=True, kw_only=True):
    """One op of a schedule. It names modules by their path from the root, ``""`` for the root
    itself.
    """

    lane: ClassVar[str] = "switches"
    """What it is about, by which drawings of a schedule have lanes: a ``forward`` or ``backward``,
    the ``optimizer``, the ``sharding`` of modules, a ``state`` dict, or what ``switches``
    something.
    """
    meanings: ClassVar[Mapping[str, str]] = {}
    """What each of its :meth:`features` means."""
    choices: ClassVar[tuple[Choice, ...]] = ()
    comes: ClassVar[tuple[Sequence[str], int]] = ((), 0)
    """The moments (:class:`Run`) at which what is :meth:`drawn` comes, and in how many percent of
    them, in cases whose swarm makes its first choice.
    """
    never: ClassVar[Mapping[Moment, Never]] = {}
    """The moments at which it is not called, and why. At all others it may be drawn."""
    says: ClassVar[str] = ""
    """Its :meth:`statement`, of ``op``, the expression ``at`` its target, ``alone`` and
    ``others``.
    """
    sources: ClassVar[str] = ""
    """The functions that its statements call and torch does not have, and what these and no other
    statements import.
    """
    looks: ClassVar[tuple[str, ...]] = ()
    """What it may have changed, which oracles look at
    (:attr:`fuzzshard.parts.oracle.Oracle.looks`): how parameters are ``registered``, their values
    (``parameters``), ``trained`` and ``corrupted`` ones, states that all ranks have ``stepped``,
    ``buffers``, ``inputs``, ``gradients``, ``unreduced`` ones, states of the ``optimizer``, the
    state ``dict``, one that was ``taken`` earlier.
    """
    updates: ClassVar[bool] = False
    """Whether the optimizer makes a step."""
    uses_gradients: ClassVar[bool] = False
    """Whether it uses what backwards have accumulated, or zeroes it."""
    aborts: ClassVar[bool] = False
    """Whether an exception ends the iteration that it runs."""
    takes_state: ClassVar[bool] = False
    """Whether it takes or loads a state dict, for which parameters are registered sharded."""
    loads: ClassVar[bool] = False
    of_optimizer: ClassVar[bool] = False
    """Whether it calls a method of the optimizer."""
    sets_mode: ClassVar[bool] = False
    """Whether it sets how forwards run, and touches no parameter."""

    @property
    def tag(self) -> str:
        """Its name in JSON."""
        return str(self.__struct_config__.tag)

    # Fields of some ops, with what the others say:

    @property
    def target(self) -> str:
        """The module or parameter that it is for."""
        return ""

    @property
    def ranks(self) -> Ranks:
        """Where it runs."""
        return "all"

    @property
    def via(self) -> Via | None:
        """How it saves model and optimizer."""
        return None

    # What follows from fields:

    @property
    def zeroes(self) -> Zeroed | None:
        """How gradients are after it, if it zeroes them."""
        return None

    @property
    def call(self) -> Call | None:
        """The forward that it runs, if it runs a whole one."""
        return None

    @property
    def begins(self) -> Call | None:
        """The forward that it begins, whether that comes to its end or not."""
        return self.call

    @property
    def takes(self) -> Taking | None:
        """The backward that it runs."""
        return None

    @property
    def below(self) -> Below | None:
        """The wrapped modules that it is for, where it is for some of them."""
        return None

    @property
    def retypes(self) -> Retyped | None:
        """The ``grad_dtype`` that it sets."""
        return None

    @property
    def casts_to(self) -> Literal["float32", "float64"] | None:
        """The dtype of everything from now on."""
        return None

    @property
    def rebuilds(self) -> tuple[int, ...] | None:
        """The data-parallel axes of the mesh that model and optimizer are built anew on,
        ``(shard,)`` or ``(replicate, shard)``, or none for the mesh that there is; None where they
        are not.
        """
        return None

    @property
    def wants_sharded(self) -> bool:
        """Whether it changes sharded parameters, or reads them or their gradients, or keeps
        them.
        """
        return False

    @property
    def replaces_parameters(self) -> bool:
        """Whether parameters are other tensors, or of another dtype, after it."""
        return self.casts_to is not None or self.rebuilds is not None

    @property
    def restored_by(self) -> Op | None:
        """The op that undoes it, where it is one of two that belong together."""
        return None

    def follow(self, at: ScheduleState) -> None:
        """Apply it to the state before it, on a rank where it runs."""

    def misfits(self, at: Checker) -> Reasons:
        """Yield why it cannot be meant at this point of a run, and what to do."""
        return iter(())

    def features(self, at: ScheduleState) -> Iterator[str]:
        """Yield the features that it gives a case; by default the one of :attr:`meanings`."""
        return iter(self.meanings if len(self.meanings) == 1 else ())

    def statement(self, index: int, *losses: int) -> str:
        """Return a line of a program; ``losses`` are the forwards whose losses it takes."""
        alone = self.below.alone if self.below else ""
        others = "" if self.ranks == "all" else "if rank > 0: "
        return self.says.format(op=self, at=expression(self.target), alone=alone, others=others)

    def noun(self, *, no_sync: bool = False) -> str:
        """Return what it is called in a sentence; with ``no_sync`` engines have that in place of
        flags.
        """
        words = self.tag.replace("_", " ")
        return f"{words} of {self.target}" if self.target else words

    def statements(self, scope: Scope) -> list[str]:
        """Write what ranks execute and scripts print."""
        return self.settings(scope)

    def settings(self, scope: Scope) -> list[str]:
        """Write what sets something, of which a model that is built anew is told again."""
        return []

    def run(self, trainer: Trainer, index: int) -> bool | None:
        """Runs it on a rank; False where it had nothing to differentiate."""
        trainer.execute(self.statements(trainer.engine.scope))
        if self.replaces_parameters:
            trainer.forget_tensors()
        return None

    @classmethod
    def draw(cls, run: Run, moment: str) -> None:
        """Adds some to a schedule that is drawn, or none; ``moment`` is where (:class:`Run`): at
        first what comes between steps. By default as :attr:`comes` says.
        """
        moments, percent = cls.comes
        if moment in moments and run.allows(cls.choices[0].name, percent):
            run.add(*cls.drawn(run))

    @classmethod
    def draw_at(cls, run: Run, moment: Moment) -> tuple[Op, ...]:
        """Return the ops in a row that are called once more, at ``moment`` or where it begins; or
        none: by default what is :meth:`drawn`, in cases whose swarm makes its first choice.
        """
        chosen = bool(cls.choices) and cls.choices[0].name in run.swarm
        return cls.drawn(run) if chosen else ()

    @classmethod
    def drawn(cls, run: Run) -> tuple[Op, ...]:
        """Return the ops in a row that one choice draws."""
        return ()


class OnGroups(Op, frozen=True, kw_only=True):
    """An op for wrapped modules: those at and below its target, unless it does not ``recurse``."""

    @property
    def recurse(self) -> bool:
        """Whether the op also applies to modules below its target."""
        return True

    @property
    @override
    def below(self) -> Below:
        return Below(self.target, self.recurse)


def names_rank(ranks: Ranks, rank: int) -> bool:
    """Return whether what is for ``ranks`` concerns ``rank``."""
    return ranks == "all" or rank > 0


def expression(path: str) -> str:
    """Return the expression for the module at ``path``; the root is ``model``.

    Raises :class:`UsageError` for what is no path: it comes from a file, and would be run.
    """
    return f"model.{check_path(path)}" if path else "model"


Features = Iterator[str]
Reasons = Iterator[tuple[str, str]]
"""Why something is refused, and what to do about it or the source of that."""
