"""Attention over ranks that share positions, under ``fully_shard``."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.context_parallel.script import PRIVATE
from fuzzshard.engines.fully_shard.engine import FullyShard


@functools.cache
def _lacking() -> str | None:
    """Return a private name that this version of torch does not have, if there is one."""
    for module, names in PRIVATE.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            return module
        for name in names:
            if not hasattr(found, name):
                return f"{module}.{name}"
    return None


class ContextParallel(FullyShard):
    """Sets globals of torch, which are put back before another engine trains."""

    name: ClassVar[str] = "context_parallel"
    rounds_otherwise = True

    @override
    @classmethod
    def lacking(cls, case: Case) -> str | None:
        return _lacking() or super().lacking(case)

    @override
    @classmethod
    @contextlib.contextmanager
    def surroundings(cls, case: Case) -> Iterator[None]:
        torchs: Any = importlib.import_module("torch.distributed.tensor.experimental._attention")
        options = vars(torchs._cp_options)
        before = dict(options)
        try:
            with super().surroundings(case):
                yield
        finally:
            options.update(before)
            torchs._disable_context_parallel_dispatcher()


ENGINE = ContextParallel
