"""Which options of engines fit a Case, and each other; :mod:`fuzzshard.analysis.validate` asks."""

from __future__ import annotations

import re

from fuzzshard.analysis.check_dtypes import trained_in_several_dtypes
from fuzzshard.analysis.communication import Told
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.tensor_parallel import plan_misfits
from fuzzshard.case.case import ALL_ENGINES, Case
from fuzzshard.case.graph import Alias, Block, join, walk
from fuzzshard.case.paths import is_within, is_within_any
from fuzzshard.parts.engines import ENGINES
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.options.optimizer import flag_misfits

LONGEST_DELAY = 1000.0
"""Milliseconds; a hand-edited case must not sleep for ever."""


def option_misfits(case: Case, found: Inferred) -> Reasons:
    """Yield where an option names nothing or cannot be meant, whatever the schedule."""
    yield from _mesh_misfits(case)
    yield from plan_misfits(case, found)
    yield from group_misfits(case, found)
    yield from _name_misfits(case, found)
    yield from _added_misfits(case, found)
    yield from _matrix_misfits(case, found)
    yield from _scaler_misfits(case)
    yield from flag_misfits(case.optimizer)
    yield from _second_backward_misfits(case, found)
    frozen = {f for f in found.parameters if any(is_within(f, g.target) for g in case.freezes)}
    yield from trained_in_several_dtypes(case, found, frozen)
    for spec in ENGINES.values():
        yield from spec.misfits(case, found)
    if case.finalize is not None and not case.root_is_wrapped:
        yield "backward is finalized by hand and the root is not wrapped", "wrap it"
    for delay in case.delays:
        if not 0 <= delay.milliseconds <= LONGEST_DELAY:
            yield (
                f"a delay of {delay.milliseconds} ms",
                f"use 0 to {LONGEST_DELAY:.0f} milliseconds",
            )


def fits_options(case: Case, found: Inferred) -> bool:
    """Tell whether no option of the case is refused."""
    return next(option_misfits(case, found), None) is None


def no_parameters(what: str, target: str) -> tuple[str, str]:
    """Return that ``what`` must name a module with parameters, or a parameter."""
    return f"{what} names {target!r}, which has no parameters", "use a module or parameter"


def _mesh_misfits(case: Case) -> Reasons:
    mesh = case.mesh
    for name in ("shard", "replicate", "tensor", "pipeline"):
        size = getattr(mesh, name)
        if size is not None and size < 1:
            yield f"the {name} axis of the mesh has size {size}", "use at least 1"
    if (mesh.tensor or 1) > 1 and not case.tensor_parallel:
        yield (
            f"the mesh has a tensor-parallel axis of size {mesh.tensor} and no module uses it",
            "give a tensor_parallel plan",
        )


def group_misfits(case: Case, found: Inferred) -> Reasons:
    """Yield why an option cannot be meant for its group."""
    for index, group in enumerate(case.wrap):
        told = Told(case, found, index)
        for option, value in group.told():
            yield from option.misfits(value, told)


def _name_misfits(case: Case, found: Inferred) -> Reasons:
    named = [("ignored", path) for path in case.ignored]
    named += [("dtypes", entry.target) for entry in case.dtypes]
    named += [("optimizer.exclude", path) for path in case.optimizer.exclude]
    named += [("freeze", freeze.target) for freeze in case.freezes]
    for what, target in named:
        if not any(is_within(fqn, target) for fqn in found.parameters):
            yield no_parameters(what, target)
    apart = [is_within_any(fqn, case.optimizer.exclude) for fqn in found.parameters]
    if apart and all(apart):
        yield "the optimizer has no parameters", "exclude fewer"
    if len(case.optimizer.each) > 1 and not any(apart):
        yield ("the second optimizer has no parameters", "name them in optimizer.exclude")
    policies = [group.precision for group in case.wrap]
    low = any(policy.param for policy in policies if policy) or case.fsdp1.precision
    if low and not all(leaf.mixes_buffers for leaf in found.leaves.values()):
        yield (
            "batch norm under mixed precision has buffers of another dtype",
            "remove one of the two",
        )


def _added_misfits(case: Case, found: Inferred) -> Reasons:
    """What is added to a wrapped model is modules with all that is below them, and they are
    registered last.
    """
    if case.added and case.init == "meta":
        yield ("a module is added later, and the model is on the meta device", 'use init="device"')
    taken = [place for tie in case.ties for place in (tie.parameter, tie.source)]
    taken += [place for group in case.wrap for place in group.modules]
    for path, module in walk(case.model):
        taken += [path, module.target] if isinstance(module, Alias) else []
    added: dict[str, list[str]] = {}
    for path in case.added:
        if path not in found.modules or not path:
            yield f"{path!r} is added later, and is no module", "name a module"
        others = [other for other in case.added if other != path]
        if is_within_any(path, others) or any(is_within(place, path) for place in taken):
            yield (
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
            yield (
                f"{paths[0]!r} is added later, and something else is registered after it",
                "name the last modules of a block, in their order",
            )


def _matrix_misfits(case: Case, found: Inferred) -> Reasons:
    """An optimizer of matrices gets nothing else, and has not all options."""
    optimizer = case.optimizer
    if not optimizer.steps_matrices:
        return
    for fqn, shape in found.parameters.items():
        if not (is_within_any(fqn, optimizer.exclude) or optimizer.takes(shape)):
            yield (
                f"{optimizer.kind} gets {fqn!r} of {len(shape)} dims: it is for matrices",
                f"name {fqn!r} in optimizer.exclude",
            )
    for option, value in optimizer.told():
        if not option.for_matrices and value != option.default:
            yield f"{optimizer.kind} has no {option.name}", "remove it"


def _scaler_misfits(case: Case) -> Reasons:
    """A ``GradScaler`` steps where gradients are there."""
    if case.optimizer.grad_scaler is None:
        return
    if case.optimizer.left_out:
        yield "a step of a GradScaler may have no gradients", "exclude nothing from the optimizer"
    if case.optimizer.scheduler:
        yield (
            "a scheduler steps after a step that a GradScaler may skip, and torch warns",
            "use one of them",
        )


def _second_backward_misfits(case: Case, found: Inferred) -> Reasons:
    """What a loss with gradients of inputs needs."""
    if not LOSSES[case.loss].differentiates_twice:
        return
    if not any(tensor.requires_grad for tensor in case.inputs.tensors):
        yield (
            f"the loss {case.loss!r} is of gradients of inputs, and no input has one",
            "let an input require gradients",
        )
    for leaf in found.leaves.values():
        if why := leaf.lacks_backward(twice=True, on_cuda=False, in_evaluation=False):
            yield f"the loss {case.loss!r}: {why}", "take another module"
    if case.checkpoints or case.compile is not None:
        yield (
            f"the loss {case.loss!r} needs a backward through a backward, which checkpoints and "
            "compile() do not promise",
            "remove either",
        )


def expectation_misfits(case: Case) -> Reasons:
    """Yield where an error or a warning is expected of nothing that runs."""
    for expect in case.expect:
        if expect.engine not in ALL_ENGINES or expect.engine not in case.engines:
            yield (f"an expectation for {expect.engine!r}, which does not run", "name an engine")
        if not 0 <= expect.op < len(case.schedule):
            yield f"an expectation at op {expect.op}", "use the index of an op"
        try:
            re.compile(expect.pattern)
        except re.error as error:
            yield (f"{expect.pattern!r} is no regular expression: {error}", "correct it")
