"""Tell new findings from those that are in the corpus already, or are being shrunk."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from fuzzshard.analysis.features import features
from fuzzshard.campaign.likely import Example, Experience
from fuzzshard.case.case import ALL_ENGINES, Case, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.contracts import installed_torch
from fuzzshard.corpus.codec import entry_or_none
from fuzzshard.corpus.entry import Confirmation, CorpusEntry
from fuzzshard.corpus.expectation import Expected, expected, seen_elsewhere
from fuzzshard.corpus.store import CASE_FILE, UNSHRUNK_FILE, entry_files
from fuzzshard.identity import shows
from fuzzshard.parts.leaves import affine
from fuzzshard.parts.ops import training
from fuzzshard.verdict import Finding, Status, Verdict

MAX_PARKED = 8
"""Cases per signature kept aside while another world works on that signature; more are only
counted.
"""

CUT_OFF = -1
"""The index of a case whose finding is on disk, and whose verdict did not reach the journal."""
NO_VERDICT = Verdict(status=Status.INFRA, message="cut off while it was saved")
"""Of a case that is on disk without one: it is judged again."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A case of the stream with a finding; ``path`` is where it is saved, once it is.

    ``smaller`` is what an earlier session had shrunk it to when it was cut off. ``untold``: it was
    cut off before anybody heard of it. ``before``: another campaign found it, so it is no news.
    """

    index: int
    case: Case
    verdict: Verdict
    path: Path | None = None
    smaller: Case | None = None
    untold: bool = False
    before: bool = False


_PLAIN = Case(
    seed=0,
    model=Block(
        children=(Child(name="linear0", module=affine(2, bias=False)),),
        nodes=(Call(name="h0", module="linear0", args=("x",)),),
        outputs=("h0",),
    ),
    inputs=Inputs(batch=1, tensors=(TensorSpec(size=2),)),
    mesh=Mesh(shard=2),
    wrap=(WrapGroup(modules=("",)),),
    schedule=training(0),
    engines=ALL_ENGINES,
)
"""The plainest training there is, under every engine: what it has, defaults of engines included,
causes nothing."""


def cause_of(minimal: Case, found: Case) -> frozenset[str]:
    """Return the features that make a finding: those that the minimal case and the one that it was
    shrunk from share, without those of the plainest training.

    What only the minimal case has came in by simplifying. What is off (float64, Gaussian values)
    in one of the two and plain in the other is no cause either.
    """
    return (features(minimal) & features(found)) - features(_PLAIN)


@dataclasses.dataclass
class Known:
    """A distinct finding, of this campaign or saved before it, and the number of cases it
    explains.

    ``cause`` are the features (:func:`cause_of`) that all cases which were shrunk to it share. It
    is ``internal`` when no user can see it. ``elsewhere`` has what its entry recorded under
    another release of torch than this one.
    """

    signature: str
    path: Path
    cause: frozenset[str]
    hits: int = 1
    confirmed: Confirmation = dataclasses.field(default_factory=Confirmation)
    saved_before: bool = False
    internal: bool = False
    elsewhere: tuple[Finding, ...] = ()

    def is_shown_by(self, verdict: Verdict) -> bool:
        """Return whether ``verdict``, of this release of torch, is this finding."""
        return shows(verdict, self.signature, self.elsewhere)


class Claims(Protocol):
    """Which signatures campaigns on other nodes work on (:mod:`fuzzshard.campaign.exchange`)."""

    def take(self, signature: str) -> bool:
        """Return whether this campaign may work on ``signature`` now."""

    def give(self, signature: str) -> None:
        """Note that it does so no longer."""


class Registry:
    """Decides what a finding is; may be used from any thread.

    ``unresolved`` are the folders of findings that could not be confirmed, shrunk or shown by a
    script before the campaign ended; ``suspects`` those of cases that failed, and of which nobody
    knows yet whether known bugs are why. ``num_explained`` entries of the corpus have a cause that
    mends know. ``experience`` has what mends of torch have cured.

    What they cure is counted by its causes, and is nothing else's hit. Any other finding is a
    *hit* of a known one that its verdict shows (:mod:`fuzzshard.identity`) if its case has all the
    features of its cause: nothing says that it is another. While a world works on a signature,
    further cases with it are parked, and looked at again afterwards.
    """

    def __init__(self) -> None:
        self.known: list[Known] = []
        self._known_at: dict[Path, Known] = {}
        self._unresolved: list[Found] = []
        self.suspects: list[Path] = []
        self.num_flaky = 0
        self.num_explained = 0
        self.experience = Experience()
        self._claimed: dict[str, Found] = {}
        self._busy: dict[str, list[Found]] = {}
        self.claims: Claims | None = None
        self._elsewhere: set[str] = set()
        self._lock = threading.Lock()

    def hit(self, found: Found) -> Known | None:
        """Return the known finding that explains ``found``, as it is with this hit counted."""
        present = features(found.case)
        with self._lock:
            known = self._explaining(found, present)
            if known is None:
                return None
            known.hits += 1
            return dataclasses.replace(known)

    def explains(self, found: Found) -> bool:
        """Return whether a known finding explains ``found``."""
        present = features(found.case)
        with self._lock:
            return self._explaining(found, present) is not None

    def _explaining(self, found: Found, present: frozenset[str]) -> Known | None:
        for known in self.known:
            if known.cause <= present and known.is_shown_by(found.verdict):
                return known
        return None

    def crowded(self, signature: str) -> bool:
        """Return whether enough cases with this signature are parked already."""
        with self._lock:
            return len(self._busy.get(signature, ())) >= MAX_PARKED

    def claim(self, found: Found) -> bool:
        """Return whether the caller may work on ``found``; if not, another world or node does and
        ``found`` is parked.
        """
        signature = found.verdict.signature
        with self._lock:
            if (parked := self._busy.get(signature)) is not None:
                parked.append(found)
                return False
            if self.claims is not None and not self.claims.take(signature):
                self._busy[signature] = [found]
                self._elsewhere.add(signature)
                return False
            self._busy[signature] = []
            self._claimed[signature] = found
            return True

    def settle(self, found: Found, known: Known | None) -> list[Found]:
        """Ends the work on ``found``, with what became of it; the parked cases to look at
        again.
        """
        signature = found.verdict.signature
        with self._lock:
            if known is not None:
                self._add(known)
            if self.claims is not None:
                self.claims.give(signature)
            del self._claimed[signature]
            return self._busy.pop(signature)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The signatures that cases are parked of because another node works on them."""
        with self._lock:
            return tuple(self._elsewhere)

    def return_from_elsewhere(self, signature: str) -> list[Found]:
        """Return the cases that were parked while another node worked on ``signature``."""
        with self._lock:
            self._elsewhere.discard(signature)
            return self._busy.pop(signature, [])

    def learn(self, known: Known) -> None:
        """Note that ``known`` was found before this campaign, or by another node."""
        with self._lock:
            self._add(known)

    def _add(self, known: Known) -> None:
        other = self._known_at.setdefault(known.path, known)
        if other is known:
            self.known.append(known)
        else:
            other.cause &= known.cause
            other.hits += known.hits

    def leave_unresolved(self, found: Found) -> None:
        """Note that the campaign ended before the work on ``found`` was done; it stays saved as
        far as it came.
        """
        assert found.path is not None
        with self._lock:
            if found.verdict == NO_VERDICT:
                self.suspects.append(found.path)
            else:
                self._unresolved.append(found)

    @property
    def unresolved(self) -> tuple[Path, ...]:
        """The folders of unfinished findings, also of those that a lost world has begun."""
        return tuple(dict.fromkeys(found.path for found in self._left() if found.path))

    @property
    def has_news(self) -> bool:
        """Whether this campaign has found something, be the work on it done or not."""
        return self.num_new > 0 or not all(found.before for found in self._left())

    def _left(self) -> list[Found]:
        with self._lock:
            return [*self._unresolved, *self._claimed.values()]

    def count_flaky(self) -> None:
        """Count one more finding that did not come back on fresh ranks."""
        with self._lock:
            self.num_flaky += 1

    def count_made(self, found: Found) -> None:
        """Count ``found`` as one that this campaign made, before it was continued, should it be
        saved already.
        """
        with self._lock:
            known = self._known_at.get(found.path) if found.path else None
            if known is not None and not found.before:
                known.hits += 1
                known.saved_before = False

    def all(self) -> tuple[Known, ...]:
        """Return every distinct finding, in the order in which they were settled."""
        with self._lock:
            return tuple(self.known)

    @property
    def num_new(self) -> int:
        """The number of distinct findings that this campaign made."""
        return sum(not known.saved_before for known in self.all())

    def new_text(self) -> str:
        """Return how many distinct findings this campaign made, in words."""
        made = self.num_new
        return f"{made} distinct finding{'' if made == 1 else 's'}"


