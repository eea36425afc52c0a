"""The units of FSDP1: every wrapped module and the root, each with one flat parameter of its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from fuzzshard.case.batches import all_rows
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Alias, Block, join, resolve, walk
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import engines_train_more_from, follow
from fuzzshard.parts.leaf import Leaf

ROOT = ""


def unit_modules(case: Case) -> tuple[str, ...]:
    """The wrapped modules without the root, in the order in which they are wrapped."""
    return tuple(module for group in case.wrap for module in group.modules if module != ROOT)


def parameter_units(case: Case) -> dict[str, frozenset[str]]:
    """The units in which each parameter is registered, by its FQN: several if it is shared across units.

    A unit has what no unit within it has (``FullyShardedDataParallel``, docstring: modules are wrapped
    bottom-up); the root unit is always there.
    """
    found = facts(case)
    units = {ROOT, *unit_modules(case)}
    ties = {tie.parameter: tie.source for tie in case.ties}
    owners: dict[str, set[str]] = {fqn: set() for fqn in found.parameters}

    def visit(path: str, unit: str) -> None:
        target = resolve(case.model, path)
        assert target is not None
        path, module = target
        unit = path if path in units else unit
        if isinstance(module, Block):
            for child in module.children:
                visit(join(path, child.name), unit)
        elif isinstance(module, Leaf):
            for name in module.parameters(found.width(path)):
                fqn = join(path, name)
                owners[ties.get(fqn, fqn)].add(unit)

    visit(ROOT, ROOT)
    return {fqn: frozenset(names) for fqn, names in owners.items()}


def parameter_groups(case: Case) -> dict[str, frozenset[int]]:
    """The wrap groups (indices into ``case.wrap``) that come upon each parameter when they are applied.

    More than its owner where it is tied across groups: the call of ``fully_shard`` that comes later shards it
    once more, which torch refuses in the first forward only (``_validate_no_duplicate_params``).
    """
    group_of = {module: index for index, group in enumerate(case.wrap) for module in group.modules}
    owners = facts(case).owners
    return {
        fqn: frozenset(group_of[name] for name in names if name in group_of and owners[fqn] is not None)
        for fqn, names in parameter_units(case).items()
    }


def units(case: Case) -> dict[str, tuple[str, ...]]:
    """The parameters of every unit that has any."""
    members: dict[str, list[str]] = {}
    for fqn, names in parameter_units(case).items():
        for name in names:
            members.setdefault(name, []).append(fqn)
    return {unit: tuple(fqns) for unit, fqns in members.items()}


def splits_a_unit(case: Case, target: str) -> bool:
    """Whether ``target`` (a module or parameter) has some parameters of a unit, and not all of them."""
    inside = (tuple(is_within(fqn, target) for fqn in fqns) for fqns in units(case).values())
    return any(any(flags) and not all(flags) for flags in inside)


def computes_frozen_as_trainable(case: Case) -> bool:
    """Whether FSDP1 computes with a frozen parameter as if it required a gradient, at some time.

    It is a view of a flat parameter that does, with others in it (``use_orig_params``). That may round
    otherwise: ``matmul`` looks at what requires a gradient when it folds a batch into the rows
    (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp).
    """
    if "fsdp1" not in case.engines or not case.fsdp1.use_orig_params:
        return False
    groups = units(case).values()
    return any(0 < len(at.frozen.intersection(fqns)) < len(fqns) for at in follow(case) for fqns in groups)


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def fsdp1_multiplies_otherwise(case: Case) -> bool:
    """Whether products under FSDP1 may be rounded otherwise than in plain training."""
    return computes_frozen_as_trainable(case) or _multiplies_unaligned(case)


def some_engine_multiplies_otherwise(case: Case) -> bool:
    """The same of any engine: also of what is frozen in plain training alone."""
    return fsdp1_multiplies_otherwise(case) or engines_train_more_from(case) < len(case.schedule)


@functools.lru_cache(maxsize=64)
def fsdp1_normalizes_otherwise(case: Case, device: str) -> bool:
    """Whether norms under FSDP1 may be rounded otherwise than in plain training on ``device``.

    CUDA has a kernel that loads ``VECTOR`` elements at once and adds them up in an order of its own. It is
    taken where all parameters of the norm allow it (``can_vectorize`` in
    aten/src/ATen/native/cuda/layer_norm_kernel.cu).
    """
    if device != "cuda":
        return False
    found = facts(case)
    others = {tie.parameter: tie.source for tie in case.ties}
    unaligned = set(_unaligned(case, VECTOR))
    for path, leaf in found.leaves.items():
        if leaf.is_norm and found.width(path) % VECTOR == 0:
            names = (join(path, name) for name in leaf.parameters(found.width(path)))
            if any(others.get(name, name) in unaligned for name in names):
                return True
    return False


ALIGNMENT = 8
"""Elements of two bytes in 16 bytes."""

VECTOR = 4
"""Elements that CUDA's vectorized norms load at once."""


def _multiplies_unaligned(case: Case) -> bool:
    """Whether FSDP1 may multiply a vector by a matrix that does not begin at 16 bytes.

    BLAS adds up such a product of one row, or of one column, in an order that depends on where the matrix
    lies.
    """
    shapes = facts(case).parameters
    one_row = 1 in (*all_rows(case), case.inputs.seq)
    return any(len(shapes[f]) == 2 and (one_row or 1 in shapes[f]) for f in _unaligned(case, ALIGNMENT))


def _unaligned(case: Case, elements: int) -> Iterator[str]:
    """The parameters under FSDP1 that do not begin at a multiple of so many elements.

    They are views of a flat one, which pads between them with ``use_orig_params`` only
    (``align_addresses`` in torch/distributed/fsdp/_flat_param.py).
    """
    if "fsdp1" not in case.engines or case.fsdp1.use_orig_params:
        return
    shapes = facts(case).parameters
    for members in units(case).values():
        offset = 0
        for fqn in members:
            if offset % elements:
                yield fqn
            offset += math.prod(shapes[fqn])


def aliased_units(case: Case) -> tuple[str, ...]:
    """Wrapped modules that are registered at a second place."""
    targets = {module.target for _, module in walk(case.model) if isinstance(module, Alias)}
    return tuple(unit for unit in unit_modules(case) if unit in targets)


def fsdp1_shards(case: Case) -> bool:
    """Whether a rank has parts of FSDP1's parameters: over all ranks, or over one axis if it is hybrid.

    It takes ``NO_SHARD`` for every strategy where these are one rank (``_init_core_state``).
    """
    num_shards = case.mesh.shard if case.fsdp1.strategy.startswith("hybrid") else case.mesh.data_size
    return case.fsdp1.strategy != "no_shard" and num_shards > 1
