"""``DistributedDataParallel``."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.communication import fills_unused
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    ClipGradNorm,
    CorruptState,
    Forward,
    LoadState,
    SaveState,
    SetDivideFactor,
    SetFlag,
    SetRequiresGrad,
    Step,
    ZeroGrad,
)
from fuzzshard.case.sync_flags import UNMANAGED, SyncFlags
from fuzzshard.engines import ddp_options
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.no_sync import NoSyncEngine

_SYNC_FLAGS = ("requires_gradient_sync", "requires_all_reduce")


_CONSTRUCTION = (
    "distributed.py, class docstring: 'You should never try to change your model's parameters after wrapping "
    "up your model with DistributedDataParallel ... the constructor will register the additional gradient "
    "reduction functions on all the parameters of the model itself at the time of construction'"
)
_NO_SYNC = (
    "distributed.py, no_sync: 'gradients will be accumulated on module variables, which will later be "
    "synchronized in the first forward-backward pass exiting the context'"
)
_SYNC_POINTS = (
    "distributed.py, class docstring: 'Constructor, forward method, and differentiation of the output ... "
    "are distributed synchronization points'"
)

PRECISION = Exclusion(
    "the wrap groups have a policy of mixed precision, which DDP does not know",
    "fuzzshard: MixedPrecisionPolicy is fully_shard's, one for each group",
)
DIVIDE_FACTOR = Exclusion(
    "a divide factor, which DDP has not", "distributed.py: DistributedDataParallel has no such method"
)
FILLED = Exclusion(
    "zeros for parameters without a gradient, which DDP leaves without",
    "distributed.py: set_reduce_scatter_unused_params is a method of FSDPModule alone",
)
ABORTED = Exclusion(
    "an iteration ends with an exception, after which DDP does not say how to go on",
    "distributed.py: reset_iter_state is a method of FSDPModule alone",
)
ASSIGNED = Exclusion(
    "load_state_dict(assign=True) replaces the parameters that DDP's constructor has hooked", _CONSTRUCTION
)
CAST = Exclusion(
    "parameters are cast: DDP's buckets have the dtypes that they had at construction", _CONSTRUCTION
)
AROUND_THE_WRAPPER = Exclusion("a forward does not go through the DDP wrapper", _SYNC_POINTS)
PARTIAL_FLAG = Exclusion("a flag for some modules only, which no_sync() cannot express", _NO_SYNC)
SWITCHED = Exclusion(
    "gradient sync is switched between a forward and its backward",
    "distributed.py, no_sync: 'The forward pass should be included inside the context manager, or else "
    "gradients will still be synchronized.'",
)
ONE_BY_ONE = Exclusion(
    "several forwards have their backward one by one",
    "reducer.cpp, checkAndRaiseMarkedTwiceError: 'Please make sure model parameters are not shared across "
    "multiple concurrent forward-backward passes.'",
)
UNSYNCED_STEP = Exclusion("a step on gradients that were not synchronised", _NO_SYNC)
UNFROZEN = Exclusion(
    "a parameter frozen at construction is unfrozen: DDP never synchronises it", _CONSTRUCTION
)
NOTHING_DIFFERENTIATED = Exclusion(
    "a step on gradients that were not synchronised: a backward had nothing to differentiate", _NO_SYNC
)
MISSED_ROOT = Exclusion(
    "a backward misses an FSDP root, whose gradients it leaves unsynchronised",
    "fuzzshard: the reference synchronises what fully_shard's roots do, and DDP has no roots",
)


def not_applicable(case: Case, *, built_by_forward: bool = False) -> Exclusion | None:
    """Why DDP's documented contract does not cover a case, or None.

    ``built_by_forward``: construction is put off until the first forward. What runs under
    ``torch.no_grad()`` alone synchronises nothing, so it may go around the wrapper; so may backwards of
    forwards within ``no_sync()`` come one by one.
    """
    if has_precision(case):
        return PRECISION
    frozen = {
        fqn
        for fqn in facts(case).parameters
        if any(is_within(fqn, f.target) and (built_by_forward or not f.after_wrap) for f in case.freezes)
    }
    if (reason := ddp_options.not_covered(case, replicate=built_by_forward)) is not None:
        return reason
    built = not built_by_forward
    if any(isinstance(op, SetDivideFactor) for op in case.schedule):
        return DIVIDE_FACTOR
    if any(fills_unused(case, index) for index in range(len(case.wrap))):
        return FILLED
    if any(isinstance(op, Abort) for op in case.schedule):
        return ABORTED
    flags = SyncFlags(case)
    pending: list[bool] = []
    unsynced = False
    saved: SaveState | None = None
    progress = Progress(case)
    for op in case.schedule:
        built = built or (isinstance(op, Forward) and not op.target)
        if built_by_forward and isinstance(op, CorruptState) and op.how == "rebuild":
            built, frozen = False, set(progress.frozen)
        if isinstance(op, SaveState):
            saved = op
        copied = saved is not None and saved.via == "state_dict"
        if built and copied and isinstance(op, LoadState) and op.assign:
            return ASSIGNED
        if built and isinstance(op, Cast):
            return CAST
        if isinstance(op, Forward) and op.target and op.grad:
            return AROUND_THE_WRAPPER
        if isinstance(op, Forward) and op.grad:
            pending.append(flags.synced(UNMANAGED))
        if isinstance(op, SetFlag) and op.flag in _SYNC_FLAGS:
            if not op.recurse or op.target:
                return PARTIAL_FLAG
            flags.set(op)
        if isinstance(op, Backward):
            if any(synced != flags.synced(UNMANAGED) for synced in pending):
                return SWITCHED
            if len(pending) > 1 and op.which != "all" and flags.synced(UNMANAGED):
                return ONE_BY_ONE
            unsynced = not flags.synced(UNMANAGED)
            del pending[{"all": slice(None), "oldest": slice(1), "newest": slice(-1, None)}[op.which]]
        if isinstance(op, Step | ZeroGrad | ClipGradNorm) and unsynced:
            return UNSYNCED_STEP
        if isinstance(op, SetRequiresGrad):
            named = {fqn for fqn in facts(case).parameters if is_within(fqn, op.target)}
            if built and op.value and not frozen.isdisjoint(named):
                return UNFROZEN
            if not built:
                frozen = frozen - named if op.value else frozen | named
        progress.advance()
    return None


def misses_a_root(case: Case, unreduced: Collection[int]) -> bool:
    """Whether a synchronised backward leaves unreduced what an FSDP root has accumulated that it misses.

    DDP has no roots: the first synchronised backward ends what ``no_sync`` began. ``unreduced`` are the
    backwards, by the index of their ops, after which the reference holds unreduced gradients.
    """
    flags = SyncFlags(case)
    for index, op in enumerate(case.schedule):
        if isinstance(op, SetFlag):
            flags.set(op)
        if isinstance(op, Backward) and index in unreduced and flags.synced(UNMANAGED):
            return True
    return False


class DDP(NoSyncEngine):
    """Finds unused parameters by itself and leaves buffers alone, unless the case's options say otherwise."""

    name: ClassVar[str] = "ddp"

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        device_ids = None if self.mesh.device.type == "cpu" else [self.mesh.device]
        buffers = model.buffers() if self.case.ddp.buffers != "local" else ()
        ddp_options.spoil(self.case, self.mesh, (*model.parameters(), *buffers))
        self.ddp = DistributedDataParallel(
            model, device_ids=device_ids, **ddp_options.arguments(self.case, self.mesh)
        )
        ddp_options.register_hook(self.case, self.mesh, self.ddp)
        if self.case.ddp.manual_finalization:
            setattr(self.ddp, "require_manual_backward_finalization", True)  # noqa: B010, a property
        self._join = ddp_options.join(self.case, self.ddp)
        return self.ddp

    @override
    def finalize_backward(self) -> None:
        """Waits for the reductions: "call this after backward returns" is always right."""
        if self.case.ddp.manual_finalization and not self._is_within:
            ddp: Any = self.ddp  # the method is new in torch 2.15
            ddp.finalize_backward()

    @override
    def finish(self) -> None:
        """Leaves the join context: all ranks are done, and synchronise the final model."""
        if self._join is not None:
            with self._join:
                pass

    @override
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return self.ddp.no_sync()

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Under ``no_sync`` gradients are accumulated on this rank alone, on top of reduced ones."""
        (held,) = super().gradients().values()
        return {"local_gradient" if self.unsynced else "gradient": held}
