"""What every oracle says of itself; generic code asks this, and never which oracle it is.

An oracle is a rule over what ranks record. Thirteen of them compare a tensor of an engine with the
reference's (:class:`TensorOracle`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from typing_extensions import override

from fuzzshard.errors import UsageError

if TYPE_CHECKING:  # what an oracle is shown of the layers above, for types alone
    from torch import Tensor as Tensor

    from fuzzshard.case.case import Case as Case
    from fuzzshard.reproducer.assertion import Assertion as Assertion
    from fuzzshard.reproducer.assertion import Kind as Kind
    from fuzzshard.reproducer.scope import Scope as Scope
    from fuzzshard.reproducer.watch import Watch as Watch
    from fuzzshard.training.observer import Observer as Observer
    from fuzzshard.verdict import Finding as Finding
    from fuzzshard.world.messages import RankReport as RankReport
else:  # nobody looks at annotations when it runs
    Assertion = Case = Finding = Kind = Observer = RankReport = Scope = Tensor = Watch = None

MISSING = "missing"
UNEXPECTED = "unexpected"
"""Details of a finding: the engine has no tensor where the reference has one, or the other way
round.
"""


class Severity(enum.StrEnum):
    """What a finding does to whoever trains, the worst first.

    ``SILENT``: a result is wrong and nothing says so. ``HANG``: ranks wait for each other.
    ``CRASH``: an error, or a rank dies. ``LEAK``: memory, models or hooks stay. ``WARNING``: torch
    warns of what is not so. ``LAYOUT``: what is registered, or the shape of an empty tensor, is
    wrong, and no value. ``INTERNAL``: only an instrument sees it.
    """

    SILENT = "silent"
    HANG = "hang"
    CRASH = "crash"
    LEAK = "leak"
    WARNING = "warning"
    LAYOUT = "layout"
    INTERNAL = "internal"

    @classmethod
    def worst(cls, severities: Iterable[Severity]) -> Severity:
        """Return the first in the order above; raises :class:`ValueError` for none."""
        return min(severities, key=list(cls).index)


NOT_REFUSED = "not refused"
"""Detail of a finding: the engine trains on where its documentation announces an error."""

IN_SPEC = " in its spec"
"""Says in a finding of a dtype that a DTensor only claims to have."""

SAME_TYPE = 'assert observed == expected, f"rank {rank}: expected {expected}, observed {observed}"'


def lost(engine: str, detail: str) -> str:
    """Return the signature that all have as which a lost collective shows; else nothing."""
    return f"desync/{engine}" if detail in ("desync", "SIGABRT") else ""


_REMARKS = re.compile(
    r"\s*(\(Could this error message be improved\?.*?\)|from user code:\s.*"
    r"|Set TORCHDYNAMO_VERBOSE=1 .*)",
    re.DOTALL,
)
"""What torch adds to messages, for whoever runs the program."""


def without_remarks(message: str) -> str:
    """Return what a message of torch says of the error."""
    return _REMARKS.sub("", message)


def cut(text: str, length: int) -> str:
    """Return the first words of ``text``, with dots where more follows."""
    if len(text) <= length:
        return text
    words, _, _ = text[: length - 3].rpartition(" ")
    return f"{(words or text[: length - 4]).rstrip()} ..."


class TensorType(NamedTuple):
    """What a tensor is, values aside; its text stands in findings."""

    shape: tuple[int, ...]
    dtype: str
    device: str = ""
    """Where two devices differ."""

    def __str__(self) -> str:
        place = f", on {self.device}" if self.device else ""
        return f"a tensor of shape {list(self.shape)}, {self.dtype}{place}"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the type that has this text; None for any other text."""
        told = re.fullmatch(
            r"a tensor of shape \[([\d, ]*)\], ((?:torch\.)?\w+)(?:, on (.+))?", text
        )
        if told is None:
            return None
        return cls(tuple(map(int, re.findall(r"\d+", told[1]))), told[2], told[3] or "")

    @property
    def expression(self) -> str:
        """Return shape and dtype as a tuple."""
        return f"({list(self.shape)}, {self.dtype})"


Tensors = Iterable[tuple[str, "Tensor | None"]]
Loses = Literal["", "raised", "raised otherwise", "died", "hung"]
"""How ranks are lost: an engine raised, or raised another error than the expected one."""


