"""What the documentation of ``ZeroRedundancyOptimizer`` excludes, beyond that of DDP."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within_any
from fuzzshard.engines.ddp import contract
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.optimizer_state import NO_SAVED_STATE

_FILE = "torch/distributed/optim/zero_redundancy_optimizer.py"

SAVED = Exclusion(
    "the state of the optimizer is saved, of which a rank has a part",
    f"{_FILE}, state_dict: 'RuntimeError: ... if this method is called without a preceding call "
    "to consolidate_state_dict', which puts it all on one rank; torch.distributed.checkpoint does "
    "not call that",
)
KINDS = Exclusion(
    "the parameters are not all of one type",
    f"{_FILE}, class docstring: 'Currently, ZeroRedundancyOptimizer requires that all of the "
    "passed-in parameters are the same dense type.'",
)
EMPTY = Exclusion(
    "the optimizer gets no parameter",
    f"{_FILE}, _verify_and_init_params: 'ValueError: ``params`` is empty.'",
)

REFUSALS = tuple(refusal for refusal in contract.REFUSALS if refusal is not NO_SAVED_STATE)
"""Those of DDP; states are not saved."""


def not_applicable(case: Case) -> Exclusion | None:
    """Return why neither documentation covers a case, or None."""
    if any(op.via or op.loads or op.corrupts for op in case.schedule):
        return SAVED
    if case.dtypes or case.tensor_parallel:
        return KINDS
    set_apart = case.optimizer.set_apart
    if all(is_within_any(fqn, set_apart) for fqn in facts(case).parameters):
        return EMPTY
    return contract.not_applicable(case)