def load_known(
    *corpora: Path,
    preload: Collection[str] | None = None,
    unfinished: Collection[Path] = (),
    mends: Collection[str] = (),
) -> Registry:
    """Return the findings saved below ``corpora``, as a campaign knows its own.

    Those that this torch does not have by what their entries say are none: one that shows is back,
    and news. Those whose cause is one of ``mends``, which tell of it better, are counted. With
    ``preload``, those of them that need no other preloaded files. Those in the folders
    ``unfinished``, which somebody is about to go on with, are left out until they are confirmed
    and shrunk. So are files that cannot be read: replaying says what is wrong with them.
    """
    registry = Registry()
    torch = installed_torch()
    for file in entry_files(corpus for corpus in corpora if corpus.exists()):
        entry = entry_or_none(file)
        if entry is None or expected(entry, torch, entry.device) is Expected.NOTHING:
            continue
        if entry.cause in mends:
            registry.num_explained += 1
            example = Example(entry.signature, cause_of(entry.case, entry.case))
            registry.experience.learn(entry.cause, example)
            continue
        elsewhere = preload is not None and not set(entry.preload) <= set(preload)
        is_finished = entry.is_confirmed and not entry.unshrunk
        is_settled = is_finished or file.parent not in unfinished
        if entry.status.is_finding and not elsewhere and is_settled:
            registry.learn(known_of(file, entry))
    return registry


def known_of(file: Path, entry: CorpusEntry) -> Known:
    """Return the finding of ``entry`` in ``file``, as one that nobody has met again so far."""
    return Known(
        entry.signature,
        file.parent,
        saved_cause(file, entry),
        hits=0,
        confirmed=entry.confirmed or Confirmation(),
        saved_before=True,
        internal=entry.internal,
        elsewhere=seen_elsewhere(entry, installed_torch()),
    )


def saved_cause(file: Path, entry: CorpusEntry) -> frozenset[str]:
    """Return the features that make the finding of ``entry`` in ``file`` (:func:`cause_of`).

    Where the case that it was found as cannot be read, they are those of the smallest case.
    """
    found = entry_or_none(file.with_name(UNSHRUNK_FILE)) if file.name == CASE_FILE else None
    return cause_of(entry.case, entry.case if found is None else found.case)
