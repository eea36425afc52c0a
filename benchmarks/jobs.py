"""Work spread over processes, which end with what they have at the first Ctrl-C."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.synchronize import Event
from typing import TypeVar

from rich.console import Console

from fuzzshard.campaign.control import Control
from fuzzshard.guard import die_with_parent

Task = TypeVar("Task")
Result = TypeVar("Result")

_stop: Event
"""In a process of the pool: set when no more cases are to be run."""


def _init_process(stop: Event) -> None:
    global _stop
    _stop = stop
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(work: Callable[[Task, Control], Result], task: Task) -> Result:
    control = Control(None)

    def watch() -> None:
        _stop.wait()
        control.halt("interrupted")

    threading.Thread(target=watch, daemon=True).start()
    return work(task, control)


def in_processes(
    work: Callable[[Task, Control], Result], tasks: Iterable[Task], jobs: int, console: Console
) -> Iterator[Result]:
    """Yields results as they come; after Ctrl-C the rest of them, as they stand, and then raises
    it.

    Processes, because drawing cases and reducing keep a processor busy. ``work`` ends early
    when its control is halted.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    interrupted = False
    with concurrent.futures.ProcessPoolExecutor(
        jobs, context, initializer=_init_process, initargs=(stop,)
    ) as pool:
        waiting = {pool.submit(_call, work, task) for task in tasks}
        while waiting:
            try:
                done, waiting = concurrent.futures.wait(
                    waiting, return_when=concurrent.futures.FIRST_COMPLETED
                )
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                console.print("interrupted; waiting for the cases that run")
                stop.set()
                continue
            for future in done:
                yield future.result()
    if interrupted:
        raise KeyboardInterrupt
