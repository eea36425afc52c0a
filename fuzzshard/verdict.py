"""What a world says about a Case. Shared by ranks and the coordinator; no torch import."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from fuzzshard.parts import oracles
from fuzzshard.parts.engines import implementation
from fuzzshard.parts.oracle import Oracle, Severity, TensorType


class Status(enum.StrEnum):
    """The outcome of a Case.

    ``REJECTED``: an engine refused with a documented error and nothing else went wrong.
    ``INCONCLUSIVE``: a finding that did not repeat on fresh ranks.
    ``INFRA``: the fault of the machine, or of fuzzshard; says nothing about torch.
    """

    PASS = "PASS"
    DIVERGENCE = "DIVERGENCE"
    CRASH = "CRASH"
    HANG = "HANG"
    REJECTED = "REJECTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INFRA = "INFRA"

    @property
    def is_finding(self) -> bool:
        """Whether this outcome accuses an engine."""
        return self in (Status.DIVERGENCE, Status.CRASH, Status.HANG)


class Note(NamedTuple):
    """Why an engine was not judged, or not to the end; its text stands in verdicts."""

    kind: Literal["refused", "not applicable", "raised as expected"]
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def is_excluded(note: str) -> bool:
    """Tell whether it is the text of a :class:`Note` that documentation excludes the case."""
    return note.startswith("not applicable: ")


class Finding(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """One broken rule.

    ``oracle`` names the rule, one of :data:`fuzzshard.parts.oracles.ORACLES`. ``engine`` breaks
    it; other engines that have the same bits are in ``agrees_with``. ``op`` is the index into the
    schedule (-1: none), ``name`` the FQN or output that differs. ``error`` and ``bound`` are
    absolute, in the tensor's unit; a bound of 0 means bitwise equality was required. ``detail``
    tells kinds of one oracle's findings apart. ``precise`` is the finer run that it was judged in
    (:data:`fuzzshard.analysis.dtypes.FINER`), empty for the precision of the case.
    """

    oracle: str
    engine: str
    observed: str
    expected: str
    op: int = -1
    name: str = ""
    rank: int = 0
    comparison: str = msgspec.field(default="invariant", name="rung")
    error: float | None = None
    bound: float | None = None
    detail: str = ""
    agrees_with: tuple[str, ...] = ()
    precise: str = ""

    @property
    def engines(self) -> str:
        """The engine and those that agree with it, in words."""
        return " and ".join((self.engine, *self.agrees_with))

    @property
    def shared(self) -> bool:
        """Whether engines of different implementations have the same bits, and the reference has
        others: the reference may be wrong, or code that the engines share.

        Those of one implementation are expected to be wrong in the same way.
        """
        ours = implementation(self.engine)
        return any(implementation(other) != ours for other in self.agrees_with)

    @property
    def doubt(self) -> str:
        """What a reader has to know of a finding that is :attr:`shared`; empty of any other."""
        if not self.shared:
            return ""
        return (
            f"{self.engines} agree with each other bit for bit: code that they share may be "
            "wrong, or the reference"
        )

    @property
    def rule(self) -> Oracle:
        """The oracle."""
        return oracles.named(self.oracle)

    @property
    def severity(self) -> Severity:
        """What it does to whoever trains."""
        harm = self.rule.severity(self.detail)
        is_empty = self.type_due is not None and 0 in self.type_due.shape
        return Severity.LAYOUT if harm is Severity.SILENT and is_empty else harm

    @property
    def internal(self) -> bool:
        """Whether only an instrument can see it: what torch holds under private names, which hooks
        ran, what was sent.

        Whoever trains sees values and their layouts, what is registered, errors. Ranks that
        disagree about their collectives are no internal matter: some of them wait for ever, or
        reduce what does not belong together.
        """
        return self.severity is Severity.INTERNAL

    @property
    def type_due(self) -> TensorType | None:
        """What the tensor should be, where it is one and its values are not what is wrong."""
        return TensorType.read(self.expected)

    @property
    def of_values(self) -> bool:
        """Whether something computed is wrong, and not a shape, a dtype or how parameters are
        registered, say.
        """
        return self.rule.of_values and self.type_due is None


def is_internal(findings: Sequence[Finding]) -> bool:
    """Return whether all of ``findings`` can be seen by instruments only, and there are some."""
    return bool(findings) and all(finding.internal for finding in findings)


def severity_of(findings: Sequence[Finding]) -> Severity | None:
    """Return what ``findings`` do to whoever trains: what the first one does that a user can see.

    It is the first that goes wrong, whatever follows from it. None where there is no finding.
    """
    seen = next((finding for finding in findings if not finding.internal), None)
    return seen.severity if seen else Severity.INTERNAL if findings else None


def first_findings(findings: Sequence[Finding], most: int) -> tuple[Finding, ...]:
    """Return the first of ``findings``, at most ``most``, with one of those that a user can see if
    there is one.
    """
    kept = tuple(findings[:most])
    if not is_internal(kept):
        return kept
    return (*kept[: most - 1], next((f for f in findings if not f.internal), kept[-1]))


def signature_of(findings: Sequence[Finding]) -> str:
    """Return a stable name for a kind of finding: no step, no parameter name, no number.

    A lost collective shows as a hang, a SIGABRT or a reset connection, by chance; all three have
    the signature ``desync/<engine>``. A tensor that is missing, or there where none should be, is
    another kind than a wrong value, and another error than the expected one than none at all;
    leaks are told apart by what is left. It ends in ``/shared`` where engines agree with each
    other and not with the reference. Empty when there is no finding.
    """
    if not findings:
        return ""
    first = findings[0]
    return first.rule.signature(first.engine, first.detail) + "/shared" * first.shared


STRICTNESS = {
    "precision": 0,
    "bounded": 1,
    "bitwise": 2,
    "exact": 2,
    "invariant": 3,
}
"""How much a comparison demands; ``exact``, and ``bitwise`` of older entries, demand equal bits.
"""


class Compared(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """How an engine was compared with the reference.

    ``comparison`` is the kind that judged what differed: ``bitwise`` where nothing did,
    ``precision`` where half precision explains it. ``tensors`` counts the tensors that were
    compared, ``skipped`` those that differ where no digits are left to judge, or where the engine
    has no finer run that alone could; both add up over ranks.
    """

    comparison: str = msgspec.field(name="rung")
    tensors: int = 0
    skipped: int = 0

    def plus(self, other: Compared) -> Compared:
        """Return the same of several ranks: the comparison is the one that demands least."""
        return Compared(
            comparison=min(self.comparison, other.comparison, key=STRICTNESS.__getitem__),
            tensors=self.tensors + other.tensors,
            skipped=self.skipped + other.skipped,
        )


class Verdict(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The outcome of one run of a Case in a world.

    ``findings`` are in order of first appearance in the schedule; the first one is the primary
    one. ``notes`` say per engine why it was not judged (a refusal with torch's text, or not
    applicable). ``stacks`` hold the Python stack of every rank, for a hang or a death, and
    ``recordings`` what torch's flight recorder says on the ranks that hung, a JSON text each.
    ``comparison`` is the strictest kind by which tensors were judged; ``bitwise``: none differed.
    ``compared`` says the same of each engine that was compared (:class:`Compared`). ``tripped``
    are the known causes whose tripwires said that they occurred, ``ran`` the mends without which a
    case that lost no rank may have run differently.
    """

    status: Status
    findings: tuple[Finding, ...] = ()
    notes: dict[str, str] = {}
    stacks: dict[str, str] = {}
    recordings: dict[str, str] = {}
    comparison: str = msgspec.field(default="", name="rung")
    compared: dict[str, Compared] = {}
    seconds: float = 0.0
    message: str = ""
    tripped: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """The kind of finding (:func:`signature_of`)."""
        return signature_of(self.findings)

    @property
    def internal(self) -> bool:
        """Whether it is a finding that no user can see (:func:`is_internal`)."""
        return is_internal(self.findings)
