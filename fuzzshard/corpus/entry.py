"""One corpus entry: a Case, what it showed, where, and how to show it again.

On disk an entry is a folder ``findings/<slug>/`` with ``case.json`` (this struct), ``repro.py``
(the standalone script) and ``unshrunk.json`` (the Case as it was first found). ``corpus/codec.py``
writes and reads it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from fuzzshard.case import codec
from fuzzshard.case.case import Case
from fuzzshard.corpus.lifecycle import Lifecycle, release
from fuzzshard.corpus.portable import portable_findings, portable_stacks
from fuzzshard.parts.oracle import Severity
from fuzzshard.verdict import Finding, Status, Verdict, is_internal, severity_of

FORMAT = 4
"""Of the file. Release 0.1.0 reads no other; what was saved before it has been rewritten."""

Link = Annotated[str, msgspec.Meta(pattern=r"^(https?://\S+)?\Z")]


CONTRACT = "contract"
"""The note of an entry that says what the documentation promises, in its words and with its
place.
"""

LOOKED_UP = "looked_up"
"""The note of an entry that says when and how an issue was looked for, and what came near."""


class Confirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often a finding came back: ``reproduced`` of ``runs`` runs in fresh worlds.

    ``others`` counts what the other runs showed, by status or signature.
    """

    runs: int = 0
    reproduced: int = 0
    others: dict[str, int] = {}

    @property
    def flaky(self) -> bool:
        """Whether the finding stayed away in some of the runs."""
        return self.reproduced < self.runs

    @property
    def absent(self) -> bool:
        """Whether the finding had its chance and did not come back at all."""
        return self.runs > 0 and self.reproduced == 0

    def plus(self, outcome: str, *, reproduced: bool) -> Confirmation:
        """Return it with one more run, which showed ``outcome``."""
        if reproduced:
            return msgspec.structs.replace(
                self, runs=self.runs + 1, reproduced=self.reproduced + 1
            )
        others = {**self.others, outcome: self.others.get(outcome, 0) + 1}
        return msgspec.structs.replace(self, runs=self.runs + 1, others=others)

    def text(self) -> str:
        """Return ``"3 of 3 runs"``, or ``"flaky, 4 of 10 runs (PASS in 6)"``."""
        rate = f"{self.reproduced} of {self.runs} runs"
        if not self.flaky:
            return rate
        others = ", ".join(f"{outcome} in {count}" for outcome, count in self.others.items())
        return f"flaky, {rate}" + (f" ({others})" if others else "")


class Culprit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One change that makes the case smaller and the finding go away: what takes part in it, and
    how.

    ``change`` says it in words that complete "the finding goes away ...", ``outcome`` is what the
    changed case showed: a status or another signature.
    """

    change: str
    outcome: str


class CorpusEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A Case with its expectation.

    ``status`` PASS with an empty ``signature`` is a plain regression case. ``torch``, ``device``
    and ``mesh`` say where the finding was seen, ``preload`` what else was loaded there (replaying
    never loads it by itself: nothing that is read is executed). ``replay`` is the command to run,
    in the directory of the campaign or in its corpus. ``stacks`` name files as Python imports
    them.

    ``lifecycle`` is None where no finding is recorded. ``bad_on`` and ``good_on`` are the releases
    of torch that showed the finding on this kind of device, and did not; ``issue`` links to where
    it was reported. ``cause`` is the name of the mend that cures it (:mod:`fuzzshard.mends`),
    empty where there is none yet. ``unshrunk``: nothing has made the case smaller yet, or what did
    was cut off; the same command goes on with it. ``reduced`` is the :func:`script_digest` of a
    script that is smaller than those which are written of its case.
    """

    format: int = FORMAT
    signature: str = ""
    status: Status = Status.PASS
    lifecycle: Lifecycle | None = None
    bad_on: tuple[str, ...] = ()
    good_on: tuple[str, ...] = ()
    issue: Link = ""
    cause: str = ""
    comparison: str = msgspec.field(default="", name="rung")
    torch: str = ""
    device: Literal["", "cpu", "cuda"] = ""
    mesh: str = ""
    preload: tuple[str, ...] = ()
    replay: str = ""
    confirmed: Confirmation | None = None
    unshrunk: bool = False
    reduced: str = ""
    culprits: tuple[Culprit, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: dict[str, str] = {}
    stacks: dict[str, str] = {}
    case: Case

    @property
    def flaky(self) -> bool:
        """Whether the finding stayed away in some of the confirming runs."""
        return self.confirmed is not None and self.confirmed.flaky

    @property
    def is_confirmed(self) -> bool:
        """Whether it is a finding that came back on fresh ranks, be it shrunk or not."""
        return self.status.is_finding and self.confirmed is not None

    @property
    def severity(self) -> Severity | None:
        """What its finding does to whoever trains; None where no finding is recorded."""
        return severity_of(self.findings)

    @property
    def internal(self) -> bool:
        """Whether its finding is one that no user can see."""
        return is_internal(self.findings)


def make_entry(
    case: Case,
    verdict: Verdict,
    info: Mapping[str, str],
    *,
    preload: tuple[str, ...] = (),
    confirmed: Confirmation | None = None,
    unshrunk: bool = False,
    culprits: tuple[Culprit, ...] = (),
) -> CorpusEntry:
    """Return the entry for ``verdict`` on ``case``; ``info`` is that of the world (keys ``torch``,
    ``backend``).
    """
    lifecycle = Lifecycle.FLAKY if confirmed is not None and confirmed.flaky else Lifecycle.OPEN
    return CorpusEntry(
        signature=verdict.signature,
        status=verdict.status,
        lifecycle=lifecycle if verdict.signature else None,
        bad_on=(release(info["torch"]),) if verdict.signature else (),
        comparison=verdict.comparison,
        torch=info["torch"],
        device="cuda" if "nccl" in info["backend"] else "cpu",
        mesh=case.mesh.text(),
        preload=preload,
        confirmed=confirmed,
        unshrunk=unshrunk,
        culprits=culprits,
        findings=portable_findings(verdict.findings),
        notes=verdict.notes,
        stacks=portable_stacks(verdict.stacks),
        case=case,
    )


def bare_entry(case: Case) -> CorpusEntry:
    """Return what a file with nothing but a case stands for: it is expected to pass."""
    return CorpusEntry(case=case, mesh=case.mesh.text())


def digest(case: Case) -> str:
    """Return eight hex digits that are the same for equal cases, in every process and on every
    machine.
    """
    return hashlib.sha256(codec.encode(case)).hexdigest()[:8]


def script_digest(script: str) -> str:
    """Return sixteen hex digits that are the same for equal scripts."""
    return hashlib.sha256(script.encode()).hexdigest()[:16]


def slug(signature: str, case: Case) -> str:
    """Return the folder name of an entry: ``divergence-fully_shard-gradient-1f3a09bc``."""
    return f"{_slug_words(signature)}-{digest(case)}"


def is_slug(name: str, signature: str) -> bool:
    """Return whether :func:`slug` may have named the folder of an entry so, whose case was larger
    then.
    """
    return name.startswith(f"{_slug_words(signature)}-")


def _slug_words(signature: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", signature).strip("-")[:80] or "case"
