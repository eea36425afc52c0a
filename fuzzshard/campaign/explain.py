"""What causes a finding: the mends of torch that make it go away. Used wherever cases are run."""

from __future__ import annotations

import bisect
import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from fuzzshard.campaign.judge import judge, judge_clearly, same_finding
from fuzzshard.case.case import Case
from fuzzshard.mending.mend import find_mend
from fuzzshard.parts.oracle import NOT_REFUSED
from fuzzshard.runner import Runner
from fuzzshard.verdict import Status, Verdict

Likely = Callable[[Case, str], Mapping[tuple[str, ...], float]]
"""How likely each set of mends is the cause of a finding of a case, by its signature, the
likeliest first; not those of which nothing is known.
"""


class Origin(enum.StrEnum):
    """Where a finding comes from.

    ``KNOWN``: torch as it is shows it, and not with mends; or what cannot be mended said that it
    occurred. ``NEW``: it shows in spite of all mends. ``MEND``: only mended torch shows it, so a
    mend is wrong; torch as it is may show a known bug, which the other mends cure. ``NONE``: there
    is no finding.
    """

    KNOWN = "known"
    NEW = "new"
    MEND = "mend"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A case on torch as it is (``stock``) and with all mends (``mended``), and what follows.

    ``causes`` are the smallest set of mends that cures a known finding, or the tripwires and
    signatures that tell of it; of a finding that only mended torch shows, the mends that it takes,
    or none where it does not show again.
    ``mended`` is None where nothing shows on torch as it is and nobody asked about mends.
    """

    origin: Origin
    stock: Verdict
    mended: Verdict | None = None
    causes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The causes of a known finding."""
        return self.causes if self.origin is Origin.KNOWN else ()

    @property
    def shown_by_stock(self) -> bool:
        """Whether torch as it is shows what mended torch shows, and no known bug in its place."""
        return self.mended is None or same_finding(self.stock, self.mended)

    @property
    def verdict(self) -> Verdict:
        """Return the verdict to report: that of unmodified torch, or that of mended torch if a
        known bug hides the finding without the mends. A finding that a mend makes is INFRA.
        """
        if self.origin is Origin.MEND and self.mended is not None:
            blamed = ", ".join(self.causes)
            seen = next((finding.observed for finding in self.mended.findings), "")
            said = f"only ({blamed}): a mend is wrong" if blamed else f"once and not again: {seen}"
            message = f"{self.mended.signature} shows with mends {said}"
            return Verdict(status=Status.INFRA, message=message)
        hidden = self.origin is Origin.NEW and not self.shown_by_stock
        return self.mended if hidden and self.mended is not None else self.stock


class OnMends:
    """A world whose torch has ``mends`` in every run."""

    def __init__(self, world: Runner, mends: tuple[str, ...]) -> None:
        self._world = world
        self._mends = mends

    @property
    def info(self) -> Mapping[str, str]:
        """As :attr:`Runner.info`."""
        return self._world.info

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """Do as :meth:`Runner.run` does, with ``mends`` besides."""
        return self._world.run(case, deadline=deadline, mends=(*self._mends, *mends))

    def restart(self) -> None:
        """Do as :meth:`Runner.restart` does."""
        self._world.restart()


class Counting(OnMends):
    """A world that says before each run how many there were before."""

    def __init__(self, world: Runner, tell: Callable[[int], None]) -> None:
        super().__init__(world, ())
        self._tell = tell
        self._done = 0

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """Do as :meth:`Runner.run` does."""
        self._tell(self._done)
        self._done += 1
        return super().run(case, deadline=deadline, mends=mends)


