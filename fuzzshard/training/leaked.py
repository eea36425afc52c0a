"""What outlives an engine: modules and parameters that somebody still refers to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Collection, Mapping

import torch

from fuzzshard.engines.base import Engine

PATIENCE_SECONDS = 0.25
"""Threads of the backend let go of the last tensors a little after the collective has ended."""


class LeakWatch:
    """Weak references to the modules and parameters of an engine, to see whether they go when it
    goes.
    """

    def __init__(self, engine: Engine) -> None:
        model = engine.model
        modules = [
            (f"module {path or 'the root'}", weakref.ref(m)) for path, m in model.named_modules()
        ]
        parameters = [(fqn, weakref.ref(p)) for fqn, p in engine.trained.items()]
        self._watched = [*modules, *parameters]

    def names(self) -> tuple[str, ...]:
        """Return what is still there; whoever asks has collected garbage, once for all engines: it
        takes time.
        """
        return tuple(name for name, reference in self._watched if reference() is not None)


def wait_until_freed(watched: Collection[LeakWatch]) -> None:
    """Collects garbage until everything is freed, or for :data:`PATIENCE_SECONDS`."""
    end = time.monotonic() + PATIENCE_SECONDS
    collect_garbage()
    while any(each.names() for each in watched) and time.monotonic() < end:
        time.sleep(0.01)
        collect_garbage()


def collect_garbage() -> None:
    """Collect until nothing is left: what a graph of autograd held becomes garbage only when the
    graph is gone. A backward that raised leaves the rest of its graph in the queue of its thread,
    until the next backward.

    ``gc.collect`` does nothing and returns 0 while another thread collects, which waits there for
    a finalizer or for the interpreter; only what tells the callbacks of this thread that it has
    ended was a collection.
    """
    torch.autograd.backward(torch.ones((), requires_grad=True))
    this_thread, collected = threading.get_ident(), False

    def notice(phase: str, info: Mapping[str, int]) -> None:
        nonlocal collected
        collected |= (
            phase == "stop" and threading.get_ident() == this_thread and info["generation"] == 2
        )

    gc.callbacks.append(notice)
    try:
        while gc.collect() or not collected:
            if not collected:
                time.sleep(0.001)
            collected = False
    finally:
        gc.callbacks.remove(notice)
