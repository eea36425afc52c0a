"""Replaying a set of entries: the smallest meshes first, in worlds that run cases side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.corpus.codec import read_entry
from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.outcome import (
    Outcome,
    Replayed,
    ReplayWorld,
    by_size,
    obstacle,
    replay_entry,
)
from fuzzshard.corpus.store import CASE_FILE
from fuzzshard.errors import InvalidEntry, check_infra_in_a_row
from fuzzshard.verdict import Verdict

Explain = Callable[[ReplayWorld, Case, Verdict], Sequence[str]]
"""The known bugs of torch that cause a finding, by the names of their mends; none where it is not
known.
"""

SECONDS_BETWEEN_LOOKS = 0.2
"""How long to wait at a time: a signal that comes just before is handled at the end of a wait."""


def _nothing_is_known(_world: ReplayWorld, _case: Case, _verdict: Verdict) -> tuple[()]:
    return ()


def _nothing_is_halted(_reason: str) -> None:
    pass


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """One replayed entry: the folder or file it is in, the outcome, a line of what was seen, and
    which torch.

    ``torch`` is empty where nothing ran, and ``verdict`` None.
    """

    path: Path
    outcome: Outcome
    seconds: float = 0.0
    message: str = ""
    torch: str = ""
    verdict: Verdict | None = None


def replay(
    files: Sequence[Path],
    start_worlds: Callable[[int], AbstractContextManager[Sequence[ReplayWorld]]],
    *,
    device: Literal["cpu", "cuda"],
    num_ranks: int,
    deadline: float | None = None,
    explain: Explain = _nothing_is_known,
    one_size: bool = False,
    halt: Callable[[str], None] = _nothing_is_halted,
) -> Generator[ReplayResult, None, None]:
    """Yields one result for each of ``files``; a bad entry does not stop the others.

    What cannot run comes first, then the rest by the ranks that meshes need, at most
    ``num_ranks``. ``start_worlds`` is called with each such number, or with ``num_ranks`` alone
    for ``one_size``, and its worlds run cases side by side: results come as they are done.
    ``deadline`` is that of :func:`replay_entry`. What ``explain`` knows is ``KNOWN`` where nothing
    is expected. Whatever ends this early calls ``halt`` with the reason, upon which worlds are to
    raise in place of further runs. Raises :class:`fuzzshard.errors.InfraError` when the ranks of a
    world cannot start, at first or for several entries in a row.
    """
    runnable: dict[Path, CorpusEntry] = {}
    for file in files:
        entry = _load(file)
        if isinstance(entry, InvalidEntry) or obstacle(entry, device, num_ranks):
            yield _without_world(file, entry, device, num_ranks)
        else:
            runnable[file] = entry

    def run(world: ReplayWorld, file: Path, entry: CorpusEntry) -> ReplayResult:
        start = time.monotonic()
        replayed = unless_known(
            world, replay_entry(world, entry, device, deadline), entry, explain
        )
        return ReplayResult(
            shown_path(file),
            replayed.outcome,
            time.monotonic() - start,
            replayed.message,
            replayed.torch,
            replayed.verdict,
        )

    groups = by_size(runnable.items(), device, num_ranks)
    if one_size:
        groups = [(num_ranks, [each for _, of_size in groups for each in of_size])]
    for size, of_size in groups:
        infra_in_a_row: Counter[int] = Counter()
        with (
            start_worlds(size) as worlds,
            contextlib.closing(_side_by_side(worlds, of_size, run, halt)) as results,
        ):
            for world, result in results:
                yield result
                if result.outcome is Outcome.INFRA:
                    infra_in_a_row[id(world)] += 1
                    check_infra_in_a_row(infra_in_a_row[id(world)], result.message)
                else:
                    del infra_in_a_row[id(world)]


def _side_by_side(
    worlds: Sequence[ReplayWorld],
    entries: Sequence[tuple[Path, CorpusEntry]],
    run: Callable[[ReplayWorld, Path, CorpusEntry], ReplayResult],
    halt: Callable[[str], None],
) -> Generator[tuple[ReplayWorld, ReplayResult], None, None]:
    """Yields what ``run`` returns for each entry, and in which world, as soon as it does.

    Where it raises, what other worlds have begun is yielded before that is raised here.
    """
    free: queue.LifoQueue[ReplayWorld] = queue.LifoQueue()  # ranks of the last one live already
    for world in worlds:
        free.put(world)

    def take(stored: tuple[Path, CorpusEntry]) -> tuple[ReplayWorld, ReplayResult]:
        world = free.get()
        try:
            return world, run(world, *stored)
        finally:
            free.put(world)

    with ThreadPoolExecutor(len(worlds), "fuzzshard-replay") as pool:
        places = {pool.submit(take, stored): place for place, stored in enumerate(entries)}
        waiting, raised = set(places), list[BaseException]()
        try:
            while waiting:
                done, waiting = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for future in sorted(done, key=places.__getitem__):
                    if error := future.exception():
                        raised.append(error)
                        halt(str(error))
                        waiting = {each for each in waiting if not each.cancel()}
                    else:
                        yield future.result()
            if raised:
                raise raised[0]
        except BaseException as error:
            halt(str(error))
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def unless_known(
    world: ReplayWorld, replayed: Replayed, entry: CorpusEntry, explain: Explain
) -> Replayed:
    """``KNOWN`` where nothing is expected and ``explain`` names what causes the finding.

    An entry that records a finding of its own, or had one, is about that one alone.
    """
    if replayed.outcome is not Outcome.CHANGED or entry.signature or replayed.verdict is None:
        return replayed
    causes = explain(world, entry.case, replayed.verdict)
    if not causes:
        return replayed
    said = f"{replayed.verdict.signature}, caused by {', '.join(causes)}"
    return dataclasses.replace(replayed, outcome=Outcome.KNOWN, message=said)


def _load(file: Path) -> CorpusEntry | InvalidEntry:
    try:
        return read_entry(file)
    except InvalidEntry as error:
        return error


def _without_world(
    file: Path, entry: CorpusEntry | InvalidEntry, device: Literal["cpu", "cuda"], num_ranks: int
) -> ReplayResult:
    if isinstance(entry, InvalidEntry):
        return ReplayResult(shown_path(file), Outcome.INVALID, message=without_path(file, entry))
    return ReplayResult(
        shown_path(file), Outcome.SKIPPED, message=obstacle(entry, device, num_ranks)
    )


def without_path(file: Path, error: InvalidEntry) -> str:
    """What is wrong with ``file``, for a line that begins with its path."""
    return str(error).removeprefix(f"{file}: ")


def shown_path(file: Path) -> Path:
    """The folder of an entry, or the file of a bare case: what to hand to ``fuzzshard show``."""
    return file.parent if file.name == CASE_FILE else file
