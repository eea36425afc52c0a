"""Which cases are not trained with attention over ranks that share positions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from fuzzshard.case.attention import positions_divide, someone_has_rows
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.engines.context_parallel.script import PRIVATE
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.fully_shard import contract

_ATTENTION = "torch/distributed/tensor/experimental/_context_parallel/_attention.py"
_BALANCER = "torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py"


def _lacking() -> str | None:
    """Return a name that this version of torch does not have, if there is one."""
    for module, names in PRIVATE.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            return module
        for name in names:
            if not hasattr(found, name):
                return f"{module}.{name}"
    return None


LACKING = _lacking()


def not_applicable(case: Case) -> Exclusion | None:
    """Return why nobody documents a case, or None; what ``fully_shard``'s documentation does not
    cover is not covered here either.
    """
    return next(_of_case(case), None) or contract.not_applicable(case)


def _of_case(case: Case) -> Iterator[Exclusion]:
    if LACKING:
        yield Exclusion(
            f"this version of torch has no {LACKING}",
            f"{_ATTENTION}: 'Current public APIs, but are also subject to change'",
        )
    if not facts(case).inner("attention"):
        yield Exclusion(
            "no module calls scaled_dot_product_attention", f"{_ATTENTION}, _sdpa_handler"
        )
    if not positions_divide(case):
        yield Exclusion(
            f"{case.mesh.shard} ranks cannot have as many of {case.inputs.seq} positions each",
            f"{_BALANCER}, _HeadTailLoadBalancer: 'if seq_length % (world_size * 2) != 0'; "
            f"{_ATTENTION}, _templated_ring_attention: keys of all ranks have one shape",
        )
    if not someone_has_rows(case):
        yield Exclusion(
            "a batch without rows on all ranks that share positions",
            "fuzzshard: not asked; scaled_dot_product_attention of a DTensor without elements is "
            "given no kernel, and the formula in its place mixes tensors and DTensors",
        )
    if case.mesh.tensor or case.compile:
        yield Exclusion("tensor parallelism or compilation", "fuzzshard: not tried")
