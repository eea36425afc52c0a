"""Screens: one rank without peers, which says what looks wrong before real ranks run a case.

Most of what is found shows in structure: an engine raises or dies, registers other parameters than
documented, issues other collectives, runs other hooks, leaves something behind, or does not refuse
what it should. One process can see that. It runs what every rank runs, in a world that has nobody
else: in torch's ``fake`` process group every collective ends at once.

What it computes is no result of the case, so there is no reference, and nothing is compared. A
suspicion is no finding until real ranks show it, and none is no verdict.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from fuzzshard.case.case import Case
from fuzzshard.case.schedule_state import ranks_differ
from fuzzshard.contracts import FAKE_COLLECTIVES_HAVE_RESULTS
from fuzzshard.parts.engines import specs
from fuzzshard.verdict import Finding, signature_of
from fuzzshard.world.config import WorldConfig
from fuzzshard.world.world import World

MOST_RANKS = 64
"""The ranks that a screen believes in, and so the largest mesh that it runs."""


class Suspicion(NamedTuple):
    """What looks wrong on one rank; the first of ``findings`` is the primary one."""

    findings: tuple[Finding, ...]

    @property
    def signature(self) -> str:
        """The signature that real ranks will give it, if they show it."""
        return signature_of(self.findings)


def screened(case: Case) -> Case | None:
    """The part of ``case`` that a screen runs; None where there is none.

    Without peers an error of theirs never comes, and objects that ranks send each other, as a
    checkpoint on disk has them do, are not what was sent. A compiled case takes as long as twenty
    others.
    """
    able = ("yes", "with results") if FAKE_COLLECTIVES_HAVE_RESULTS.holds() else ("yes",)
    engines = tuple(spec.name for spec in specs(case.engines) if spec.runs_alone in able)
    sends_objects = any(op.via == "dcp" for op in case.schedule)
    if not engines or sends_objects or case.compile is not None or ranks_differ(case):
        return None
    return msgspec.structs.replace(case, engines=engines)


class Screen:
    """A live rank that screens one case after another: the first or the last one of each mesh.

    What raises or dies costs the process, as it costs ranks theirs. Use a screen from one thread
    at a time.
    """

    def __init__(
        self, rank: Literal["first", "last"] = "first", preload: tuple[str, ...] = ()
    ) -> None:
        self.world = World(WorldConfig(MOST_RANKS, preload=preload, screens=rank))

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self.world.close()

    def suspicion(self, case: Case, mends: tuple[str, ...] = ()) -> Suspicion | None:
        """What looks wrong in ``case`` on torch with ``mends``; None says nothing about it.

        Raises what :meth:`World.check` raises.
        """
        part = screened(case)
        if part is None:
            return None
        verdict = self.world.run(part, mends=mends)
        if not verdict.status.is_finding:
            return None
        rank = 0 if self.world.config.screens == "first" else case.mesh.size - 1
        return Suspicion(tuple(msgspec.structs.replace(f, rank=rank) for f in verdict.findings))
