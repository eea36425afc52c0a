"""Which features a Case really has, computed from the Case and not from what drew it.

Features name what can interact: two bugs that need the same features are reached by the same
draws. The campaign counts features, pairs and triples of them; tests of the generator bound their
frequency.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from msgspec.structs import replace

from fuzzshard.analysis.feature_names import FEATURES, TESTS
from fuzzshard.analysis.inferred import Inferred, inferred
from fuzzshard.analysis.schedule_state import ScheduleState, follow
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call
from fuzzshard.parts.engines import specs

ALL_FEATURES: tuple[str, ...] = tuple(FEATURES)
"""Every feature, grouped by dimension; :data:`FEATURES` says what each is."""


@functools.lru_cache(maxsize=256)
def features(case: Case) -> frozenset[str]:
    """Return the features of a valid Case; raises :class:`InvalidCase` where its graph does not
    fit together.
    """
    found = inferred(case)
    common = _without_engines(replace(case, engines=()))
    of_engines = (spec.features(case, found) for spec in specs(case.engines))
    return common.union((f"engine:{engine}" for engine in case.engines), *of_engines)


@functools.lru_cache(maxsize=256)
def _without_engines(case: Case) -> frozenset[str]:
    """Those that do not depend on who trains: cases are drawn with several choices of engines."""
    found = inferred(case)
    return frozenset(
        (
            *(name for name, has in TESTS.items() if has(case, found)),
            *_of_model(found),
            *_of_plans(case, found),
            *(feature for at in follow(case) for feature in _of_op(at)),
            *_settings(case),
        )
    )


_OBSERVED = {"losses": "option:losses_only", "memory": "option:memory", "races": "oracle:race"}


def _of_model(found: Inferred) -> Iterator[str]:
    """Yield kinds of leaves, and what nodes of blocks compute."""
    for path, leaf in found.leaves.items():
        width = found.width(path)
        yield from (f"leaf:{kind.name}" for kind in leaf.kinds if kind.of(leaf, width))
    for block in (module for module in found.modules.values() if isinstance(module, Block)):
        ops = (node.op for node in block.nodes if not isinstance(node, Call))
        yield from (f"edge:{'residual' if op == 'add' else op}" for op in ops)
        if block.returns != "tensor":
            yield f"returns:{block.returns}"
        if block.passing != "positional":
            yield f"passing:{block.passing}"


def _of_plans(case: Case, found: Inferred) -> Iterator[str]:
    """Yield options of wrap groups, and styles of a tensor-parallel plan."""
    for group in case.wrap:
        for option, value in group.told():
            yield from option.features(value)
    for plan in case.tensor_parallel:
        yield f"tensor:{plan.style}"
        if plan.initial != "equal":
            yield f"tensor:initial_{plan.initial}"
        block = found.modules[plan.module]
        if isinstance(block, Block) and plan.style == "prepare":
            yield f"tensor:prepare_{block.passing}"


def _of_op(at: ScheduleState) -> Iterator[str]:
    """Yield those that an op makes, and those that ops of several kinds make."""
    yield from at.op.features(at)
    if at.unsynced and at.op.uses_gradients:
        yield "schedule:step_unsynced"


def _settings(case: Case) -> Iterator[str]:
    yield from case.optimizer.features()
    yield f"dtype:{case.dtype}"
    yield f"values:{case.values}"
    yield f"loss:{case.loss}"
    if case.mesh.size <= 4:
        yield f"mesh:{case.mesh.size}"
    if case.mesh.made != "plainly":
        yield f"mesh:{case.mesh.made}"
    if case.finalize is not None:
        yield f"option:finalize_{case.finalize}"
    if case.compile is not None:
        yield f"compile:{case.compile}"
    if case.observe in _OBSERVED:
        yield _OBSERVED[case.observe]
    yield from (f"checkpoint:{checkpoint.implementation}" for checkpoint in case.checkpoints)
    yield from (f"delay:{delay.site}" for delay in case.delays)
    yield from (f"expect:{expect.kind}" for expect in case.expect)
