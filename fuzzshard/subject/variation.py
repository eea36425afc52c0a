"""What is changed around a model of the user's own: plan, freezes, schedule, precision. No torch
import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Aspect = Literal["plan", "freeze", "mesh", "schedule", "precision"]
ASPECTS: tuple[Aspect, ...] = ("plan", "freeze", "mesh", "schedule", "precision")


class Variation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes of a training; the defaults change nothing.

    ``wrapped`` are the modules that are wrapped before the root, in place of the blocks, None: the
    blocks. ``reshard`` is what ``reshard_after_forward`` is, None: torch's default. ``frozen`` are
    modules and parameters, ``checkpointed`` modules that are computed again in the backward.
    ``unsynced`` accumulates all microbatches but the last without reducing, ``evaluates`` runs a
    forward in evaluation mode before each step. Wrappers compute in ``param_dtype``. The
    ``lists`` of blocks keep their first ``depth``, 0: all. ``size`` is what ``smaller`` is called
    with, 0: ``build`` gives the model. ``only`` is the one module that is trained, cut out of the
    model, on the inputs that it gets there; empty: the whole model.
    """

    wrapped: tuple[str, ...] | None = None
    reshard: bool | None = None
    frozen: tuple[str, ...] = ()
    checkpointed: tuple[str, ...] = ()
    unsynced: bool = False
    evaluates: bool = False
    param_dtype: Literal["", "bfloat16"] = ""
    depth: int = 0
    lists: tuple[str, ...] = ()
    size: int = 0
    only: str = ""

    def kept(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``names`` that are trained, as they are called there.

        Others are beyond the first ``depth`` blocks or outside of ``only``.
        """
        there = (name for name in names if not any(self._cuts(it, name) for it in self.lists))
        if not self.only:
            return tuple(there)
        within = f"{self.only}."
        return tuple(name.removeprefix(within) for name in there if name.startswith(within))

    def whole_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return ``names`` of what is trained as the whole model has them."""
        within = f"{self.only}." if self.only else ""
        return tuple(f"{within}{name}" for name in names)

    def _cuts(self, blocks: str, name: str) -> bool:
        number = name.removeprefix(f"{blocks}.").partition(".")[0]
        within = name.startswith(f"{blocks}.") and number.isdigit()
        return within and 0 < self.depth <= int(number)

    def words(self) -> Iterator[str]:
        """Yield what is changed, in words."""
        if self.size:
            yield f"smaller({self.size})"
        if self.only:
            yield f"{self.only} alone, on the inputs that it gets in the model"
        if self.depth:
            yield f"the first {self.depth} of each list of blocks"
        if self.wrapped is not None:
            yield f"wrapped: {', '.join(self.wrapped) or 'nothing'} and the root"
        if self.reshard is not None:
            yield f"reshard_after_forward={self.reshard}"
        if self.frozen:
            yield f"frozen: {', '.join(self.frozen)}"
        if self.checkpointed:
            yield f"checkpointed: {', '.join(self.checkpointed)}"
        if self.unsynced:
            yield "microbatches that accumulate without reduction"
        if self.evaluates:
            yield "a forward in evaluation mode before each step"
        if self.param_dtype:
            yield f"parameters cast to {self.param_dtype}"


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a model has that a variation may name.

    ``modules`` have parameters and are below the root, ``blocks`` are the repeated ones, ``lists``
    hold them and can be cut, ``depth`` is the length of the longest. ``wrappable``
    modules hold all names of a parameter or none: ``fully_shard`` refuses to put a parameter into
    two groups ("For shared/tied parameters, use fully_shard([module_a, module_b])",
    _fsdp_state.py).
    """

    modules: tuple[str, ...] = ()
    wrappable: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    depth: int = 0
