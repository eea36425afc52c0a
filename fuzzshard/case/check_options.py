"""Which options of engines fit a Case, and each other; part of :mod:`fuzzshard.case.validate`."""

from __future__ import annotations

import re

from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.check_dtypes import check_dtypes
from fuzzshard.case.communication import misfit
from fuzzshard.case.facts import Facts
from fuzzshard.case.groups import wrapped_modules
from fuzzshard.case.layouts import check_layouts
from fuzzshard.case.paths import is_within
from fuzzshard.case.placements import shard_dim
from fuzzshard.case.tensor_parallel import check_plan
from fuzzshard.case.units import parameter_groups
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engines import ENGINES

LONGEST_DELAY = 1000.0
"""Milliseconds; a hand-edited case must not sleep for ever."""


def check_options(case: Case, found: Facts) -> None:
    """Raises :class:`InvalidCase` where an option names nothing or cannot be meant."""
    _check_mesh(case)
    check_plan(case, found)
    check_layouts(case, found)
    _check_groups(case, found)
    _check_shard_dims(case, found)
    _check_names(case, found)
    _check_expectations(case)
    check_dtypes(case, found)
    keeps = [group.precision.keep for group in case.wrap if group.precision is not None]
    if any(keeps) and any(op.casts_to for op in case.schedule):
        raise InvalidCase(
            "param_dtype_override_fn names a dtype once, and the model is cast later",
            "remove one of the two",
        )
    for spec in ENGINES.values():
        spec.check(case, found)
    for delay in case.delays:
        if not 0 <= delay.milliseconds <= LONGEST_DELAY:
            raise InvalidCase(
                f"a delay of {delay.milliseconds} ms", f"use 0 to {LONGEST_DELAY:.0f} milliseconds"
            )


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


def _check_groups(case: Case, found: Facts) -> None:
    wrapped = wrapped_modules(case)
    for index, group in enumerate(case.wrap):
        for path in (*group.forward_prefetch, *group.backward_prefetch):
            if path not in wrapped:
                raise InvalidCase(f"a prefetch names {path!r}, which is not wrapped", "wrap it")
        if (group.forward_prefetch or group.backward_prefetch) and len(group.modules) > 1:
            raise InvalidCase(
                "a list group has prefetch lists", "give them to a group of one module"
            )
        if len(set(group.communication)) < len(group.communication):
            raise InvalidCase("a group names an option of its communication twice", "remove one")
        for option in group.communication:
            if (reason := misfit(case, found, index, option)) is not None:
                raise InvalidCase(f"option {option} of a group: {reason}", "remove the option")


def _check_shard_dims(case: Case, found: Facts) -> None:
    """``fully_shard``: "If sharding on a nonzero dim, we currently require even sharding" (its
    docstring).
    """
    if all(group.shard_dim == "first" for group in case.wrap):
        return
    for fqn, indices in parameter_groups(case).items():
        shape = found.parameters[fqn]
        for group in (case.wrap[index] for index in sorted(indices)):
            if group.shard_dim == "first":
                continue
            if any(is_within(fqn, plan.module) for plan in case.tensor_parallel):
                raise InvalidCase(
                    f"tensor parallel {fqn!r} is in a group with a shard_dim", 'use "first"'
                )
            dim = shard_dim(group, shape)
            if dim and shape[dim] % case.mesh.shard:
                evenly = f"evenly over {case.mesh.shard} ranks on dim {dim}"
                raise InvalidCase(
                    f"{fqn!r} {list(shape)} cannot be sharded {evenly}",
                    "use sizes that the shard axis divides",
                )


def _check_names(case: Case, found: Facts) -> None:
    named = [("ignored", path) for path in case.ignored]
    named += [("dtypes", entry.target) for entry in case.dtypes]
    named += [("optimizer.exclude", path) for path in case.optimizer.left_out]
    for what, target in named:
        if not any(is_within(fqn, target) for fqn in found.parameters):
            raise InvalidCase(
                f"{what} names {target!r}, which has no parameters", "use a module or parameter"
            )
    if len(case.optimizer.left_out) and all(
        any(is_within(fqn, path) for path in case.optimizer.left_out) for fqn in found.parameters
    ):
        raise InvalidCase("the optimizer has no parameters", "exclude fewer")
    low = any(g.precision and g.precision.param for g in case.wrap) or case.fsdp1.precision
    if low and found.batch_norms:
        raise InvalidCase(
            "batch norm under mixed precision has buffers of another dtype",
            "remove one of the two",
        )


def _check_expectations(case: Case) -> None:
    for expect in case.expect:
        if expect.engine not in ALL_ENGINES or expect.engine not in case.engines:
            raise InvalidCase(
                f"an expectation for {expect.engine!r}, which does not run", "name an engine"
            )
        if not 0 <= expect.op < len(case.schedule):
            raise InvalidCase(f"an expectation at op {expect.op}", "use the index of an op")
        try:
            re.compile(expect.pattern)
        except re.error as error:
            raise InvalidCase(
                f"{expect.pattern!r} is no regular expression: {error}", "mend it"
            ) from None