class OnBoth(OnMends):
    """A runner that shows what fails on torch as it is and on mended torch: no bug that is known.

    ``strict``: both have to show the same. Otherwise a known bug may hide on torch as it is what
    mended torch shows, whose verdict counts then.
    """

    def __init__(self, world: Runner, mends: tuple[str, ...], *, strict: bool) -> None:
        super().__init__(world, mends)
        self._strict = strict

    def run(
        self, case: Case, *, deadline: float | None = None, mends: tuple[str, ...] = ()
    ) -> Verdict:
        """Do as :meth:`Runner.run` does; what is known or only mended torch shows counts as
        passed.
        """
        mended = super().run(case, deadline=deadline, mends=mends)
        if not mended.status.is_finding:
            return mended
        if told(mended, self._mends):
            return Verdict(status=Status.PASS, message="known")
        stock = self._world.run(case, deadline=deadline, mends=mends)
        if same_finding(stock, mended) or not stock.status.is_finding:
            return stock
        if not _fails(mended, stock, self._mends):
            return Verdict(status=Status.PASS, message="a mend lifts what torch refuses")
        if self._strict:
            return Verdict(
                status=Status.PASS, message=f"{stock.signature}, and {mended.signature} with mends"
            )
        return mended


def told(mended: Verdict, mends: Sequence[str]) -> tuple[str, ...]:
    """Return the causes that tell of a finding of mended torch without mending it."""
    known = {name: find_mend(name) for name in mends}
    tripped = tuple(name for name, mend in known.items() if mend.slug in mended.tripped)
    by_signature = (name for name, mend in known.items() if mend.is_told_by(mended.signature))
    return tripped or tuple(by_signature)


def lifting(verdict: Verdict, mends: Sequence[str]) -> tuple[str, ...]:
    """Return the mends that lift the refusal whose absence is what ``verdict`` shows."""
    if not verdict.findings or verdict.findings[0].detail != NOT_REFUSED:
        return ()
    refusal = verdict.findings[0].name
    return tuple(name for name in mends if refusal in find_mend(name).lifts)


def able_to_cure(verdict: Verdict, mends: Sequence[str]) -> tuple[str, ...]:
    """Return the mends without those that lift the refusal that ``verdict`` misses.

    Torch that has one of these need not refuse, so a run with it does not say whether another mend
    brings the refusal back.
    """
    lifters = lifting(verdict, mends)
    return tuple(name for name in mends if name not in lifters)


def unknown_only(
    world: Runner, case: Case, expected: Verdict, mends: tuple[str, ...]
) -> Callable[[Runner], Runner]:
    """Return how to run what is made of ``case``, so that its finding ``expected`` never becomes a
    known bug.

    Whatever fails has to fail on torch as it is and on mended torch; without ``mends`` on torch as
    it is.
    """
    mends = able_to_cure(expected, mends)
    if not mends:
        return lambda other: other
    strict = same_finding(judge(world, case), expected)
    return lambda other: OnBoth(other, mends, strict=strict)


def unknown_part(
    world: Runner, case: Case, stock: Verdict, mends: tuple[str, ...]
) -> tuple[Verdict, Callable[[Runner], Runner]]:
    """Return what to shrink of a ``case`` that shows ``stock`` on stock torch, and how to run it.

    What fails with ``mends`` too is no known bug, and stays none (:func:`unknown_only`). What they
    cure is one, and is shrunk on torch as it is.
    """
    mends = able_to_cure(stock, mends)
    mended = judge(OnMends(world, mends), case) if mends else stock
    if not _fails(mended, stock, mends) or told(mended, mends):
        mended, mends = stock, ()
    expected = stock if same_finding(stock, mended) else mended
    return expected, unknown_only(world, case, expected, mends)


