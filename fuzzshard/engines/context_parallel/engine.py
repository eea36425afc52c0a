"""Attention over ranks that share positions, under ``fully_shard``."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from typing_extensions import override

from fuzzshard.case.attention import attentions
from fuzzshard.case.case import Case
from fuzzshard.engines.context_parallel import contract
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fully_shard.engine import FullyShard
from fuzzshard.engines.rounding import Shake


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

    @override
    def shake(self, by: Shake) -> None:
        """Changes what attention gets as well: groups may round parameters to what they were."""
        super().shake(by)
        for path in attentions(self.case):
            attention = self._modules[path].get_submodule(self.facts.leaves[path].attends_at)
            attention.register_forward_pre_hook(functools.partial(_shaken, by), prepend=True)


def _shaken(
    by: Shake, module: nn.Module, args: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    changed = tuple(x.clone() for x in args)
    for index, x in enumerate(changed):
        by.apply(x, index)
    return changed


ENGINE = ContextParallel
