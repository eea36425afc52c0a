"""Mutations of how a model is wrapped, checkpointed, frozen and tied."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from fuzzshard.case.case import Case, Checkpoint, Freeze, Tie, WrapGroup
from fuzzshard.case.edit import split, with_item, without
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.mutate.edits import (
    Mutation,
    inserted,
    some_called,
    some_parameter,
    wrapped_modules,
)
from fuzzshard.parts.options.wrap_group import GROUP_OPTIONS, GroupOption

_LISTS = (
    "checkpoints",
    "freezes",
    "ties",
    "dtypes",
    "tensor_parallel",
    "ignored",
    "delays",
    "wrap",
)


def drop_part(rng: Random, case: Case, other: Case) -> Case | None:
    """Without one item of a plan."""
    offered = [(name, i) for name in _LISTS for i in range(len(getattr(case, name)))]
    if not offered:
        return None
    name, index = rng.choice(offered)
    return replace(case, **{name: without(getattr(case, name), index)})


def wrap_module(rng: Random, case: Case, other: Case) -> Case | None:
    """One more wrapped module, in a group of its own after those below it, or in a group that is
    there.
    """
    wrapped = wrapped_modules(case)
    options = [path for path in facts(case).modules if path not in wrapped]
    if not options:
        return None
    path = rng.choice(options)
    if case.wrap and path and rng.random() < 0.3:
        index = rng.randrange(len(case.wrap))
        group = case.wrap[index]
        return replace(
            case, wrap=with_item(case.wrap, index, replace(group, modules=(*group.modules, path)))
        )
    below = [i for i, g in enumerate(case.wrap) if any(is_within(m, path) for m in g.modules)]
    like = rng.choice(case.wrap) if case.wrap else WrapGroup(modules=())
    group = like.of((path,))
    return replace(case, wrap=inserted(case.wrap, max(below, default=-1) + 1, group))


def regroup(rng: Random, case: Case, other: Case) -> Case | None:
    """Two groups as one, a list group taken apart, or two groups in the other order."""
    if len(case.wrap) < 2:
        return None
    first, second = sorted(rng.sample(range(len(case.wrap)), 2))
    a, b = case.wrap[first], case.wrap[second]
    if len(a.modules) > 1 and rng.random() < 0.5:
        single = tuple(replace(a, modules=(m,)) for m in a.modules)
        return replace(case, wrap=(*case.wrap[:first], *single, *case.wrap[first + 1 :]))
    if rng.random() < 0.5:
        return replace(case, wrap=with_item(with_item(case.wrap, first, b), second, a))
    merged = a.of(a.modules + b.modules)
    return replace(case, wrap=with_item(without(case.wrap, second), first, merged))


def of_groups(kind: str) -> tuple[Mutation, ...]:
    """Return the mutations of this kind that options of groups have."""
    return tuple(map(_of_option, (o for o in GROUP_OPTIONS if o.mutation == kind)))


def _of_option(option: GroupOption) -> Mutation:
    """Return the mutation that gives some groups another value of an option."""

    def mutation(rng: Random, case: Case, other: Case) -> Case | None:
        changed = option.mutated(rng, case) if case.wrap else None
        if changed is None:
            return None
        groups = (changed.get(index, group) for index, group in enumerate(case.wrap))
        return replace(case, wrap=tuple(groups))

    mutation.__name__ = option.name
    return mutation


def checkpoint(rng: Random, case: Case, other: Case) -> Case | None:
    """One more module is recomputed in the backward, or another one than now."""
    path = some_called(rng, case)
    implementation = rng.choice(("composable", "wrapper", "utils") if path else ("composable",))
    new = Checkpoint(module=path, implementation=implementation)  # type: ignore[arg-type]
    kept = [c for c in case.checkpoints if c.module != path and (len(case.checkpoints) < 2)]
    return replace(case, checkpoints=(*kept, new))


def freeze(rng: Random, case: Case, other: Case) -> Case | None:
    """Something else is frozen from the start."""
    new = Freeze(target=some_parameter(rng, case), after_wrap=rng.random() < 0.5)
    kept = tuple(f for f in case.freezes if f.target != new.target)
    return replace(case, freezes=(*kept, new))


def exclude(rng: Random, case: Case, other: Case) -> Case | None:
    """Something that ``fully_shard`` ignores, or that the optimizer does not get."""
    path = some_parameter(rng, case)
    if rng.random() < 0.5:
        return replace(case, ignored=(path,), ignored_by=rng.choice(("argument", "adding")))
    return replace(case, optimizer=case.optimizer.leaving_out((path,)))


def tie(rng: Random, case: Case, other: Case) -> Case | None:
    """Two names of one parameter."""
    shapes = facts(case).parameters
    pairs = [
        (source, parameter)
        for i, source in enumerate(shapes)
        for parameter in list(shapes)[i + 1 :]
        if shapes[source] == shapes[parameter] and split(source)[0] != split(parameter)[0]
    ]
    if not pairs:
        return None
    source, parameter = rng.choice(pairs)
    return replace(case, ties=(*case.ties, Tie(parameter=parameter, source=source)))
