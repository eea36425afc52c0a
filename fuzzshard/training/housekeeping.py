"""What a rank does between two cases, so that the ten-thousandth costs what the first one did."""

from __future__ import annotations

import gc

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor

from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.state import forget_classes
from fuzzshard.model.build import forget_models
from fuzzshard.training.survivors import collect_garbage

CASES_BETWEEN_CLEARINGS = 200
"""DTensor keeps every (operation, layout, shape) for ever, and so does FakeTensor: about 500
objects a case, each of which the garbage collector would look at twice in every later case.
"""


class Housekeeping:
    """Between two cases of one rank. What is alive then belongs to torch's caches, and stays.

    A screen ``keeps_caches`` for its whole life: to find out again what operations do to layouts
    and sizes is two thirds of what it does in a case without them.
    """

    def __init__(self, *, keeps_caches: bool = False) -> None:
        self._keeps_caches = keeps_caches
        self._num_cases = 0

    def tidy(self, case: Case) -> None:
        """Collects what ``case`` has left, and never looks at the rest again."""
        self._num_cases += 1
        forget_classes()
        forget_models()
        if case.compile is not None:
            torch._dynamo.reset()
        if not self._keeps_caches and self._num_cases % CASES_BETWEEN_CLEARINGS == 0:
            clear_caches()
        collect_garbage()
        gc.freeze()


def clear_caches() -> None:
    """Has torch find out again what operations do to layouts and sizes, which a mend may
    change.
    """
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache"):
        torch._C._clear_DTensor_sharding_propagator_cache()
    FakeTensorMode.cache_clear()
