"""Attention over ranks that share positions, under ``fully_shard``."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.engines.context_parallel import contract
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fully_shard.engine import FullyShard


class ContextParallel(FullyShard):
    """Its settings are torch's own globals, which no other engine is to find."""

    name: ClassVar[str] = "context_parallel"

    @override
    @classmethod
    def not_applicable(cls, case: Case) -> Exclusion | None:
        return contract.not_applicable(case)

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
