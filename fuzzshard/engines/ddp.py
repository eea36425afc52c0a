"""``DistributedDataParallel``."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.facts import facts
from fuzzshard.case.paths import is_within
from fuzzshard.case.progress import Progress
from fuzzshard.case.schedule import (
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
from fuzzshard.engines.no_sync import NoSyncEngine

_SYNC_FLAGS = ("requires_gradient_sync", "requires_all_reduce")


def not_applicable(case: Case, *, built_by_forward: bool = False) -> str | None:
    """Why DDP's documented contract does not cover a case, or None.

    Sources: the notes of torch/nn/parallel/distributed.py (forward through the wrapper, reducer built at
    construction, ``no_sync`` around the forward). Buffers are not broadcast: the other engines do not.
    ``built_by_forward``: construction is put off until the first forward.
    """
    if has_precision(case):
        return "the wrap groups have a policy of mixed precision, which DDP does not know"
    frozen = {
        fqn
        for fqn in facts(case).parameters
        if any(is_within(fqn, f.target) and (built_by_forward or not f.after_wrap) for f in case.freezes)
    }
    built = not built_by_forward
    if any(isinstance(op, SetDivideFactor) for op in case.schedule):
        return "a divide factor, which DDP has not"
    flags = SyncFlags(case)
    pending: list[bool] = []
    unsynced = False
    saved: SaveState | None = None
    progress = Progress(case)
    for op in case.schedule:
        built = built or isinstance(op, Forward)
        if built_by_forward and isinstance(op, CorruptState) and op.how == "rebuild":
            built, frozen = False, set(progress.frozen)
        if isinstance(op, SaveState):
            saved = op
        copied = saved is not None and saved.via == "state_dict"
        if built and copied and isinstance(op, LoadState) and op.assign:
            return "load_state_dict(assign=True) replaces the parameters that DDP's constructor has hooked"
        if built and isinstance(op, Cast):
            return "parameters are cast: DDP's buckets have the dtypes that they had at construction"
        if isinstance(op, Forward) and op.target:
            return "a forward does not go through the DDP wrapper"
        if isinstance(op, Forward) and op.grad:
            pending.append(flags.synced(UNMANAGED))
        if isinstance(op, SetFlag) and op.flag in _SYNC_FLAGS:
            if not op.recurse or op.target:
                return "a flag for some modules only, which no_sync() cannot express"
            flags.set(op)
        if isinstance(op, Backward):
            if any(synced != flags.synced(UNMANAGED) for synced in pending):
                return "gradient sync is switched between a forward and its backward"
            if len(pending) > 1 and op.which != "all":
                return "several forwards have their backward one by one"
            unsynced = not pending[-1]
            pending.clear()
        if isinstance(op, Step | ZeroGrad | ClipGradNorm) and unsynced:
            return "a step on gradients that were not synchronised"
        if isinstance(op, SetRequiresGrad):
            named = {fqn for fqn in facts(case).parameters if is_within(fqn, op.target)}
            if built and op.value and not frozen.isdisjoint(named):
                return "a parameter frozen at construction is unfrozen: DDP never synchronises it"
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
    """Finds unused parameters by itself."""

    name: ClassVar[str] = "ddp"

    @override
    def parallelize(self, model: nn.Module) -> nn.Module:
        device_ids = None if self.mesh.device.type == "cpu" else [self.mesh.device]
        self.ddp = DistributedDataParallel(
            model,
            device_ids=device_ids,
            process_group=self.mesh.group,
            find_unused_parameters=True,
            broadcast_buffers=False,
        )
        return self.ddp

    @override
    def moves_inputs(self, target: str) -> bool:
        return True

    @override
    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        return self.ddp.no_sync()

    @override
    def gradients(self) -> dict[str, dict[str, torch.Tensor | None]]:
        """Under ``no_sync`` gradients are accumulated on this rank alone, on top of reduced ones."""
        (held,) = super().gradients().values()
        return {"local_gradient" if self.unsynced else "gradient": held}
