"""Which options of engines fit a Case, and each other; part of :mod:`fuzzshard.case.validate`."""

from __future__ import annotations

import re

from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.check_dtypes import check_dtypes
from fuzzshard.case.communication import Told
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import Alias, Block, join, walk
from fuzzshard.case.layouts import check_layouts
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.case.tensor_parallel import check_plan
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.losses import LOSSES

LONGEST_DELAY = 1000.0
"""Milliseconds; a hand-edited case must not sleep for ever."""


def check_options(case: Case, found: Facts) -> None:
    """Raises :class:`InvalidCase` where an option names nothing or cannot be meant."""
    _check_mesh(case)
    check_plan(case, found)
    check_layouts(case, found)
    _check_groups(case, found)
    _check_names(case, found)
    _check_added(case, found)
    _check_matrices(case, found)
    _check_second_backward(case, found)
    _check_expectations(case)
    check_dtypes(case, found)
    policies = [group.policy for group in case.wrap]
    keeps = any(policy.does("keeps_vectors") for policy in policies if policy)
    if keeps and any(op.casts_to for op in case.schedule):
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


def fits_options(case: Case, found: Facts) -> bool:
    """Whether its options can be meant."""
    try:
        check_options(case, found)
    except InvalidCase:
        return False
    return True


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
    for index, group in enumerate(case.wrap):
        told = Told(case, found, index)
        for option, value in group.told():
            for misfit in option.misfits(value, told):
                raise InvalidCase(*misfit)


def _check_names(case: Case, found: Facts) -> None:
    named = [("ignored", path) for path in case.ignored]
    named += [("dtypes", entry.target) for entry in case.dtypes]
    named += [("optimizer.exclude", path) for path in case.optimizer.set_apart]
    for what, target in named:
        if not any(is_within(fqn, target) for fqn in found.parameters):
            raise InvalidCase(
                f"{what} names {target!r}, which has no parameters", "use a module or parameter"
            )
    apart = [is_within_any(fqn, case.optimizer.set_apart) for fqn in found.parameters]
    if apart and all(apart):
        raise InvalidCase("the optimizer has no parameters", "exclude fewer")
    if len(case.optimizer.each) > 1 and not any(apart):
        raise InvalidCase(
            "the second optimizer has no parameters", "name them in optimizer.exclude"
        )
    policies = [group.policy for group in case.wrap]
    low = any(policy.dtype_of("parameters") for policy in policies if policy) or case.fsdp1.policy
    if low and found.batch_norms:
        raise InvalidCase(
            "batch norm under mixed precision has buffers of another dtype",
            "remove one of the two",
        )


def _check_added(case: Case, found: Facts) -> None:
    """What is added to a wrapped model is modules with all that is below them, and they are
    registered last.
    """
    if case.added and case.init == "meta":
        raise InvalidCase(
            "a module is added later, and the model is on the meta device", 'use init="device"'
        )
    taken = [place for tie in case.ties for place in (tie.parameter, tie.source)]
    taken += [place for group in case.wrap for place in group.modules]
    for path, module in walk(case.model):
        taken += [path, module.target] if isinstance(module, Alias) else []
    added: dict[str, list[str]] = {}
    for path in case.added:
        if path not in found.modules or not path:
            raise InvalidCase(f"{path!r} is added later, and is no module", "name a module")
        others = [other for other in case.added if other != path]
        if is_within_any(path, others) or any(is_within(place, path) for place in taken):
            raise InvalidCase(
                f"{path!r} is added to the wrapped model, and some of it is wrapped, shared or "
                "added by itself",
                "name modules that are not",
            )
        added.setdefault(path.rpartition(".")[0], []).append(path)
    for parent, paths in added.items():
        block = found.modules[parent]
        children = (
            [join(parent, c.name) for c in block.children] if isinstance(block, Block) else []
        )
        if children[-len(paths) :] != paths:
            raise InvalidCase(
                f"{paths[0]!r} is added later, and something else is registered after it",
                "name the last modules of a block, in their order",
            )


def _check_matrices(case: Case, found: Facts) -> None:
    """An optimizer of matrices gets nothing else, and has not all options."""
    optimizer, added = case.optimizer, [op.adds for op in case.schedule if op.adds is not None]
    if not optimizer.does("steps_matrices"):
        return
    for fqn, shape in found.parameters.items():
        gets = not is_within_any(fqn, optimizer.set_apart) or is_within_any(fqn, added)
        if gets and not optimizer.takes(shape):
            raise InvalidCase(
                f"{optimizer.title} gets {fqn!r} of {len(shape)} dims: it is for matrices",
                f"name {fqn!r} in optimizer.exclude",
            )
    for option, value in optimizer.told():
        if not option.for_matrices and value != option.default:
            raise InvalidCase(f"{optimizer.title} has no {option.name}", "remove it")


def _check_second_backward(case: Case, found: Facts) -> None:
    """What a loss with gradients of inputs needs."""
    if not LOSSES[case.loss].differentiates_twice:
        return
    if not any(tensor.requires_grad for tensor in case.inputs.tensors):
        raise InvalidCase(
            f"the loss {case.loss!r} is of gradients of inputs, and no input has one",
            "let an input require gradients",
        )
    if any(leaf.attends_at for leaf in found.leaves.values()):
        raise InvalidCase(
            f"the loss {case.loss!r} needs a backward through a backward, which kernels of "
            "scaled_dot_product_attention do not have",
            "take another attention",
        )
    if case.checkpoints or case.compile is not None:
        raise InvalidCase(
            f"the loss {case.loss!r} needs a backward through a backward, which checkpoints and "
            "compile() do not promise",
            "remove either",
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
                f"{expect.pattern!r} is no regular expression: {error}", "correct it"
            ) from None