class Oracle:
    """One rule."""

    name: ClassVar[str] = ""
    place: ClassVar[int] = 0
    """Its place among all, the one nearest to the cause first: that is primary when several rules
    break at one op.
    """
    loses: ClassVar[Loses] = ""
    of_values: ClassVar[bool] = True
    """Whether it says that something computed is wrong, and not how parameters are registered,
    say.
    """
    tells_apart: ClassVar[bool] = False
    """Whether each of its details is another kind of finding."""
    needs_finding: ClassVar[bool] = False
    """Whether a signature is not enough to write a script."""
    across_ranks: ClassVar[str] = ""
    """What it expects of all ranks together, where no rank can check it alone."""
    stops_at_op: ClassVar[bool] = False
    """Whether its scripts look at what an op does, not at what it leaves behind."""
    takes_parameters: ClassVar[bool] = False
    """Whether its scripts look at ``params``."""

    looks: ClassVar[tuple[str, ...]] = ()
    """What an op may have changed for it to be recorded (:attr:`fuzzshard.parts.op.Op.looks`)."""

    def record(self, seen: Observer, index: int, look: str) -> None:
        """Records what there is after the op at ``index``, which may have changed ``look``."""
        raise NotImplementedError

    # Of findings:

    harm: ClassVar[Severity] = Severity.SILENT
    """What its findings do to whoever trains."""
    rests_on: ClassVar[str] = ""
    """What says that it sees its findings (:attr:`fuzzshard.instruments.Instrument.sees`)."""

    def severity(self, detail: str) -> Severity:
        """Return how bad findings with this ``detail`` are: :attr:`harm`, unless overridden."""
        return self.harm

    def instrument(self, detail: str) -> str:
        """Return the instrument that findings with this ``detail`` rest on: :attr:`rests_on`,
        unless overridden.
        """
        return self.rests_on

    def signature(self, engine: str, detail: str) -> str:
        """Return a stable name for a kind of finding."""
        told_apart = detail and (self.tells_apart or detail in (MISSING, UNEXPECTED))
        return f"divergence/{engine}/{self.name}{f'/{detail}' if told_apart else ''}"

    # Ranks against each other:

    def observed(self, case: Case, rank: int, report: RankReport, engine: str) -> tuple[str, str]:
        """Return a name that ranks share which are compared, and what one of them has."""
        raise NotImplementedError

    # Words:

    title: ClassVar[str] = "{observed}"
    """What goes wrong, of ``name``, ``observed`` and ``expected``; ``ends`` says how ranks do."""
    sentence: ClassVar[str] = ""
    """The same of ``who`` trains, where more is to be said: ``brief`` is the beginning of
    ``observed``.
    """
    basis: ClassVar[str] = ""
    """The rule that is broken, and where it comes from, of ``expected`` and ``truth``, which
    describes the reference.
    """

    def headline(self, finding: Finding, *, ends: str) -> str:
        """Say what goes wrong, for a title."""
        observed = " ".join(finding.observed.split())
        return self.title.format(
            name=finding.name, observed=observed, expected=finding.expected, ends=ends
        )

    def consequence(self, finding: Finding) -> str:
        """Say what users have of it, where they may not know."""
        return ""

    # Scripts:

    asserts: ClassVar[Kind] = "alone"

    def assertion(self, case: Case, finding: Finding, assertion: Assertion) -> Assertion | None:
        """Return what a script asserts; ``assertion`` has the engine and this oracle."""
        return assertion.at(finding) if self.stops_at_op else assertion.but(kind=self.asserts)

    def before(self, scope: Scope) -> list[str]:
        """Write what comes before the model is wrapped."""
        return []

    def around(self, scope: Scope, lines: list[str]) -> list[str]:
        """Write the statements of the op that is looked at, and what they must do."""
        return lines

    def within(self, scope: Scope, built: list[str], lines: list[str]) -> list[str]:
        """Write the whole run: the model is built, then come the ops."""
        return [*built, *lines]

    def after(self, scope: Scope) -> list[str]:
        """Write the assertion after the run."""
        return []


class LostRanks(Oracle):
    """Ranks do not come to the end of the schedule."""

    harm = Severity.CRASH
    basis = (
        "{truth}, makes the same calls without an error, and torch documents no refusal of them."
    )

    @override
    def severity(self, detail: str) -> Severity:
        """A lost collective is a hang, by whatever error gloo shows it."""
        return Severity.HANG if lost("", detail) else self.harm


class Demanded(Oracle):
    """An error or a warning that is documented, or that is none."""

    needs_finding = True
    basis = "the documentation demands {expected}."


class Invariant(Oracle):
    """What every correct ``fully_shard`` keeps within, whatever it does when."""

    of_values = False
    harm = Severity.INTERNAL
    needs_finding = stops_at_op = True
    basis = (
        "collectives and hooks keep to the documented policies of wrapped modules: each group "
        "gathers and reduces once, in the documented dtypes."
    )


class AcrossRanks(Oracle):
    """Ranks are compared with each other."""

    basis = "ranks are compared with each other, so no reference is needed."


