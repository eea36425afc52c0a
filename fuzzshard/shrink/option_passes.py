"""Passes over options: back to the default, or to a value that a smaller case has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from fuzzshard.analysis.order import SCALARS
from fuzzshard.case.case import Case, Optimizer, RankBatch, WrapGroup
from fuzzshard.case.edit import with_item, without
from fuzzshard.case.options import FSDP1
from fuzzshard.parts.engines import OPTIONS
from fuzzshard.parts.part import Part, default_of, off_default
from fuzzshard.parts.part import choices as choices_of
from fuzzshard.shrink.passes import Edit, change_item, put

P = TypeVar("P", FSDP1, WrapGroup)


def options(case: Case) -> Iterator[Edit]:
    """Put one option back to its default, wherever it stands."""
    for name in off_default(case):
        if name in SCALARS:
            yield put(**{name: default_of(case, name)})
    if case.optimizer != Optimizer():
        yield put(optimizer=Optimizer())
    for part, change in parts(case):
        for name in off_default(part):
            yield change(**{name: default_of(part, name)})
    for index, group in enumerate(case.wrap):
        for word in group.communication if len(group.communication) > 1 else ():
            yield functools.partial(_drop_word, index=index, word=word)
    for index, item in enumerate(case.inputs.rank_batches):
        yield functools.partial(_put_rank_batch, index=index, item=None)
        if item.batch is not None:
            yield functools.partial(_put_rank_batch, index=index, item=replace(item, batch=None))
    for index, tensor in enumerate(case.inputs.tensors):
        if tensor.requires_grad:
            yield _calm_input(index)


def public(case: Case) -> Iterator[Edit]:
    """Put a public way of checkpointing in place of a private one."""
    for index, checkpoint in enumerate(case.checkpoints):
        for implementation in _others(checkpoint, "implementation"):
            yield change_item("checkpoints", index, implementation=implementation)


def choices(case: Case) -> Iterator[Edit]:
    """Give another value to an option that must be off its default.

    Where several values show a failure the smallest case has one of them: so the values of two
    cases that were shrunk from different ones agree, and are no cause
    (:func:`fuzzshard.campaign.known.cause_of`).
    """
    for name in off_default(case):
        if name in SCALARS:
            for value in _others(case, name):
                yield put(**{name: value})
    for part, change in parts(case):
        for name in off_default(part):
            for value in _others(part, name):
                yield change(**{name: value})


def _others(part: Part, name: str) -> list[object]:
    """The values that a field with a few named ones may have, but for its own and its default."""
    used = (getattr(part, name), default_of(part, name))
    return [value for value in choices_of(type(part)).get(name, ()) if value not in used]


def parts(case: Case) -> Iterator[tuple[Part, Callable[..., Edit]]]:
    """Everything within a case that has options, and what changes some of them."""
    for field in (*OPTIONS, "optimizer", "inputs"):
        yield getattr(case, field), functools.partial(_change_part, field)
    if case.fsdp1.precision is not None:
        yield case.fsdp1.precision, _change_model_policy
    for field in ("schedule", "wrap", "checkpoints", "freezes", "tensor_parallel", "delays"):
        for index, part in enumerate(getattr(case, field)):
            yield part, functools.partial(change_item, field, index)
    for index, group in enumerate(case.wrap):
        if group.precision is not None:
            yield group.precision, functools.partial(_change_policy, index)


def _change_part(name: str, **fields: object) -> Edit:
    return lambda case: replace(case, **{name: replace(getattr(case, name), **fields)})


def _change_model_policy(**fields: object) -> Edit:
    return lambda case: replace(case, fsdp1=_with_policy(case.fsdp1, fields))


def _change_policy(index: int, **fields: object) -> Edit:
    """Changes the mixed precision of a group, if it still has any."""

    def edit(case: Case) -> Case:
        group = _with_policy(case.wrap[index], fields)
        return replace(case, wrap=with_item(case.wrap, index, group))

    return edit


def _with_policy(part: P, fields: Mapping[str, object]) -> P:
    return replace(part, precision=part.precision and replace(part.precision, **fields))


def _drop_word(case: Case, index: int, word: str) -> Case:
    group = case.wrap[index].telling(word, on=False)
    return replace(case, wrap=with_item(case.wrap, index, group))


def _put_rank_batch(case: Case, index: int, item: RankBatch | None) -> Case:
    """Puts ``item`` in the place of one rank's own batch size, or nothing."""
    present = case.inputs.rank_batches
    kept = without(present, index) if item is None else with_item(present, index, item)
    return replace(case, inputs=replace(case.inputs, rank_batches=kept))


def _calm_input(index: int) -> Edit:
    def edit(case: Case) -> Case:
        tensors = case.inputs.tensors
        calm = with_item(tensors, index, replace(tensors[index], requires_grad=False))
        return replace(case, inputs=replace(case.inputs, tensors=calm))

    return edit
