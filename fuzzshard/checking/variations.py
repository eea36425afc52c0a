"""Hypothesis strategies for trainings of a model of the user's own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from fuzzshard.errors import UsageError
from fuzzshard.parts.engines import spec_of
from fuzzshard.subject.subject import MeshShape, Training
from fuzzshard.subject.variation import ASPECTS, Aspect, Outline, Variation

MOST_NAMES = 3


def unvaried(runs: Sequence[Training]) -> dict[Aspect, str]:
    """Return what cannot vary around ``runs``, and why."""
    why: dict[Aspect, str] = {}
    if not any(spec_of(run.engine).wraps_blocks for run in runs):
        if all(run.engine for run in runs):
            reason = f"{' and '.join(dict.fromkeys(r.engine for r in runs))} has no such options"
        else:
            reason = "parallelize wraps the model"
        why |= {"plan": reason, "precision": reason}
    if len({str(run.mesh) for run in runs}) == 1:
        why["mesh"] = "there is only one"
    return why


def check_aspects(aspects: Collection[Aspect], runs: Sequence[Training]) -> None:
    """Raise :class:`UsageError` for an aspect that is named and cannot vary.

    Where all are, those that can are meant.
    """
    if set(aspects) == set(ASPECTS):
        return
    for aspect, why in unvaried(runs).items():
        if aspect in aspects:
            remedy = "name another with --mesh" if aspect == "mesh" else "leave it out"
            raise UsageError(f"--fuzz cannot vary the {aspect}: {why}", remedy)


@st.composite
def trainings_around(
    draw: st.DrawFn,
    outline: Outline,
    bases: Sequence[Training],
    aspects: Collection[Aspect],
) -> Training:
    """Draw a training that differs from one of ``bases`` in ``aspects``.

    It shrinks to the first base with few blocks, one step and nothing else changed. ``mesh``
    chooses among the meshes of all bases; without it there is the first one's.
    """
    base = draw(st.sampled_from(bases)) if "mesh" in aspects else draw(_of_one_mesh(bases))
    depth = draw(st.integers(1, outline.depth)) if outline.lists else 0
    plan, freeze, schedule = (aspect in aspects for aspect in ("plan", "freeze", "schedule"))
    wraps = spec_of(base.engine).wraps_blocks
    casts = wraps and "precision" in aspects
    microbatches = draw(st.integers(1, 3)) if schedule else base.microbatches
    return Training(
        mesh=base.mesh,
        engine=base.engine,
        seed=base.seed,
        repeat=False,
        steps=draw(st.integers(1, 3 if schedule else base.steps)),
        microbatches=microbatches,
        variation=Variation(
            depth=depth,
            lists=outline.lists,
            wrapped=draw(_wrapped(outline)) if plan and wraps else None,
            reshard=draw(st.sampled_from((None, True, False))) if plan and wraps else None,
            frozen=draw(_names((*outline.modules, *outline.parameters))) if freeze else (),
            checkpointed=draw(_names(outline.blocks)) if schedule else (),
            unsynced=schedule and microbatches > 1 and draw(st.booleans()),
            evaluates=schedule and draw(st.booleans()),
            param_dtype=draw(st.sampled_from(("", "bfloat16"))) if casts else "",
        ),
    )


def _of_one_mesh(bases: Sequence[Training]) -> st.SearchStrategy[Training]:
    mesh: MeshShape = bases[0].mesh
    return st.sampled_from([base for base in bases if base.mesh == mesh])


def _wrapped(outline: Outline) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Modules below the root, those within others first, as they have to be wrapped."""
    if not outline.wrappable:
        return st.none()
    some = st.sets(st.sampled_from(outline.wrappable), max_size=2 * MOST_NAMES)
    order = {name: position for position, name in enumerate(outline.modules)}
    return st.none() | some.map(
        lambda names: tuple(sorted(names, key=order.__getitem__, reverse=True))
    )


def _names(names: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    if not names:
        return st.just(())
    few = st.sets(st.sampled_from(names), max_size=MOST_NAMES)
    return st.just(()) | few.map(lambda chosen: tuple(sorted(chosen)))