class TensorOracle(Oracle):
    """Compares a tensor of an engine with the reference's."""

    gradient: ClassVar[Literal["", "input", "reduced", "local", "waiting"]] = ""
    """Which gradient it is: of an input; of a parameter, and reduced over the mesh, with this
    rank's unreduced part in it, or waiting for its reduction.
    """
    of_forward: ClassVar[bool] = False
    """Whether a forward computes it."""
    is_loss: ClassVar[bool] = False
    """Whether cases that observe losses only have it."""
    is_weight: ClassVar[bool] = False
    """Whether it is what replicas have copies of, and steps train."""
    is_state: ClassVar[bool] = False
    """Whether it is what a load brings back: states of the optimizer are there or not."""
    of_buffers: ClassVar[bool] = False
    """Whether buffers are all that it has."""
    dtype: ClassVar[Literal["same", "observed", "wider"]] = "same"
    """Which dtype is due: the reference's, any, or one that is not narrower."""
    gathered: ClassVar[bool] = True
    """Whether FSDP1 has more than its flat parameters of it."""
    in_flat: ClassVar[bool] = False
    """Whether FSDP1 has a range of a flat tensor in place of it."""
    held: ClassVar[bool] = False
    """Whether a script has a variable for the parameter that it is of."""
    what: ClassVar[str] = ""
    """What it is, in a title."""
    thing: ClassVar[str] = ""
    """What it is of, in a sentence, with ``{name}``."""

    value: ClassVar[str] = ""
    over: ClassVar[str] = "n, p in params.items()"
    """The expression for one of them, and what a comprehension goes over; with ``model`` and
    ``called`` (:class:`fuzzshard.reproducer.scope.Scope`). Empty for what :meth:`pairs` names.
    """
    single: ClassVar[str] = ""
    """The expression for the ``one`` that is looked at."""

    def tensors(self, seen: Observer) -> Tensors:
        """Return what there is to record, by name."""
        return ()

    @override
    def record(self, seen: Observer, index: int, look: str) -> None:
        for name, tensor in self.tensors(seen):
            flat = seen.engine.flat_range(name) if self.in_flat else None
            seen.keep(self, index, name, tensor, flat)

    @override
    def headline(self, finding: Finding, *, ends: str) -> str:
        what = self.what or self.name
        if finding.detail == MISSING:
            return f"{what} is None where plain training has one"
        if finding.detail == UNEXPECTED:
            return f"{what} is there where plain training has none"
        wrong = "has the wrong shape or dtype" if finding.type_due else "is silently wrong"
        return f"{what} {wrong}"

    def said(self, finding: Finding) -> str:
        """Name the tensor of a finding, as the subject of a sentence."""
        name = finding.name
        return self.thing.format(name=name) if self.thing else name[:1].upper() + name[1:]

    @override
    def assertion(self, case: Case, finding: Finding, assertion: Assertion) -> Assertion | None:
        """Return None: any tensor is compared with the reference's."""
        return None

    def one(self, watch: Watch, index: int) -> str:
        """Write the expression for the one tensor that is looked at after an op."""
        if self.single:
            return self.single.format(one=watch.parameter or watch.scope.at(watch.assertion.name))
        return self.pairs(watch, index)[watch.assertion.name]

    def pairs(self, watch: Watch, index: int) -> dict[str, str]:
        """Return the expressions of tensors that stand in variables of their own, by name."""
        return {}

    def entries(self, watch: Watch, index: int) -> str:
        """Write a dict comprehension over what has a name in the model."""
        if not self.value or (self.of_buffers and not watch.has_buffers):
            return ""
        scope = watch.scope
        called = {"model": scope.model, "called": scope.called}
        called["registered"] = scope.script.named_parameter(scope.model, "n")
        value, over = self.value.format_map(called), self.over.format_map(called)
        return watch.entries(index, value, over, oracle=self.name)


class StateOracle(TensorOracle):
    """What the optimizer has of every parameter it holds, under names like ``exp_avg of a.b``.

    It may be on any device: it is made where its parameter is, which may be offloaded.
    """

    is_state = in_flat = True
    gathered = False

    @override
    def record(self, seen: Observer, index: int, look: str) -> None:
        for name, state in seen.optimizer_states():
            seen.keep(self, index, name, state)

    @override
    def one(self, watch: Watch, index: int) -> str:
        self._check_states(watch)
        state, _, fqn = watch.assertion.name.partition(" of ")
        return f'optimizer.state.get({watch.scope.at(fqn)}, {{}}).get("{state}")'

    @override
    def entries(self, watch: Watch, index: int) -> str:
        self._check_states(watch)
        names = watch.case.optimizer.states
        value, over = "optimizer.state.get(p, {}).get(k)", f"{self.over} for k in {names}"
        return watch.entries(index, value, over, name="{k} of {n}", oracle=self.name)

    def _check_states(self, watch: Watch) -> None:
        if self.name in watch.scope.engine.differs_in:
            raise UsageError(
                "a rank has the states of some parameters only, and which is private to torch",
                "replay the case",
            )


class ParameterGradient(TensorOracle):
    """What ``.grad`` of the trained parameters has."""

    looks = ("gradients",)
    in_flat = held = True
    value = "p.grad"
    single = "{one}.grad"

    @override
    def tensors(self, seen: Observer) -> Tensors:
        return seen.gradients(self.gradient)
