"""Which features a Case really has, computed from the Case and not from what drew it.

Features name what can interact: two bugs that need the same features are reached by the same
draws. The campaign counts features, pairs and triples of them; tests of the generator bound their
frequency.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.analysis.batches import all_rows, rows_of_batch, used_batches
from fuzzshard.analysis.feature_names import FEATURES
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.model_features import (
    dim_features,
    edge_features,
    leaf_features,
    reuse_features,
)
from fuzzshard.analysis.plan_features import (
    engine_features,
    freezing_features,
    group_features,
    mesh_features,
    tensor_parallel_features,
    wrapping_features,
)
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.case.case import Case

ALL_FEATURES: tuple[str, ...] = tuple(FEATURES)
"""Every feature, grouped by dimension; :data:`FEATURES` says what each is."""


@functools.lru_cache(maxsize=256)
def features(case: Case) -> frozenset[str]:
    """Return the features of a valid Case; raises :class:`InvalidCase` where its graph does not
    fit together.
    """
    of_engines = (f"engine:{engine}" for engine in case.engines)
    common = _without_engines(replace(case, engines=()))
    return common.union(of_engines, engine_features(case, inferred(case)))


@functools.lru_cache(maxsize=256)
def _without_engines(case: Case) -> frozenset[str]:
    """Those that do not depend on who trains: cases are drawn with several choices of engines."""
    found = inferred(case)
    return frozenset(
        (
            *leaf_features(found),
            *dim_features(case, found),
            *edge_features(case, found),
            *reuse_features(case),
            *wrapping_features(case, found),
            *freezing_features(case, found),
            *mesh_features(case),
            *group_features(case),
            *tensor_parallel_features(case, found),
            *(feature for at in follow(case) for feature in _op_features(at)),
            *_settings(case),
            *_row_features(case),
            *_options(case),
        )
    )


_OBSERVED = {"losses": "option:losses_only", "memory": "option:memory", "races": "oracle:race"}


def _op_features(at: ScheduleState) -> Iterator[str]:
    """Yield those that an op makes, and those that ops of several kinds make."""
    op = at.op
    yield from op.features(at)
    if op.ranks != "all":
        yield "schedule:ranks_differ"
    if at.unsynced and op.uses_gradients:
        yield "schedule:step_unsynced"


def _options(case: Case) -> Iterator[str]:
    for checkpoint in case.checkpoints:
        yield "checkpoint:module"
        yield f"checkpoint:{checkpoint.implementation}"
    if case.ignored:
        yield "option:ignored"
    if case.added:
        yield "option:added"
    if case.init == "meta":
        yield "option:meta"
    if case.finalize is not None:
        yield f"option:finalize_{case.finalize}"
    if case.compile is not None:
        yield f"compile:{case.compile}"
    yield from (f"delay:{delay.site}" for delay in case.delays)
    if any(delay.ranks != "all" for delay in case.delays):
        yield "delay:some_ranks"
    yield from (f"expect:{expect.kind}" for expect in case.expect)
    if case.observe in _OBSERVED:
        yield _OBSERVED[case.observe]


def _row_features(case: Case) -> Iterator[str]:
    """Yield how many rows ranks have."""
    sizes = {rows_of_batch(case, batch) for batch in used_batches(case)}
    if any(len(set(rows)) > 1 for rows in sizes):
        yield "input:rows_differ"
    if len(sizes) > 1:
        yield "input:rows_vary"
    if case.inputs.rank_batches:
        rows = all_rows(case)
        yield from (name for n, name in ((0, "input:no_rows"), (1, "input:one_row")) if n in rows)


def _settings(case: Case) -> Iterator[str]:
    yield from case.optimizer.features()
    yield f"dtype:{case.dtype}"
    yield f"values:{case.values}"
    yield f"loss:{case.loss}"
    if case.inputs.same_on_ranks:
        yield "input:same_on_ranks"
    if case.inputs.on_host:
        yield "input:on_host"
    if case.inputs.seq:
        yield "input:sequence"
    if len(case.inputs.tensors) > 1:
        yield "input:several"
    for tensor in case.inputs.tensors:
        if tensor.kind == "ids":
            yield "input:ids"
        if tensor.requires_grad:
            yield "input:requires_grad"
