"""Which ops that save, corrupt and load state fit together; part of :mod:`fuzzshard.case.validate`."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.graph import walk
from fuzzshard.case.schedule import Cast, CorruptState, LoadState, SaveState, SetRequiresGrad
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.leaf import Leaf


def check_states(case: Case) -> None:
    """Raises :class:`InvalidCase` where there is no state to load, or none that every rank could have."""
    if any(isinstance(op, SaveState) for op in case.schedule):
        checker = _Checker(case)
        for op in case.schedule:
            checker.check(op)
    elif any(isinstance(op, LoadState | CorruptState) for op in case.schedule):
        raise _nothing_saved()


def _nothing_saved() -> InvalidCase:
    return InvalidCase("a state is loaded or corrupted before any was saved", "save first")


def has_own_statistics(case: Case) -> bool:
    """Whether every rank has statistics of its own: of its own inputs, or behind masks of its own."""
    leaves = [module for _, module in walk(case.model) if isinstance(module, Leaf)]
    dropped = any(leaf.drops for leaf in leaves)
    norms = any(leaf.is_batch_norm for leaf in leaves)
    return norms and (dropped or not case.inputs.same_on_ranks)


class _Checker:
    """Walks the schedule; knows what was saved last."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.saved: SaveState | None = None

    def check(self, op: object) -> None:
        match op:
            case Cast():
                self.saved = None
            case SaveState():
                self.saved = op
                if op.via == "dcp":
                    self._check_checkpoint()
            case CorruptState() | LoadState() if self.saved is None:
                raise _nothing_saved()
            case LoadState(assign=True) if self.saved is not None and self.saved.via == "state_dict":
                if self.case.ties:
                    raise InvalidCase(
                        "load_state_dict(assign=True) unties parameters, in any model",
                        "load with assign=False",
                    )
            case _:
                pass

    def _check_checkpoint(self) -> None:
        if has_own_statistics(self.case):
            raise InvalidCase(
                "a checkpoint holds one copy of the statistics of a batch norm, and every rank has its own",
                'save via "state_dict", or give all ranks the same inputs and drop nothing out',
            )
        if any(isinstance(op, SetRequiresGrad) and op.ranks != "all" for op in self.case.schedule):
            raise InvalidCase(
                "a checkpoint of parameters that only some ranks freeze",
                "torch.distributed.checkpoint needs the same keys on every rank: freeze on all",
            )
