"""Replaying entries: is what they recorded still there?

A world of one size serves the whole set: the largest mesh in it that this machine has ranks for.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

from fuzzshard.case.case import Case
from fuzzshard.case.needs import needs_cuda
from fuzzshard.corpus.entry import CorpusEntry, mesh_text, read_entry
from fuzzshard.corpus.store import CASE_FILE
from fuzzshard.errors import (
    EXIT_CLEAN,
    EXIT_FINDING,
    EXIT_INCONCLUSIVE,
    EXIT_INFRA,
    EXIT_USAGE,
    FuzzshardError,
    InvalidEntry,
)
from fuzzshard.verdict import Status, Verdict

LARGEST_CPU_WORLD = 8
"""A CPU rank is only a process; still, no file decides that this machine starts a thousand of them."""


UNHURRIED = 300.0
"""Seconds for a case that is expected to pass: how long others took says nothing of it."""


class Outcome(enum.StrEnum):
    """What replaying one entry says.

    ``SAME``: the recorded finding is still there. ``CHANGED``: another one is, or one where none was
    recorded. ``FIXED``: the recorded finding is gone, on the kind of device that it was seen on.
    ``PASS``: nothing was recorded and nothing is wrong, or the finding is not seen on this device.
    ``SKIPPED``: this machine cannot run the case.
    """

    SAME = "SAME"
    CHANGED = "CHANGED"
    FIXED = "FIXED"
    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    SKIPPED = "SKIPPED"
    INVALID = "INVALID"
    INFRA = "INFRA"


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """One replayed entry: the folder or file it is in, the outcome, a line of what was seen, and which torch.

    ``torch`` is empty where nothing ran.
    """

    path: Path
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    torch: str = ""


class ReplayWorld(Protocol):
    """What replaying needs of a :class:`fuzzshard.world.World`."""

    @property
    def info(self) -> Mapping[str, str]:
        """Versions and devices of the ranks."""

    def run(self, case: Case, *, deadline: float | None = None) -> Verdict:
        """Runs ``case`` on live ranks, up to ``deadline`` seconds."""


def replay(
    files: Sequence[Path],
    start_world: Callable[[int], AbstractContextManager[ReplayWorld]],
    *,
    device: Literal["cpu", "cuda"],
    num_ranks: int,
    deadline: float | None = None,
) -> Generator[ReplayResult, None, None]:
    """Yields one result for each of ``files``, in their order; a bad entry does not stop the others.

    Without a ``deadline`` entries with a finding get the one that the world learned, and those that are to
    pass get :data:`UNHURRIED`. ``start_world`` is called at most once, with the number of ranks the set
    needs, at most ``num_ranks``, and not at all where nothing can run. Raises
    :class:`fuzzshard.errors.InfraError` when the ranks cannot start.
    """
    loaded = {file: _load(file) for file in files}
    entries = [e for e in loaded.values() if isinstance(e, CorpusEntry)]
    sizes = [e.case.mesh.size for e in entries if not _obstacle(e, device, num_ranks)]
    if not sizes:
        for file, entry in loaded.items():
            yield _without_world(file, entry, device, num_ranks)
        return
    with start_world(max(sizes)) as world:
        for file, entry in loaded.items():
            if isinstance(entry, InvalidEntry) or _obstacle(entry, device, num_ranks):
                yield _without_world(file, entry, device, num_ranks)
            else:
                yield _replay_one(world, file, entry, device, deadline)


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """The worst of ``outcomes``: a finding, then INFRA, INVALID, INCONCLUSIVE. All skipped judges nothing."""
    seen = set(outcomes)
    if seen & {Outcome.SAME, Outcome.CHANGED}:
        return EXIT_FINDING
    if Outcome.INFRA in seen:
        return EXIT_INFRA
    if Outcome.INVALID in seen:
        return EXIT_USAGE
    if Outcome.INCONCLUSIVE in seen or seen == {Outcome.SKIPPED}:
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN


def _load(file: Path) -> CorpusEntry | InvalidEntry:
    try:
        return read_entry(file)
    except InvalidEntry as error:
        return error


def _obstacle(entry: CorpusEntry, device: Literal["cpu", "cuda"], num_ranks: int) -> str:
    """Why this machine cannot run ``entry``; empty if it can."""
    if entry.case.mesh.size > num_ranks:
        return f"the mesh ({mesh_text(entry.case.mesh)}) needs {entry.case.mesh.size} ranks, not {num_ranks}"
    if entry.device == "cuda" and device == "cpu":
        return "was found on CUDA; a CPU cannot say whether it is fixed"
    return (device == "cpu" and needs_cuda(entry.case)) or ""


def _without_world(
    file: Path, entry: CorpusEntry | InvalidEntry, device: Literal["cpu", "cuda"], num_ranks: int
) -> ReplayResult:
    if isinstance(entry, InvalidEntry):
        return ReplayResult(shown_path(file), Outcome.INVALID, message=str(entry))
    return ReplayResult(shown_path(file), Outcome.SKIPPED, message=_obstacle(entry, device, num_ranks))


def _replay_one(
    world: ReplayWorld, file: Path, entry: CorpusEntry, device: str, deadline: float | None
) -> ReplayResult:
    """A finding that was flaky when recorded gets as many runs as it had then."""
    start = time.monotonic()
    runs = entry.confirmed.runs if entry.flaky and entry.confirmed is not None else 1
    if deadline is None and not entry.signature:
        deadline = UNHURRIED
    for number in range(1, runs + 1):
        outcome, message = _judge(world, entry, device, deadline)
        if outcome in (Outcome.SAME, Outcome.CHANGED):
            break
    if entry.flaky and entry.confirmed is not None:
        message += f" (run {number} of {runs}; recorded as {entry.confirmed.text()})"
    return ReplayResult(shown_path(file), outcome, time.monotonic() - start, message, world.info["torch"])


def _judge(
    world: ReplayWorld, entry: CorpusEntry, device: str, deadline: float | None
) -> tuple[Outcome, str]:
    try:
        verdict = world.run(entry.case, deadline=deadline)
    except FuzzshardError as error:
        return Outcome.INFRA, str(error)
    if verdict.status.is_finding:
        if verdict.signature == entry.signature:
            return Outcome.SAME, verdict.signature
        return Outcome.CHANGED, f"{verdict.signature}, was {entry.signature or 'no finding'}"
    if verdict.status in (Status.INFRA, Status.INCONCLUSIVE):
        return Outcome(verdict.status.value), verdict.message
    note = " (torch refuses the case)" if verdict.status is Status.REJECTED else ""
    if not entry.signature:
        return Outcome.PASS, note.strip()
    if entry.flaky:
        return Outcome.INCONCLUSIVE, f"{entry.signature} stayed away"
    if entry.device != device:
        return Outcome.PASS, f"{entry.signature} was found on {entry.device}, is not seen on {device}{note}"
    now = world.info["torch"]
    return Outcome.FIXED, f"{entry.signature} of torch {entry.torch} is gone in torch {now}{note}"


def shown_path(file: Path) -> Path:
    """The folder of an entry, or the file of a bare case: what to hand to ``fuzzshard show``."""
    return file.parent if file.name == CASE_FILE else file
