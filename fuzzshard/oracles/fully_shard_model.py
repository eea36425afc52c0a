"""What ``fully_shard`` does in a run of a case, op by op: which collectives, and which post-backwards.

Follows a schedule with the hooks of :mod:`fuzzshard.oracles.hook_model` and the methods of ``FSDPModule``
(torch/distributed/fsdp/_fully_shard/_fully_shard.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from fuzzshard.case.autograd import Node, Tape, Unwatched, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block
from fuzzshard.case.progress import Progress, modules_named, names_rank
from fuzzshard.case.schedule import (
    Abort,
    Backward,
    Cast,
    CorruptState,
    Forward,
    LoadState,
    Op,
    Reshard,
    SaveState,
    SetFlag,
    SetMode,
    SetRequiresGrad,
    Step,
    TakeStateDict,
    Unshard,
)
from fuzzshard.oracles.group_model import Group, Issued, Shards
from fuzzshard.oracles.hook_model import HookModel


class Prediction(NamedTuple):
    """What one op does.

    ``gathers_certain``: whether the number of all-gathers follows from what is documented. ``in_backward``
    counts, by wrap group, the post-backwards that run within the autograd backward.
    """

    issued: tuple[Issued, ...]
    gathers_certain: bool = True
    in_backward: Mapping[int, int] = {}


def is_predictable(case: Case) -> bool:
    """Whether the model covers a case.

    Not the hooks of compiled models; not roots that share streams, and with these the order that backward
    prefetches against, which ``share_comm_ctx`` does not say; and not modules with methods of other names
    that are checkpointed or in a list group, where hooks run around ``forward`` only.
    """
    blocks = {p: m for p, m in facts(case).modules.items() if isinstance(m, Block) and m.method != "forward"}
    hooked = {c.module for c in case.checkpoints}
    hooked |= {m for group in case.wrap if len(group.modules) > 1 for m in group.modules}
    sharing = sum("share_streams" in group.communication for group in case.wrap)
    return case.compile is None and sharing < 2 and hooked.isdisjoint(blocks)


class FullyShardModel:
    """Predicts op by op on one rank. ``prefetches=False`` leaves out what backward prefetches by itself."""

    def __init__(self, case: Case, rank: int, *, prefetches: bool = True) -> None:
        self.case, self.rank, self.prefetches = case, rank, prefetches
        self.found = facts(case)
        self.certain = is_predictable(case)
        self.progress = Progress(case, rank)
        self.issued: list[Issued] = []
        self.training = True
        self._start()

    def _start(self) -> None:
        """The state of a model that was just wrapped."""
        self.hooks = HookModel(self.case, self.found, self.issued, prefetches=self.prefetches)
        self.plain = Tape(self.case, self.found, Unwatched())
        self.losses: dict[int, tuple[list[Node], list[Node]]] = {}
        """What each pending loss depends on, in the graph with the hooks and in that of the plain model."""
        self.training = True

    @property
    def groups(self) -> list[Group]:
        """The groups as they are now."""
        return self.hooks.groups

    def advance(self) -> Prediction | None:
        """Applies the next op; None where nothing is known, from then on."""
        op = self.case.schedule[self.progress.next]
        self.issued.clear()
        skipped = True
        if self.certain:
            skipped = self._run(op) is False
            self.progress.advance(skipped=skipped)
            self.certain &= self.hooks.certain
        if not self.certain or isinstance(op, Abort):
            return None
        if not isinstance(op, Backward) or skipped:
            return Prediction(tuple(self.issued))
        hooks = self.hooks
        return Prediction(tuple(self.issued), hooks.gathers_certain, dict(hooks.in_backward))

    def _run(self, op: Op) -> bool | None:
        match op:
            case Forward():
                self._forward(op)
            case Backward():
                return self._backward(op)
            case Step() | Cast() | CorruptState():
                self._before_change()
            case SetRequiresGrad() if names_rank(op.ranks, self.rank):
                self._before_change()
            case SetFlag():
                self._set_flag(op)
            case SetMode():
                self.training = op.train
            case Unshard():
                for group in self._named(op):
                    group.gather() if op.waits else group.unshard()
            case Reshard():
                for group in self._named(op):
                    group.reshard()
            case Abort():
                self.certain &= not any(group.may_fill for group in self.groups)
                self.hooks.reset()
            case TakeStateDict() | SaveState() | LoadState():
                for group in self.groups:
                    group.shards = Shards.ALL
            case _:
                pass
        match op:
            case Cast():
                for group in self.groups:
                    group.cast = op.dtype
                    group.reshard()
                    self.certain &= not group.gradients
            case CorruptState(how="rebuild"):
                self.certain &= not any(isinstance(o, SetFlag) for o in self.case.schedule)
                self._start()
                for group in self.groups:
                    group.cast = self.progress.cast
            case _:
                pass
        return None

    def _before_change(self) -> None:
        if self.progress.may_be_unsharded:
            for group in self.groups:
                group.reshard()

    def _named(self, op: SetFlag | Unshard | Reshard) -> list[Group]:
        return [
            self.hooks.of_module[m]
            for m in modules_named(self.case, self.hooks.of_module, op.target, recurse=op.recurse)
        ]

    def _set_flag(self, op: SetFlag) -> None:
        for group in self._named(op):
            match op.flag:
                case "requires_gradient_sync":
                    group.reduces = group.all_reduces = op.value
                case "requires_all_reduce":
                    group.all_reduces = op.value
                case "reshard_after_backward":
                    group.reshards_after_backward = op.value
                case "reshard_after_forward":
                    group.set_reshard_after_forward(op.value)
                case "is_last_backward":
                    group.root.last_backward = op.value

    def _forward(self, op: Forward) -> None:
        hooked = self.hooks.loss(op, self.progress, training=self.training)
        plain = self.plain.loss(op, self.progress, training=self.training)
        if op.grad:
            self.losses[self.progress.next] = hooked, plain

    def _backward(self, op: Backward) -> bool:
        losses = [self.losses.pop(index) for index, _, _ in self.progress.taken_by(op)]
        hooked = reached(node for nodes, _ in losses for node in nodes)
        plain = reached(node for _, nodes in losses for node in nodes)
        if hooked:
            arriving = frozenset(fqn for node in plain for fqn in node.parameters)
            self.hooks.backward(hooked, arriving, self.progress.frozen)
            if self.case.finalize is not None:
                self.hooks.finalize()
        return bool(hooked)


class Followed(NamedTuple):
    """A whole run: what each op does, and the model after the last one. To be read only: it is shared."""

    predictions: tuple[Prediction | None, ...]
    after: FullyShardModel


@functools.lru_cache(maxsize=2)
def followed(case: Case, rank: int, *, prefetches: bool = True) -> Followed:
    """The run of ``case``; several oracles ask for the same one."""
    model = FullyShardModel(case, rank, prefetches=prefetches)
    return Followed(tuple(model.advance() for _ in case.schedule), model)
