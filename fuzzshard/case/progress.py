"""Where a training run stands after each op: what follows from the schedule alone.

One walker for everything that interprets a schedule: validation, the trainer, the oracles that predict
and the scripts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import modules_below
from fuzzshard.case.groups import calls_of, root_is_wrapped, wrapped_modules
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    Forward,
    Ranks,
    Reshard,
    SetFlag,
    SetPath,
    SetRequiresGrad,
    Unshard,
)
from fuzzshard.parts.dtypes import Dtype


def names_rank(ranks: Ranks, rank: int) -> bool:
    """Whether an op for ``ranks`` runs on ``rank``."""
    return ranks == "all" or rank > 0


def ranks_differ(case: Case) -> bool:
    """Whether some op runs on some ranks only, so that ranks may train different models from there on.

    Nothing is comparable then, neither with the reference, whose gradients have no common mean, nor between
    ranks; such a case is judged by its expectations alone.
    """
    return any(isinstance(op, SetRequiresGrad | SetPath) and op.ranks != "all" for op in case.schedule)


class Progress:
    """The state between two ops on one rank. ``advance`` applies the next op.

    ``skipped`` backwards had nothing to differentiate and changed nothing but the pending forwards.
    """

    def __init__(self, case: Case, rank: int = 0) -> None:
        self.case = case
        self.rank = rank
        self.next = 0
        self.pending: list[tuple[int, Forward, frozenset[str]]] = []
        """Forwards without a backward yet: their place in the schedule, and the modules they called."""
        self.frozen: set[str] = set()
        """The parameters that do not require a gradient."""
        self.paths: dict[str, int] = {}
        """The path of every block with alternatives; 0 where it is not named."""
        self.cast: Dtype | None = None
        """The dtype that everything was cast to last, if it was."""
        self._forwarded = False
        self._keeps_unsharded = not root_is_wrapped(case)
        for freeze in case.freezes:
            self._set_requires_grad(freeze.target, False)

    @property
    def dtype(self) -> Dtype:
        """The dtype of inputs, and of parameters that have none of their own."""
        return self.cast or self.case.dtype

    @property
    def may_be_unsharded(self) -> bool:
        """Whether some group of ``fully_shard`` may be unsharded.

        A forward or an explicit unshard may have done that, or a flag, or a backward that went through other
        FSDP roots only, or through no group, where nothing reshards.
        """
        return self._forwarded or self._keeps_unsharded

    def calls_of(self, target: str) -> frozenset[str]:
        """The modules that a forward of ``target`` would call now."""
        return calls_of(self.case, target, self.paths)

    def taken_by(self, op: Backward) -> list[tuple[int, Forward, frozenset[str]]]:
        """The pending forwards that ``op`` is the backward of."""
        return {"all": self.pending, "oldest": self.pending[:1], "newest": self.pending[-1:]}[op.which]

    def advance(self, *, skipped: bool = False) -> None:
        """Applies the op at ``next``."""
        op = self.case.schedule[self.next]
        match op:
            case Forward():
                self._forwarded = True
                if op.grad:
                    self.pending.append((self.next, op, self.calls_of(op.target)))
            case Backward():
                taken = self.taken_by(op)
                self.pending = [forward for forward in self.pending if forward not in taken]
                wrapped = wrapped_modules(self.case)
                self._forwarded &= skipped or not any(wrapped & called for _, _, called in taken)
            case Unshard() | Abort():
                self._forwarded = True
            case Reshard(target="", recurse=True):
                self._forwarded = False
            case SetFlag(flag="reshard_after_backward", value=False):
                self._keeps_unsharded = True
            case SetRequiresGrad() if names_rank(op.ranks, self.rank):
                self._set_requires_grad(op.target, op.value)
            case SetPath() if names_rank(op.ranks, self.rank):
                self.paths[op.target] = op.path
            case Cast():
                self.cast = op.dtype
            case _:
                pass
        self.next += 1

    def _set_requires_grad(self, target: str, value: bool) -> None:
        names = {fqn for fqn in facts(self.case).parameters if is_within(fqn, target)}
        self.frozen = self.frozen - names if value else self.frozen | names


def modules_named(case: Case, wrapped: Iterable[str], target: str, *, recurse: bool) -> list[str]:
    """The wrapped modules that an op at ``target`` is for, under whatever name they are below it."""
    below = modules_below(case.model, target) if recurse else frozenset((target,))
    return [m for m in wrapped if m in below]


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def engines_train_more_from(case: Case) -> int:
    """The first op from which engines train a parameter that the reference keeps frozen; else the end."""
    progress = Progress(case)
    for index, op in enumerate(case.schedule):
        frozen = progress.frozen
        progress.advance()
        if isinstance(op, SetRequiresGrad) and op.engines_only and op.value and progress.frozen != frozen:
            return index
    return len(case.schedule)


def ops_that_run(case: Case, engine: str) -> range:
    """The places in the schedule of the ops that an engine gets through; an expected error ends its run."""
    errors = (e.op for e in case.expect if e.kind == "error" and e.engine == engine)
    return range(min(errors, default=len(case.schedule)))
