"""Errors that are documented contracts of an engine, one by one, each where it is announced.

A refusal is a prediction: of a case and an engine it says at which ops its documentation announces
the error. The error there makes the case REJECTED for that engine; the other engines are still
judged. The same text anywhere else is a finding, and so is an error that is certain and does not
come.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import stored_dtype
from fuzzshard.case.in_place import changed_outputs
from fuzzshard.case.schedule_state import follow
from fuzzshard.contracts import TIES_ACROSS_GROUPS_ARE_REFUSED, VIEWS_ARE_WARNED_OF
from fuzzshard.engines.fsdp1_contract import frozen_at_construction, mixed_units
from fuzzshard.engines.lazy_roots import Flaw, flaw
from fuzzshard.engines.optimizer_state import Lack, lacks
from fuzzshard.engines.reducer import Complaint, complaint, reducer_options


class Due(NamedTuple):
    """An op at which an error is announced (-1: construction), and whether it is certain to
    come.
    """

    op: int
    certain: bool = True


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One documented error: of which engines, its type, a pattern of its text, and where it is
    announced.

    ``due`` says at which ops of a case. ``quote`` is what the documentation says, ``source`` where
    it does. ``doubt`` is why an error that is announced may not come. A ``UserWarning`` is made an
    error where it is due, and stays a warning elsewhere.
    """

    engines: tuple[str, ...]
    error: str
    pattern: str
    due: Callable[[Case, str], Iterator[Due]]
    quote: str
    source: str
    doubt: str = ""

    def says(self, error: BaseException) -> bool:
        """Whether ``error`` is of the type, and has the text."""
        return (
            type(error).__name__ == self.error and re.search(self.pattern, str(error)) is not None
        )


def _complains(of: Complaint) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        found = complaint(case, reducer_options(case, engine))
        if found is not None and found[0] is of:
            yield Due(found[1])

    return due


def _has_flaw(of: Flaw) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        found = flaw(case, ties=TIES_ACROSS_GROUPS_ARE_REFUSED.holds())
        if found is not None and found[0] is of:
            yield Due(found[1])

    return due


def _ties_groups(case: Case, engine: str) -> Iterator[Due]:
    found = flaw(case, ties=True)
    if found is not None and found[0] is Flaw.SHARED_ACROSS_GROUPS:
        yield Due(found[1], certain=TIES_ACROSS_GROUPS_ARE_REFUSED.holds())


def _shards_twice(case: Case, engine: str) -> Iterator[Due]:
    found = flaw(case, ties=False)
    if found is not None and found[0] is Flaw.SHARDED_TWICE:
        yield Due(found[1], certain=False)


def _lacks(of: Lack) -> Callable[[Case, str], Iterator[Due]]:
    def due(case: Case, engine: str) -> Iterator[Due]:
        return (Due(op, certain) for lack, op, certain in lacks(case, engine) if lack is of)

    return due


def _changes_views(case: Case, engine: str) -> Iterator[Due]:
    """Forwards with gradients that call a wrapped module whose output is changed in place."""
    changed = changed_outputs(case).intersection(
        path for group in case.wrap for path in group.modules
    )
    for at in follow(case):
        call = at.op.begins
        if call and call.grad and not changed.isdisjoint(at.calls_of(call.target)):
            yield Due(at.index, certain=False)  # an exception may come before


def _mixes_requires_grad(case: Case, engine: str) -> Iterator[Due]:
    if _mixed_requires_grad(case):
        yield Due(-1)


def _mixes_requires_grad_below_root(case: Case, engine: str) -> Iterator[Due]:
    """A policy wraps the modules below the root, and checks them first."""
    if case.fsdp1.wrapping == "policy" and _mixed_requires_grad(case) - {""}:
        yield Due(-1)


def _mixed_requires_grad(case: Case) -> frozenset[str]:
    if case.fsdp1.use_orig_params:
        return frozenset()
    return mixed_units(case, lambda fqn: frozen_at_construction(case, fqn))


def _mixes_dtypes(case: Case, engine: str) -> Iterator[Due]:
    if mixed_units(case, lambda fqn: stored_dtype(case, fqn, None)):
        yield Due(-1)


_DDP = "torch/nn/parallel/distributed.py"
_REDUCER = "torch/csrc/distributed/c10d/reducer.cpp"
_FLAT = "torch/distributed/fsdp/_flat_param.py"
_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"
_STATE_DICT = "torch/distributed/checkpoint/state_dict.py"

