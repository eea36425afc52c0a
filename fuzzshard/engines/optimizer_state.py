"""Documented errors of what an optimizer has for parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fuzzshard.analysis.optimizer_state import Lack, lacks
from fuzzshard.case.case import Case
from fuzzshard.engines.refusals import Due, Refusal


def lacking(of: Lack) -> Callable[[Case, str], Iterator[Due]]:
    """Return where ``of`` is lacking."""

    def due(case: Case, engine: str) -> Iterator[Due]:
        return (Due(op, certain) for lack, op, certain in lacks(case, engine) if lack is of)

    return due


NO_SAVED_STATE = Refusal(
    "RuntimeError",
    "Missing optimizer state for parameter|Missing key in checkpoint state_dict",
    lacking(Lack.SAVED_STATE),
    "The parameter requires gradients but has no saved optimizer state. / The default behavior is "
    "to match key exactly between state_dict and metadata.",
    "torch/distributed/checkpoint/state_dict.py, _split_optim_state_dict; "
    "torch/distributed/checkpoint/default_planner.py, "
    "create_default_local_load_plan",
    doubt="get_optimizer_state_dict may make the states that are lacking (pytorch PR 192307)",
)
