"""What the documentation of FSDP1 covers; sources are in torch/distributed/fsdp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

from fuzzshard.case.case import Case
from fuzzshard.case.communication import some_fill_unused
from fuzzshard.case.dtypes import has_precision, model_policy, stored_dtype
from fuzzshard.case.facts import facts
from fuzzshard.case.no_rows import has_other_graph_without_rows
from fuzzshard.case.paths import is_within
from fuzzshard.case.schedule_state import ScheduleState, follow, ranks_differ
from fuzzshard.case.units import (
    aliased_units,
    parameter_units,
    splits_a_unit,
    unit_modules,
    units,
)
from fuzzshard.engines.exclusion import OTHER_GRAPH_ON_ONE_RANK, RETYPED, Exclusion
from fuzzshard.engines.refusals import Due, Refusal
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.op import Op, Toggle
from fuzzshard.parts.ops.set_flag import SYNC_FLAGS

_CLASS = "fully_sharded_data_parallel.py, class docstring"
_FREEZING = (
    f"{_CLASS}: 'For use_orig_params=False, each FSDP instance must manage parameters that are "
    "all frozen or all non-frozen.'"
)
_VIEWS = (
    f"{_CLASS}: 'FSDP replaces managed modules' parameters with torch.Tensor views during forward "
    "and backward computation'"
)
_NO_SYNC = (
    "fully_sharded_data_parallel.py, no_sync: 'gradients will be accumulated in module variables, "
    "which will later be synchronized in the first forward-backward pass after exiting the "
    "context. This should only be used on the root FSDP instance'"
)
_OURS = "fuzzshard: the reference models this as fully_shard documents it"

FILLED_GRADIENTS = Exclusion(
    "zeros in a flat gradient, which this optimizer does not take for none",
    "_flat_param.py, _reset_is_grad_none: 'if a parameter requires gradient, then it will surely "
    "receive a gradient'",
)


@dataclasses.dataclass(frozen=True)
class SeenByFSDP1:
    """A case as options of FSDP1 see it."""

    case: Case

    @property
    def ranks_differ(self) -> bool:
        """Whether ops run on some ranks only."""
        return ranks_differ(self.case)

    @property
    def hides_buffers(self) -> bool:
        """Whether some buffer is in no state dict."""
        return facts(self.case).hides_buffers

    @property
    def has_aliased_units(self) -> bool:
        """Whether a unit is registered at two places."""
        return bool(aliased_units(self.case))


def not_applicable(case: Case, skipped: Collection[int] = ()) -> Exclusion | None:
    """Why FSDP1's documented contract does not cover a case, or None.

    The ``skipped`` backwards, by the index of their ops, turned out to have nothing to
    differentiate.
    """
    found = (*_options(case), *_model(case), *_of_schedule(case, skipped))
    return next(iter(found), None)


def _options(case: Case) -> Iterator[Exclusion]:
    if any(op.aborts for op in case.schedule):
        yield Exclusion(
            "an iteration ends with an exception, after which FSDP1 does not say how to go on",
            "fully_sharded_data_parallel.py: reset_iter_state is a method of FSDPModule alone",
        )
    if some_fill_unused(case):
        yield Exclusion(
            "zeros for parameters without a gradient",
            "fully_sharded_data_parallel.py: set_reduce_scatter_unused_params is a method of "
            "FSDPModule",
        )
    if any(len(group.modules) > 1 for group in case.wrap):
        yield Exclusion(
            "a list group: a unit of FSDP1 is one module",
            f"{_CLASS}: 'module (nn.Module): This is the module to be wrapped with FSDP.'",
        )
    if has_other_graph_without_rows(case, units(case)):
        yield OTHER_GRAPH_ON_ONE_RANK
    if case.added:
        yield Exclusion(
            "modules are added to the model after it was wrapped",
            "_flat_param.py, FlatParamHandle: the parameters that a unit has when it is "
            "constructed are 'flattened and concatenated to construct the flat parameter'; it "
            "says nothing of others",
        )
    if case.mesh.tensor is not None:
        yield Exclusion("a tensor-parallel axis, which is fully_shard's", _OURS)
    if LOSSES[case.loss].differentiates_twice:
        yield Exclusion(
            "a backward through a backward",
            f"{_CLASS}: 'FSDP does not work with double backwards due to the way it registers "
            "backward hooks.'",
        )
    if case.optimizer.does("combines_elements"):
        yield Exclusion(
            "an optimizer that looks at rows and columns: parameters of FSDP1 are flat",
            "torch/optim/_muon.py: 'Muon only supports 2D parameters'; _flat_param.py: "
            "'original parameters, which are flattened and concatenated to construct the flat "
            "parameter'",
        )
    if case.optimizer.does("scales"):
        yield Exclusion(
            "a GradScaler: FSDP1 has one of its own",
            "sharded_grad_scaler.py: 'ShardedGradScaler helps perform gradient scaling in a shard "
            "aware manner.'",
        )
    if case.init == "meta":
        yield Exclusion(
            "a model on the meta device, which FSDP1 gives other initial values",
            f"{_CLASS}, param_init_fn: 'either applies param_init_fn if specified or calls "
            "nn.Module.reset_parameters() otherwise'",
        )
    if case.compile is not None:
        yield Exclusion("module.compile(), which is fully_shard's", _OURS)
    if has_precision(case) and model_policy(case) is None:
        yield Exclusion(
            "mixed precision or rounded all-gathers of the groups of fully_shard", _OURS
        )
    for option, value in case.fsdp1.told():
        yield from (Exclusion(*reason) for reason in option.excludes(value, SeenByFSDP1(case)))
    switches = (op.switch for op in case.schedule)
    unsynced = any(s and s.flag in SYNC_FLAGS and not s.value for s in switches)
    if unsynced and not case.root_is_wrapped:
        yield Exclusion(
            "no_sync() of a root that the case does not wrap: the roots of fully_shard "
            "synchronise apart",
            _OURS,
        )
    if any(op.takes_norm for op in case.schedule) and case.dtype == "float64":
        yield Exclusion(
            "a norm of float64 gradients, which FSDP1 computes in float32 (_get_grad_norm)",
            "fully_sharded_data_parallel.py, _get_grad_norm: 'The returned norm is in FP32 even "
            "if parameters/gradients are in a low precision.'",
        )


def _model(case: Case) -> Iterator[Exclusion]:
    found = facts(case)
    if shared := [fqn for fqn, names in parameter_units(case).items() if len(names) > 1]:
        yield Exclusion(
            f"{shared[0]!r} is shared across units: support for shared parameters is limited "
            "(fully_sharded_data_parallel.py, class docstring)",
            f"{_CLASS}: 'FSDP offers limited support for shared parameters'",
        )
    for path in unit_modules(case):
        if path in found.by_method:
            yield Exclusion(
                f"{path!r} is called by another method than forward, which alone gathers its "
                "parameters",
                _VIEWS,
            )
    if not case.fsdp1.does("has_originals"):
        for freeze in case.freezes:
            if freeze.after_wrap and splits_a_unit(case, freeze.target):
                yield Exclusion("a freeze of a part of a flat parameter", _FREEZING)
        for path in (*case.optimizer.set_apart, *(op.adds for op in case.schedule if op.adds)):
            if splits_a_unit(case, path):
                yield Exclusion(
                    "an optimizer that gets a part of a flat parameter",
                    f"{_CLASS}, use_orig_params: 'Setting this to False exposes FSDP's internal "
                    "FlatParameters to the user'",
                )


def _of_schedule(case: Case, skipped: Collection[int]) -> Iterator[Exclusion]:
    """Why ops of the schedule are not covered, in order."""
    last_backward = -1
    forwarded = unsynced = holds_gradients = holds_reduced = False
    for at in follow(case, skipped=skipped):
        op = at.op
        yield from _of_op(op)
        if op.takes:
            yield from _of_backward(at, last_backward)
            if case.fsdp1.does("offloads") and holds_reduced:
                yield Exclusion(
                    "gradient accumulation outside no_sync() with CPU offloading, which is not "
                    "supported (fully_sharded_data_parallel.py, class docstring)",
                    f"{_CLASS}: 'FSDP currently does not support gradient accumulation outside "
                    "no_sync() when using CPU offloading.'",
                )
        if unsynced and op.uses_gradients:
            yield Exclusion("a step on gradients that were not synchronised", _NO_SYNC)
        elif (op.updates or op.averages) and forwarded:
            yield Exclusion(
                "parameters change between forward and backward, which may not persist "
                "(fully_sharded_data_parallel.py, class docstring)",
                f"{_CLASS}: 'You should avoid modifying the parameters between forward and "
                "backward'",
            )
        elif op.adds and forwarded and case.fsdp1.does("has_originals"):
            yield Exclusion(
                "the optimizer gets parameters between forward and backward, when they are views",
                _VIEWS,
            )
        if op.toggle:
            yield from _of_toggle(at, op.toggle, holds_gradients=holds_gradients)
        if op.call:
            forwarded = True
        elif op.takes and at.index not in skipped:
            last_backward = at.index
            holds_gradients, forwarded, unsynced = True, False, not at.synced
            holds_reduced |= at.synced
        elif op.zeroes_gradients:
            keeps_some = bool(case.optimizer.left_out)
            holds_gradients &= not op.set_to_none or keeps_some
            holds_reduced &= keeps_some


def _of_op(op: Op) -> Iterator[Exclusion]:
    """What FSDP1 has nothing for, wherever it comes."""
    if op.call and op.call.target:
        yield Exclusion(
            "a forward of a submodule: FSDP does not support it (fully_sharded_data_parallel.py, "
            "class docstring)",
            f"{_CLASS}: 'FSDP does not support running the forward pass of a submodule that is "
            "contained in an FSDP instance.'",
        )
    if op.switch and op.switch.flag in SYNC_FLAGS and not op.switch.below.everything:
        yield Exclusion("a flag for some modules only, which no_sync() cannot express", _NO_SYNC)
    if op.hooked:
        yield Exclusion(
            "a hook on a parameter: backwards come to views of its flat parameter",
            _VIEWS,
        )
    if op.retypes:
        yield RETYPED
    if op.factor is not None:
        yield Exclusion(
            "a divide factor, which FSDP1 does not have",
            "fully_sharded_data_parallel.py: FullyShardedDataParallel has no such method",
        )
    if op.casts_to:
        yield Exclusion(
            "a cast after wrapping: FSDP1 takes its dtypes when it is constructed",
            "_flat_param.py, FlatParamHandle: a flat parameter keeps the dtype of its "
            "construction",
        )
    if op.takes_state or op.corrupts:
        yield Exclusion(
            "state dicts of FSDP1 are gathered copies, whose saving and loading is not judged",
            "fully_sharded_data_parallel.py, state_dict_type: full, local and sharded state dicts",
        )


def _of_backward(at: ScheduleState, last: int) -> Iterator[Exclusion]:
    if any(each.place < last for each in at.taken):
        yield Exclusion(
            "a backward of a forward that another backward came after, which removed the hooks "
            "that reduce (_runtime_utils.py, _finalize_params)",
            "_runtime_utils.py, _register_post_backward_hook: 'We register the post-backward hook "
            "only once in the first forward that a FlatParameter participates in.'",
        )
    if any(each.synced != at.synced for each in at.taken):
        yield Exclusion("gradient sync is switched between a forward and its backward", _NO_SYNC)


def _of_toggle(at: ScheduleState, toggle: Toggle, *, holds_gradients: bool) -> Iterator[Exclusion]:
    if at.pending:
        yield Exclusion(
            "requires_grad changes between forward and backward, when parameters are views",
            _VIEWS,
        )
    elif not toggle.value and holds_gradients and not ranks_differ(at.case):
        yield Exclusion(
            "a freeze while gradients are held, of which FSDP1 drops those of frozen "
            "parameters (_flat_param.py, _use_sharded_grad_views)",
            "_flat_param.py, _use_sharded_grad_views: 'parameters with requires_grad=False have "
            "their gradients set to None'",
        )
    elif not at.case.fsdp1.does("has_originals") and splits_a_unit(at.case, toggle.target):
        yield Exclusion("requires_grad of a part of a flat parameter", _FREEZING)


def fills_gradients(case: Case, without: Mapping[int, Collection[str]]) -> bool:
    """Whether the optimizer sees gradients of zeros where a plain module has none, and cares.

    The gradient of a flat parameter is one tensor: parts that a backward does not reach are zeros.
    What reaches a frozen part of it makes zeros elsewhere, too. ``without`` are the parameters
    without a gradient after each backward, by the index of its op.
    """
    if not case.optimizer.does("moves_without_gradient"):
        return False
    if not any(op.updates for op in case.schedule):
        return False
    for at in follow(case):  # a backward freezes nothing
        for members in units(case).values():
            trainable = set(members) - at.frozen
            missing = trainable.intersection(without.get(at.index, ()))
            if missing and not missing == trainable == set(members):
                return True
    return False


def mixed_units(case: Case, of: Callable[[str], object]) -> frozenset[str]:
    """The units whose parameters differ in what ``of`` says of a parameter."""
    return frozenset(
        unit for unit, fqns in units(case).items() if len({of(fqn) for fqn in fqns}) > 1
    )


def frozen_at_construction(case: Case, fqn: str) -> bool:
    """Whether a parameter is frozen before the model is wrapped."""
    return any(is_within(fqn, freeze.target) for freeze in case.freezes if not freeze.after_wrap)


def _mixes_requires_grad(case: Case, engine: str) -> Iterator[Due]:
    if _mixed_requires_grad(case):
        yield Due(-1)


def _mixes_requires_grad_below_root(case: Case, engine: str) -> Iterator[Due]:
    """A policy wraps the modules below the root, and checks them first."""
    if case.fsdp1.does("wraps_by_policy") and _mixed_requires_grad(case) - {""}:
        yield Due(-1)


def _mixed_requires_grad(case: Case) -> frozenset[str]:
    if case.fsdp1.does("has_originals"):
        return frozenset()
    return mixed_units(case, lambda fqn: frozen_at_construction(case, fqn))


def _mixes_dtypes(case: Case, engine: str) -> Iterator[Due]:
    if mixed_units(case, lambda fqn: stored_dtype(case, fqn, None)):
        yield Due(-1)


_FLAT = "torch/distributed/fsdp/_flat_param.py"

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "ValueError",
        "Must flatten tensors with uniform `requires_grad`",
        _mixes_requires_grad,
        "For use_orig_params=False, each FSDP instance must manage parameters that are all frozen "
        "or all non-frozen.",
        f"torch/distributed/fsdp/fully_sharded_data_parallel.py, class docstring; {_FLAT}, "
        "_validate_tensors_to_flatten",
    ),
    Refusal(
        "ValueError",
        "FSDP does not support wrapping such modules when use_orig_params=False",
        _mixes_requires_grad_below_root,
        "given `modules_to_wrap`, each module would manage parameters that are uniformly frozen "
        "or non-frozen. This uniformity requirement is strict for `use_orig_params=False` (hard "
        "error)",
        "torch/distributed/fsdp/_wrap_utils.py, _validate_frozen_params",
    ),
    Refusal(
        "ValueError",
        "Must flatten tensors with uniform dtype",
        _mixes_dtypes,
        "Must flatten tensors with uniform dtype but got ...",
        f"{_FLAT}, _validate_tensors_to_flatten",
    ),
)
