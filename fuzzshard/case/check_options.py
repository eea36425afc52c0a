"""Which options of engines fit a Case, and each other; part of :mod:`fuzzshard.case.validate`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import (
    BatchNorm,
    Block,
    Call,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    RMSNorm,
)
from fuzzshard.case.paths import is_within
from fuzzshard.errors import InvalidCase

LONGEST_DELAY = 1000.0
"""Milliseconds; a hand-edited case must not sleep for ever."""


def check_options(case: Case, found: Facts) -> None:
    """Raises :class:`InvalidCase` where an option names nothing or cannot be meant."""
    _check_mesh(case)
    _check_tensor_parallel(case, found)
    _check_groups(case)
    _check_names(case, found)
    _check_expectations(case)
    for delay in case.delays:
        if not 0 <= delay.milliseconds <= LONGEST_DELAY:
            raise InvalidCase(
                f"a delay of {delay.milliseconds} ms", f"use 0 to {LONGEST_DELAY:.0f} milliseconds"
            )
    strategy = case.fsdp1.strategy
    if "fsdp1" in case.engines and "hybrid" in strategy and case.mesh.replicate is None:
        raise InvalidCase(f"FSDP1 strategy {strategy} needs a replicate axis", "set mesh.replicate")


def _check_mesh(case: Case) -> None:
    mesh = case.mesh
    for name in ("shard", "replicate", "tensor", "pipeline"):
        size = getattr(mesh, name)
        if size is not None and size < 1:
            raise InvalidCase(f"the {name} axis of the mesh has size {size}", "use at least 1")
    if (mesh.tensor or 1) > 1 and not case.tensor_parallel:
        raise InvalidCase(
            f"the mesh has a tensor-parallel axis of size {mesh.tensor} and no module uses it",
            "give a tensor_parallel plan",
        )


_STYLES = {"colwise": (Linear, Embedding), "rowwise": (Linear, Embedding), "sequence": (LayerNorm, RMSNorm)}


def _check_tensor_parallel(case: Case, found: Facts) -> None:
    if case.tensor_parallel and case.mesh.tensor is None:
        raise InvalidCase("a tensor_parallel plan without a tensor-parallel axis", "set mesh.tensor")
    if case.tensor_parallel and case.init == "meta":
        raise InvalidCase("tensor parallelism of a model on the meta device is not supported", 'use "device"')
    planned = [plan.module for plan in case.tensor_parallel]
    for plan in case.tensor_parallel:
        module = found.modules.get(plan.module)
        if not isinstance(module, _STYLES[plan.style]):
            raise InvalidCase(
                f"{plan.module!r} cannot be {plan.style} parallel",
                "colwise and rowwise are for Linear and Embedding, sequence is for norms",
            )
        if planned.count(plan.module) > 1:
            raise InvalidCase(f"{plan.module!r} is planned twice", "give one style")
        sequence = plan.style == "sequence" or "sequence" in (plan.input, plan.output)
        if sequence and case.inputs.seq < 1:
            raise InvalidCase(f"{plan.module!r} is sharded along a sequence axis", "set inputs.seq")


def _check_groups(case: Case) -> None:
    wrapped = {m for group in case.wrap for m in group.modules}
    for group in case.wrap:
        for path in (*group.forward_prefetch, *group.backward_prefetch):
            if path not in wrapped:
                raise InvalidCase(f"a prefetch names {path!r}, which is not wrapped", "wrap it")
        if (group.forward_prefetch or group.backward_prefetch) and len(group.modules) > 1:
            raise InvalidCase("a list group has prefetch lists", "give them to a group of one module")


def _check_names(case: Case, found: Facts) -> None:
    named = [("ignored", path) for path in case.ignored]
    named += [("dtypes", entry.target) for entry in case.dtypes]
    named += [("optimizer.exclude", path) for path in case.optimizer.exclude]
    for what, target in named:
        if not any(is_within(fqn, target) for fqn in found.parameters):
            raise InvalidCase(
                f"{what} names {target!r}, which has no parameters", "use a module or parameter"
            )
    if len(case.optimizer.exclude) and all(
        any(is_within(fqn, path) for path in case.optimizer.exclude) for fqn in found.parameters
    ):
        raise InvalidCase("the optimizer has no parameters", "exclude fewer")
    low = any(g.precision and g.precision.param for g in case.wrap) or case.fsdp1.precision
    if low and any(isinstance(m, BatchNorm) for m in found.modules.values()):
        raise InvalidCase(
            "batch norm under mixed precision has buffers of another dtype", "remove one of the two"
        )


def _check_expectations(case: Case) -> None:
    for expect in case.expect:
        if expect.engine not in ALL_ENGINES or expect.engine not in case.engines:
            raise InvalidCase(f"an expectation for {expect.engine!r}, which does not run", "name an engine")
        if not 0 <= expect.op < len(case.schedule):
            raise InvalidCase(f"an expectation at op {expect.op}", "use the index of an op")
        try:
            re.compile(expect.pattern)
        except re.error as error:
            raise InvalidCase(f"{expect.pattern!r} is no regular expression: {error}", "mend it") from None


def count_paths(modules: Mapping[str, Module]) -> dict[str, int]:
    """Blocks that have calls with alternatives, and how many paths there are."""
    counts: dict[str, int] = {}
    for path, module in modules.items():
        for node in module.nodes if isinstance(module, Block) else ():
            if isinstance(node, Call) and node.alternatives:
                counts[path] = min(counts.get(path, len(node.modules)), len(node.modules))
    return counts