def explain(
    world: Runner,
    case: Case,
    mends: tuple[str, ...],
    *,
    stock: Verdict | None = None,
    mended: Verdict | None = None,
    likely: Likely = lambda case, signature: {},
) -> Explanation:
    """Runs ``case`` on torch as it is and with ``mends``, unless their verdicts are given, and
    compares.

    A set of causes that is more ``likely`` than all others together is tried before all mends.
    Otherwise :class:`_Search` looks for the causes among the mends of which a function has run. A
    case that is compiled is explained without that, if it shows the same, and run with these
    causes as it is. Where torch as it is does not refuse what it has to, mends that lift this
    refusal are left out. Where mended torch shows something else than torch as it is, twice, each
    mend that this takes is left out in turn: if the others cure the case, it is wrong.
    """
    stock = judge(world, case) if stock is None else stock
    search = _Search(world, case, stock, likely)
    if not stock.status.is_finding:
        if mended is None or not _fails(mended, stock, mends) or told(mended, mends):
            return Explanation(Origin.NONE, stock, mended)
        once = search.cures(mends)
        breaking = () if once else _fewest(mends, lambda few: not search.cures(few))
        return Explanation(Origin.MEND, stock, mended, breaking)
    able = able_to_cure(stock, mends)
    if mended is None or able != mends:
        if causes := search.guess(able):
            return Explanation(Origin.KNOWN, stock, None, causes)
        mended = judge(OnMends(world, able), case)
    mends = able
    if mended.status is not Status.INFRA and not _fails(mended, stock, mends):
        return Explanation(Origin.KNOWN, stock, mended, search.causes(mended.ran or mends))
    if causes := told(mended, mends):
        return Explanation(Origin.KNOWN, stock, mended, causes)
    if mended.status is not Status.INFRA and not same_finding(stock, mended):
        seen, again = mended, judge(OnMends(world, mends), case)
        if not same_finding(again, seen):
            return explain(world, case, mends, stock=stock, mended=again, likely=likely)
        shown = _fewest(mends, lambda few: same_finding(judge(OnMends(world, few), case), seen))
        for name in shown:
            if search.cures(tuple(other for other in mends if other != name)):
                return Explanation(Origin.MEND, stock, mended, (name,))
    return Explanation(Origin.NEW, stock, mended)


def _possible(
    weights: Mapping[tuple[str, ...], float], mends: Collection[str]
) -> dict[tuple[str, ...], float]:
    """Return those sets of causes that ``mends`` have."""
    return {few: weight for few, weight in weights.items() if set(few) <= set(mends)}


class _Search:
    """Looks for the smallest set of mends that cures a case.

    One bug may hide another, so it looks for what makes the finding go away or become another one,
    and goes on from there.
    """

    def __init__(self, world: Runner, case: Case, stock: Verdict, likely: Likely) -> None:
        self._world = world
        self._case = case
        self._stock = stock
        self._likely = likely
        self._seen = {frozenset[str](): stock}

    def guess(self, mends: tuple[str, ...]) -> tuple[str, ...]:
        """Return the causes where some are likely enough to be tried before all mends, and cure
        the case.
        """
        eager = replace(self._case, compile=None)
        if eager != self._case:
            seen = judge(self._world, eager)
            if not same_finding(seen, self._stock):
                return ()
            causes = explain(self._world, eager, mends, stock=seen, likely=self._likely).known
        else:
            weights = _possible(self._likely(self._case, self._stock.signature), mends)
            causes = max(weights, key=weights.__getitem__, default=())
            if causes and 2 * weights[causes] <= sum(weights.values()):
                return ()
        return causes if causes and self.cures(causes) else ()

    def causes(self, mends: tuple[str, ...]) -> tuple[str, ...]:
        """Return the causes, in alphabetical order, where all ``mends`` cure the case."""
        self._seen[frozenset(mends)] = Verdict(status=Status.PASS)
        needed: tuple[str, ...] = ()
        while not self.cures(needed):
            needed += self._next(needed, mends)
        for name in needed if len(needed) > 1 else ():
            fewer = tuple(other for other in needed if other != name)
            if self.cures(fewer):
                needed = fewer
        return tuple(sorted(needed))

    def _next(self, needed: tuple[str, ...], mends: tuple[str, ...]) -> tuple[str, ...]:
        """Return the smallest set of mends that changes what shows with ``needed``."""
        shown = self._run(needed)

        def change(few: tuple[str, ...]) -> bool:
            seen = self._run(needed + few)
            moved = seen.status.is_finding and _place(seen) != _place(shown)
            return moved or self.cures(needed + few)

        others = tuple(name for name in mends if name not in needed)
        weights = _possible(self._likely(self._case, shown.signature), others)
        chances = dict.fromkeys(others, LEAST_CHANCE)
        for few, weight in weights.items():
            for name in few:
                chances[name] += weight
        for few in weights:
            if WORTH_A_RUN * weights[few] < sum(chances.values()):
                break
            if change(few):
                return few
            chances |= dict.fromkeys(few, LEAST_CHANCE)
        return _fewest(others, change, chances)

    def cures(self, few: tuple[str, ...]) -> bool:
        """Whether torch that has ``few`` mends shows nothing, and the machine did not fail."""
        verdict = self._run(few)
        return verdict.status is not Status.INFRA and not _fails(verdict, self._stock, few)

    def _run(self, few: tuple[str, ...]) -> Verdict:
        """Return what shows with these mends; nothing runs twice."""
        if (verdict := self._seen.get(frozenset(few))) is None:
            verdict = self._seen[frozenset(few)] = judge(OnMends(self._world, few), self._case)
        return verdict


