"""Entries that run in several worlds at the same time, the smallest meshes first."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, TypeVar

from fuzzshard.corpus.entry import CorpusEntry
from fuzzshard.corpus.outcome import by_size
from fuzzshard.runner import Runner, StartWorlds

SECONDS_BETWEEN_LOOKS = 0.2
"""How long to wait at a time: a signal that comes just before is handled at the end of a wait."""

T = TypeVar("T")


def nothing_is_halted(_reason: str) -> None:
    """Do nothing, in place of halting worlds that run on until they are done."""


def in_worlds(
    entries: Iterable[tuple[Path, CorpusEntry]],
    start_worlds: StartWorlds,
    run: Callable[[Runner, Path, CorpusEntry], T],
    *,
    device: Literal["cpu", "cuda"],
    num_ranks: int,
    one_size: bool = False,
    halt: Callable[[str], None] = nothing_is_halted,
) -> Generator[T, None, None]:
    """Yields what ``run`` returns for each entry as soon as it does.

    ``start_worlds`` is called with the number of ranks that meshes need, the smallest first, or
    with ``num_ranks`` alone for ``one_size``. Whatever ends this early calls ``halt`` with the
    reason, upon which worlds are to raise in place of further runs. Where ``run`` raises, what
    other worlds have begun and still finish is yielded before that is raised here.
    """
    groups = by_size(entries, device, num_ranks)
    if one_size:
        groups = [(num_ranks, [each for _, of_size in groups for each in of_size])]
    for size, of_size in groups:
        with start_worlds(size) as worlds:
            yield from _side_by_side(worlds, of_size, run, halt)


def _side_by_side(
    worlds: Sequence[Runner],
    entries: Sequence[tuple[Path, CorpusEntry]],
    run: Callable[[Runner, Path, CorpusEntry], T],
    halt: Callable[[str], None],
) -> Generator[T, None, None]:
    free: queue.LifoQueue[Runner] = queue.LifoQueue()  # ranks of the last one live already
    for world in worlds:
        free.put(world)

    def take(stored: tuple[Path, CorpusEntry]) -> T:
        world = free.get()
        try:
            return run(world, *stored)
        finally:
            free.put(world)

    with ThreadPoolExecutor(len(worlds), "fuzzshard-entries") as pool:
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
