"""Edits of a Case at random: the reducer's mirror. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from fuzzshard.case.case import Case
from fuzzshard.errors import InvalidCase
from fuzzshard.mutate import model, options, plan, schedule, splice
from fuzzshard.mutate.edits import Mutation
from fuzzshard.mutate.fits import fits
from fuzzshard.shrink.repair import repaired

__all__ = ["KINDS", "MUTATIONS", "Mutation", "mutated"]

KINDS: Mapping[str, tuple[Mutation, ...]] = {
    "drop": (schedule.drop_ops, plan.drop_part, model.simplify),
    "move": (schedule.move_ops, plan.regroup),
    "duplicate": (schedule.duplicate_ops, model.repeat_call),
    "add_ops": (schedule.add_ops, schedule.flag),
    "add_part": (
        plan.wrap_module,
        plan.checkpoint,
        plan.freeze,
        plan.tie,
        plan.exclude,
    ),
    "add_module": (model.add_module, model.residual, model.no_grad_call, model.partial_loss),
    "toggle": (schedule.toggle,),
    "flip": (options.flip_option, *plan.of_groups("flip")),
    "precision": plan.of_groups("precision"),
    "mesh": (options.mesh,),
    "sizes": (options.widths, options.batch, options.rank_batch),
    "splice": (splice.splice_schedule, splice.splice_plan, splice.splice_model),
    "redraw_schedule": (splice.redraw_schedule,),
    "redraw_options": (splice.redraw_options,),
    "redraw_plan": (splice.redraw_plan,),
}
"""Mutations by kind; of one kind, one is chosen evenly."""

MUTATIONS: tuple[Mutation, ...] = tuple(mutation for kind in KINDS.values() for mutation in kind)

TRIES = 6
"""Attempts at a valid mutant before another kind gets its turn."""
_MORE = 0.3
"""How likely another edit of the same kind follows: most mutants differ from their parent in one
thing.
"""


def mutated(
    kind: str, rng: Random, case: Case, other: Case, world_size: int, *, cuda: bool
) -> Case | None:
    """A valid case other than ``case``, by mutations of ``kind``; None where a few attempts make
    none.
    """
    for _ in range(TRIES):
        mutant = attempt(rng.choice(KINDS[kind]), rng, case, other, world_size, cuda=cuda)
        if mutant is None:
            continue
        while rng.random() < _MORE:
            again = attempt(rng.choice(KINDS[kind]), rng, mutant, other, world_size, cuda=cuda)
            mutant = again or mutant
        if mutant != case:
            return mutant
    return None


def attempt(
    mutation: Mutation, rng: Random, case: Case, other: Case, world_size: int, *, cuda: bool
) -> Case | None:
    """What one mutation makes of ``case``, repaired; None unless that is another case that
    fits.
    """
    try:
        changed = mutation(rng, case, other)
    except InvalidCase:  # of a part that was drawn again for a case that is too odd for it
        return None
    mended = repaired(changed) if changed is not None and changed != case else None
    return (
        mended
        if mended is not None and mended != case and fits(mended, world_size, cuda=cuda)
        else None
    )
