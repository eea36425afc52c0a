"""Mutations that take something from another interesting case, or draw a part of the case
again.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.edit import NOWHERE, edit_block, rename_paths
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.mutate.edits import wrapped_modules
from fuzzshard.mutate.model import chained, fresh
from fuzzshard.parts.engines import OPTIONS
from fuzzshard.strategies.draw import NUM_BYTES, redrawn


def splice_schedule(rng: Random, case: Case, other: Case) -> Case | None:
    """The other case's schedule, or its end after the beginning of this one's."""
    schedule = _named_as_in(rng, case, other).schedule
    if rng.random() < 0.4 and len(case.schedule) > 1:
        schedule = (
            case.schedule[: rng.randrange(len(case.schedule))]
            + schedule[rng.randrange(len(schedule)) :]
        )
    return replace(case, schedule=schedule)


def splice_plan(rng: Random, case: Case, other: Case) -> Case | None:
    """A part of what the other case has beside model and schedule: groups' options, plans,
    settings.
    """
    there = _named_as_in(rng, case, other)
    taken = {
        name: getattr(there, name)
        for name in (
            "checkpoints",
            "freezes",
            "mesh",
            "ignored",
            "ignored_by",
            "engines",
            "init",
            *OPTIONS,
        )
        if rng.random() < 0.4
    }
    if rng.random() < 0.4:
        taken["optimizer"] = there.optimizer.leaving_out(())
    if other.wrap and rng.random() < 0.6:
        options = [other.wrap[i % len(other.wrap)] for i in range(len(case.wrap))]
        taken["wrap"] = tuple(
            like.of(group.modules) for group, like in zip(case.wrap, options, strict=True)
        )
    return replace(case, **taken)


def splice_model(rng: Random, case: Case, other: Case) -> Case | None:
    """A block of the other case as a further module of the root, wrapped as it is there, or as it
    comes.
    """
    donors = [
        c
        for c in other.model.children
        if isinstance(c.module, Block) and len(c.module.inputs) == 1
    ]
    outputs = [n.name for n in case.model.nodes if isinstance(n, Call)]
    if not donors or not outputs:
        return None
    donor = rng.choice(donors)
    assert isinstance(donor.module, Block)
    name = fresh(case.model, "donated")
    module = replace(
        donor.module, method="forward", passing="positional", outputs=donor.module.outputs[:1]
    )
    call = Call(name=fresh(case.model, "value"), module=name, args=(rng.choice(outputs),))

    def grown(root: Block) -> Block:
        child = Child(name=name, module=replace(module, returns="tensor"))
        return chained(replace(root, children=(*root.children, child)), call)

    groups = [
        g.of(name + m[len(donor.name) :] for m in g.modules)
        for g in other.wrap
        if all(m == donor.name or m.startswith(f"{donor.name}.") for m in g.modules)
    ]
    return replace(case, model=edit_block(case.model, "", grown), wrap=(*groups, *case.wrap))


def redraw_schedule(rng: Random, case: Case, other: Case) -> Case | None:
    """Another schedule for this model and plan, as the strategies draw one."""
    return redrawn(case, rng.randbytes(NUM_BYTES), "schedule")


def redraw_options(rng: Random, case: Case, other: Case) -> Case | None:
    """Other options for this model and wrap plan, and another schedule."""
    return redrawn(case, rng.randbytes(NUM_BYTES), "options")


def redraw_plan(rng: Random, case: Case, other: Case) -> Case | None:
    """Another plan for this model, and all that depends on it."""
    return redrawn(case, rng.randbytes(NUM_BYTES), "plan")


def _named_as_in(rng: Random, case: Case, other: Case) -> Case:
    """``other`` with its paths replaced by paths of ``case`` in the same role: the root, wrapped,
    any.

    Its own model and plan do not fit its references any more; only these are of use.
    """
    here, there = facts(case), facts(other)
    roles = (
        (wrapped_modules(other), wrapped_modules(case)),
        (list(there.modules), list(here.modules)),
        (list(there.parameters), list(here.parameters)),
    )
    names: dict[str, str] = {"": ""}
    for theirs, ours in roles:
        for path in theirs:
            names.setdefault(path, rng.choice(ours) if ours else NOWHERE)
    return rename_paths(other, lambda path: names.get(path, path))