def _place(verdict: Verdict) -> tuple[str, int, str]:
    """Return what shows first, and where."""
    first = verdict.findings[0]
    return verdict.signature, first.op, first.name


def _fails(mended: Verdict, stock: Verdict, mends: Sequence[str]) -> bool:
    """Return whether torch that has ``mends`` shows a finding.

    What it does not refuse, and torch as it is does not miss, is none where one of them lifts the
    refusal.
    """
    if not mended.status.is_finding or same_finding(stock, mended):
        return mended.status.is_finding
    return not lifting(mended, mends)


LEAST_CHANCE = 1e-4
"""How likely a mend is a cause of which nobody has seen anything alike."""

WORTH_A_RUN = 8
"""A set of causes is tried alone that has this part of what the others have together."""


def _fewest(
    mends: tuple[str, ...],
    suffice: Callable[[tuple[str, ...]], bool],
    chances: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Return the smallest set that bisection finds of those that ``suffice``; all of ``mends`` do,
    and none of them does not.

    The last mend of the shortest beginning that suffices belongs to it; with that one, the next is
    looked for. Those with the best ``chances`` come first, and each half is half of the chances.
    """
    chances = chances or dict.fromkeys(mends, 1.0)
    others = tuple(sorted(mends, key=lambda name: -chances[name]))
    needed: tuple[str, ...] = ()
    while others and (not needed or not suffice(needed)):
        least, most = 0, len(others)  # too few, enough
        while most - least > 1:
            sums = [*itertools.accumulate(chances[name] for name in others[least:most])]
            half = bisect.bisect_left(sums, sums[-1] / 2) + 1
            middle = min(least + half, most - 1)
            if suffice((*needed, *others[:middle])):
                most = middle
            else:
                least = middle
        needed, others = (*needed, others[most - 1]), others[: most - 1]
    return tuple(sorted(needed))


def judge_explained(
    world: Runner,
    case: Case,
    mends: tuple[str, ...],
    *,
    on_mended: bool,
    likely: Likely = lambda case, signature: {},
) -> tuple[Case, Explanation]:
    """Return the case, or one that shows its finding more clearly, and where that comes from.

    The first run is on torch with ``mends``, or as it is.
    """
    case, verdict = judge_clearly(OnMends(world, mends) if on_mended else world, case)
    if not verdict.status.is_finding:
        return case, Explanation(Origin.NONE, verdict)
    return case, explain_first(world, case, verdict, mends, on_mended=on_mended, likely=likely)


def explain_first(
    world: Runner,
    case: Case,
    verdict: Verdict,
    mends: tuple[str, ...],
    *,
    on_mended: bool,
    likely: Likely = lambda case, signature: {},
    explaining: Callable[[str, int], None] = lambda signature, done: None,
) -> Explanation:
    """Return where the finding of a first run comes from, on torch with ``mends`` or as it is.

    ``likely`` gives sets of causes for a case and the signature of its finding. ``explaining``
    gets that signature and the number of runs so far, before each run.
    """
    return explain(
        Counting(world, functools.partial(explaining, verdict.signature)),
        case,
        mends,
        stock=None if on_mended else verdict,
        mended=verdict if on_mended else None,
        likely=likely,
    )


def known_causes(
    mends: tuple[str, ...], world: Runner, case: Case, stock: Verdict
) -> tuple[str, ...]:
    """Return the causes of what torch as it is showed, of those that ``mends`` know; empty where
    it is new.
    """
    return explain(world, case, mends, stock=stock).known if mends else ()
