"""Which ops that save, corrupt and load state fit together; part of :mod:`fuzzshard.case.validate`.

Most rules are those of ``torch.distributed.checkpoint``, for the state of optimizers
(torch/distributed/checkpoint/state_dict.py). ``_init_optim_state`` gives an optimizer without state one by
a step on gradients of zero, but not while there are gradients; ``_split_optim_state_dict`` drops the state of
parameters that are frozen at the moment.
"""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import BatchNorm
from fuzzshard.case.paths import is_within
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import (
    Backward,
    Cast,
    CorruptState,
    LoadState,
    SaveState,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.errors import InvalidCase


def check_states(case: Case) -> None:
    """Raises :class:`InvalidCase` where there is no state to load, or saving or loading would lose some."""
    if any(isinstance(op, SaveState) for op in case.schedule):
        checker = _Checker(case)
        for op in case.schedule:
            checker.check(op)
    elif any(isinstance(op, LoadState | CorruptState) for op in case.schedule):
        raise _nothing_saved()


def _nothing_saved() -> InvalidCase:
    return InvalidCase("a state is loaded or corrupted before any was saved", "save first")


class _Checker:
    """Walks the schedule; knows whether there are gradients, and what the optimizer has state of."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.progress = Progress(case)
        self.saved: SaveState | None = None
        self.gradients = False
        self.stepped: set[str] = set()
        """The parameters that the optimizer may have state of."""
        self.stepped_at_save: set[str] = set()
        excluded = case.optimizer.exclude
        self.held = {f for f in facts(case).parameters if not any(is_within(f, path) for path in excluded)}
        self.stateless = case.optimizer.kind == "sgd" and not case.optimizer.momentum

    def check(self, op: object) -> None:
        match op:
            case Backward():
                self.gradients = True
            case ZeroGrad(set_to_none=True):
                self.gradients = False
            case Step() if self.gradients:
                self.stepped |= self.held - self.progress.frozen
            case Cast():
                self.saved = None
                self._forget()
            case SaveState():
                self.saved, self.stepped_at_save = op, set(self.stepped)
                if op.via == "dcp":
                    self._check_save()
            case CorruptState() | LoadState() if self.saved is None:
                raise _nothing_saved()
            case CorruptState(how="rebuild"):
                self._forget()
            case LoadState(assign=assign) if self.saved is not None:
                if self.saved.via == "dcp":
                    self._check_load(assign=assign)
                elif assign and self.case.ties:
                    raise InvalidCase(
                        "load_state_dict(assign=True) unties parameters, in any model",
                        "load with assign=False",
                    )
                self.stepped = set(self.stepped_at_save)
            case _:
                pass
        self.progress.advance()

    def _forget(self) -> None:
        """The optimizer is another one."""
        self.gradients, self.stepped = False, set()

    def _check_save(self) -> None:
        if not (self.stepped or self.stateless):
            raise InvalidCase("a checkpoint of an optimizer without any state", "save after a step")
        modules = facts(self.case).modules.values()
        if any(isinstance(m, BatchNorm) for m in modules) and not self.case.inputs.same_on_ranks:
            raise InvalidCase(
                "a checkpoint holds one copy of the statistics of a batch norm, and every rank has its own",
                'save via "state_dict", or give all ranks the same inputs',
            )
        if any(isinstance(op, SetRequiresGrad) and op.ranks != "all" for op in self.case.schedule):
            raise InvalidCase(
                "a checkpoint of parameters that only some ranks freeze",
                "torch.distributed.checkpoint needs the same keys on every rank: freeze on all",
            )

    def _check_load(self, *, assign: bool) -> None:
        if self.gradients and not (self.stepped or self.stateless):
            raise InvalidCase(
                "a checkpoint is loaded into an optimizer without state while there are gradients",
                "zero the gradients before",
            )
        in_place = set() if assign else self.stepped
        if lost := sorted(self.stepped_at_save & self.progress.frozen - in_place):
            raise InvalidCase(
                f"the optimizer's state of {lost[0]!r} would not be loaded: it is frozen now",
                "unfreeze before",
            )