_REDUCERS = ("ddp", "replicate")

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        ("ddp",),
        "RuntimeError",
        "no gradient reduction requires finalization",
        _complains(Complaint.NOTHING_TO_FINALIZE),
        "RuntimeError: ... if no gradient reduction requires finalization",
        f"{_DDP}, finalize_backward",
    ),
    Refusal(
        _REDUCERS,
        "RuntimeError",
        "is not needed when a module",
        _complains(Complaint.NOTHING_TO_REDUCE),
        "DistributedDataParallel is not needed when a module doesn't have any parameter that "
        "requires a "
        "gradient.",
        f"{_DDP}, __init__",
    ),
    Refusal(
        _REDUCERS,
        "RuntimeError",
        "Expected to mark a variable ready only once",
        _complains(Complaint.READY_TWICE),
        "For unused parameters, DDP would not expect gradients from then. However, if an unused "
        "parameter "
        "becomes part of the autograd graph at a later point in time ..., the gradient will show "
        "up "
        "unexpectedly. ... Please make sure model parameters are not shared across multiple "
        "concurrent "
        "forward-backward passes.",
        f"{_REDUCER}, checkAndRaiseMarkedTwiceError",
    ),
    Refusal(
        ("fully_shard",),
        "RuntimeError",
        "requires a single root module",
        _has_flaw(Flaw.LIST_GROUP_AS_ROOT),
        "Lazy initialization ... means that we can determine which state is the root, and we do "
        "so by the "
        "1st state to run forward. ... requires a single root module",
        f"{_STATE}, _lazy_init",
    ),
    Refusal(
        ("fully_shard",),
        "RuntimeError",
        "requires running forward through the root module first",
        _has_flaw(Flaw.ROOT_RUNS_LATER),
        "state has already been lazily initialized for ...: requires running forward through the "
        "root module "
        "first",
        f"{_STATE}, _lazy_init",
    ),
    Refusal(
        ("fully_shard",),
        "ValueError",
        "is shared with a parameter already managed by another FSDP group",
        _ties_groups,
        TIES_ACROSS_GROUPS_ARE_REFUSED.quote,
        TIES_ACROSS_GROUPS_ARE_REFUSED.source,
        doubt="releases before torch 2.12 shard it twice",
    ),
    Refusal(
        ("fully_shard",),
        "RuntimeError",
        "Cannot concatenate overlapping meshes",
        _shards_twice,
        "the same rule for a module that is registered in two groups: the second one meets a "
        "DTensor on its "
        "own mesh",
        "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param",
        doubt="the second group has to leave out what is assigned to a group already "
        "(fully_shard, module)",
    ),
    Refusal(
        ("fully_shard",),
        "UserWarning",
        "returned a view tensor. An in-place op on this view",
        _changes_views,
        VIEWS_ARE_WARNED_OF.quote,
        f"{VIEWS_ARE_WARNED_OF.source}: an error where an output is changed in place",
        doubt="whether an output is a view, only torch knows",
    ),
    Refusal(
        ("fully_shard",),
        "RuntimeError",
        "_foreach_zero_.* got mixed torch.Tensor and DTensor",
        _lacks(Lack.ONE_KIND_OF_GRADIENT),
        "with foreach the gradients of all parameters are zeroed in one call for each device and "
        "dtype; got "
        "mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before "
        "calling "
        "distributed operators",
        "torch/optim/optimizer.py, zero_grad; torch/distributed/tensor/_dispatch.py",
        doubt="gradients that a backward of another FSDP root reduces may come later",
    ),
    Refusal(
        ("fsdp1",),
        "ValueError",
        "Must flatten tensors with uniform `requires_grad`",
        _mixes_requires_grad,
        "For use_orig_params=False, each FSDP instance must manage parameters that are all frozen "
        "or all "
        "non-frozen.",
        f"torch/distributed/fsdp/fully_sharded_data_parallel.py, class docstring; {_FLAT}, "
        "_validate_tensors_to_flatten",
    ),
    Refusal(
        ("fsdp1",),
        "ValueError",
        "FSDP does not support wrapping such modules when use_orig_params=False",
        _mixes_requires_grad_below_root,
        "given `modules_to_wrap`, each module would manage parameters that are uniformly frozen "
        "or "
        "non-frozen. This uniformity requirement is strict for `use_orig_params=False` (hard "
        "error)",
        "torch/distributed/fsdp/_wrap_utils.py, _validate_frozen_params",
    ),
    Refusal(
        ("fsdp1",),
        "ValueError",
        "Must flatten tensors with uniform dtype",
        _mixes_dtypes,
        "Must flatten tensors with uniform dtype but got ...",
        f"{_FLAT}, _validate_tensors_to_flatten",
    ),
    Refusal(
        ("ddp", "replicate", "fully_shard"),
        "RuntimeError",
        "Missing optimizer state for parameter|Missing key in checkpoint state_dict",
        _lacks(Lack.SAVED_STATE),
        "The parameter requires gradients but has no saved optimizer state. / The default "
        "behavior is to "
        "match key exactly between state_dict and metadata.",
        f"{_STATE_DICT}, _split_optim_state_dict; "
        "torch/distributed/checkpoint/default_planner.py, "
        "create_default_local_load_plan",
        doubt="get_optimizer_state_dict may make the states that are lacking (pytorch PR 192307)",
    ),
)


class Announcements:
    """The refusals that a case announces of an engine."""

    def __init__(self, case: Case, engine: str) -> None:
        self._all = [
            (due, refusal)
            for refusal in REFUSALS
            if engine in refusal.engines
            for due in refusal.due(case, engine)
        ]

    def announces(self, error: BaseException, op: int) -> bool:
        """Whether ``error``, raised by op ``op``, is a refusal that is announced there."""
        return any(due.op == op and refusal.says(error) for due, refusal in self._all)

    def warnings(self, op: int) -> list[str]:
        """The patterns of warnings that are to be errors of op ``op``."""
        due = (refusal for due, refusal in self._all if due.op == op)
        return [refusal.pattern for refusal in due if refusal.error == UserWarning.__name__]

    def overdue(self, op: int) -> tuple[Due, Refusal] | None:
        """The first refusal that had to come before op ``op`` began."""
        certain = [(due, refusal) for due, refusal in self._all if due.certain and due.op < op]
        return min(certain, key=lambda each: each[0].op, default=None)
