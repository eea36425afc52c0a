"""Documented errors of what an optimizer has for parameters."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzshard.analysis.optimizer_state import lacks_states
from fuzzshard.case.case import Case
from fuzzshard.engines.refusals import Due, Refusal


def _lacking(case: Case, engine: str) -> Iterator[Due]:
    return (Due(op, certain=False) for op in lacks_states(case, engine))


NO_SAVED_STATE = Refusal(
    "RuntimeError",
    "Missing optimizer state for parameter|Missing key in checkpoint state_dict",
    _lacking,
    "The parameter requires gradients but has no saved optimizer state. / The default behavior is "
    "to match key exactly between state_dict and metadata.",
    "torch/distributed/checkpoint/state_dict.py, _split_optim_state_dict; "
    "torch/distributed/checkpoint/default_planner.py, "
    "create_default_local_load_plan",
    doubt="get_optimizer_state_dict may make the states that are lacking (pytorch PR 192307)",
)
