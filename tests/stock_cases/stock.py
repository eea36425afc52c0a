"""A hand-written case and what is known of its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cases import ROOT, TWO_STEPS, make_case

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.graph import Block
from fuzzshard.parts.op import Flag, Op
from fuzzshard.parts.ops import SetFlag


@dataclasses.dataclass(frozen=True)
class Stock:
    """A case, the comparisons that may judge it, and why which engine is not judged."""

    case: Case
    comparisons: tuple[str, ...]
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)


def bitwise(
    model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options: Any
) -> Stock:
    """Every tensor must be bitwise equal; ``ddp`` says why DDP is not judged."""
    return _stock(("bitwise",), model, schedule, **options)


def bounded(
    model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options: Any
) -> Stock:
    """Sums may be added in another order, as machines have it."""
    return _stock(("bitwise", "bounded"), model, schedule, **options)


def imprecise(
    model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options: Any
) -> Stock:
    """Something is computed in a lower precision than the case has."""
    return _stock(("bitwise", "precision"), model, schedule, **options)


def unjudged(
    model: Block | None = None, schedule: tuple[Op, ...] = TWO_STEPS, **options: Any
) -> Stock:
    """No tensor is compared."""
    return _stock(("",), model, schedule, **options)


def _stock(
    comparisons: tuple[str, ...],
    model: Block | None,
    schedule: tuple[Op, ...],
    *,
    ddp: str = "",
    notes: Mapping[str, str] | None = None,
    **options: Any,
) -> Stock:
    return Stock(
        make_case(model, schedule, **options), comparisons, {"ddp": ddp} if ddp else notes or {}
    )


def flag(name: Flag, value: bool, target: str = ROOT, *, recurse: bool = True) -> SetFlag:
    """An op that sets a flag."""
    return SetFlag(flag=name, value=value, target=target, recurse=recurse)


def configured(*modules: str, **options: Any) -> tuple[WrapGroup, ...]:
    """One wrap group for each path, all with the same options."""
    return tuple(WrapGroup(modules=(module,), **options) for module in modules)
