"""What ``fully_shard`` does in a run of a case, op by op: which collectives, and which
post-backwards.

Follows a schedule with the hooks of :mod:`fuzzshard.oracles.hook_model` and the methods of
``FSDPModule`` (torch/distributed/fsdp/_fully_shard/_fully_shard.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from fuzzshard.case.autograd import Tape, Unwatched, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.groups import holds_a_member, modules_named
from fuzzshard.case.schedule_state import ScheduleState
from fuzzshard.case.sync_flags import flags_set
from fuzzshard.oracles.group_model import Group, Issued
from fuzzshard.oracles.hook_model import HookModel
from fuzzshard.parts.op import Below, Op, Switch


class Prediction(NamedTuple):
    """What one op does.

    ``gathers_certain``: whether the number of all-gathers follows from what is documented.
    ``in_backward`` counts, by wrap group, the post-backwards that run within the autograd
    backward.
    """

    issued: tuple[Issued, ...]
    gathers_certain: bool = True
    in_backward: Mapping[int, int] = {}


def is_predictable(case: Case) -> bool:
    """Whether the model covers a case.

    Not the hooks of compiled models; not roots that share streams, and with these the order that
    backward prefetches against, which ``share_comm_ctx`` does not say; not list groups that hold a
    member of their own, as nothing says how often such a group is entered; and not modules with
    methods of other names that are checkpointed or in a list group, where hooks run around
    ``forward`` only.
    """
    if any(holds_a_member(case, group) for group in case.wrap):
        return False
    hooked = {c.module for c in case.checkpoints}
    hooked |= {m for group in case.wrap if len(group.modules) > 1 for m in group.modules}
    sharing = sum(group.does("shares") for group in case.wrap)
    return case.compile is None and sharing < 2 and hooked.isdisjoint(facts(case).by_method)


class FullyShardModel:
    """Predicts op by op on one rank. ``prefetches=False`` leaves out what backward prefetches by
    itself.
    """

    def __init__(self, case: Case, rank: int, *, prefetches: bool = True) -> None:
        self.case, self.prefetches = case, prefetches
        self.found = facts(case)
        self.certain = is_predictable(case)
        self.at = ScheduleState(case, rank)
        self.issued: list[Issued] = []
        self._start(case)

    def _start(self, case: Case) -> None:
        """The state of a model that was just wrapped."""
        self.hooks = HookModel(case, self.found, self.issued, prefetches=self.prefetches)
        self.plain = Tape(case, self.found, Unwatched())

    @property
    def groups(self) -> list[Group]:
        """The groups as they are now."""
        return self.hooks.groups

    def advance(self) -> Prediction | None:
        """Applies the next op; None where nothing is known, from then on."""
        op = self.at.op
        self.issued.clear()
        skipped = True
        if self.certain:
            skipped = not self._run(op)
            self.at.advance(skipped=skipped)
            self.certain &= self.hooks.certain
        if not self.certain or op.aborts:
            return None
        self.certain = not op.retains  # nothing says what hooks gather that run once more
        if not op.takes or skipped:
            return Prediction(tuple(self.issued))
        hooks = self.hooks
        return Prediction(tuple(self.issued), hooks.gathers_certain, dict(hooks.in_backward))

    def _run(self, op: Op) -> bool:
        """Runs one op; False for a backward that has nothing to differentiate.

        Which parameters get a gradient follows from the graph without hooks.
        """
        losses, plain = self.hooks.tape.follow(self.at), self.plain.follow(self.at)
        if losses:
            arriving = frozenset(fqn for node in reached(plain) for fqn in node.parameters)
            self.hooks.backward(reached(losses), arriving, self.at.frozen)
            if self.case.finalize is not None:
                self.hooks.finalize()
        if op.switch:
            self._set_flag(op.switch)
        for group in self._named(op.below) if op.gathers else ():
            group.gather() if op.waits else group.unshard()
        for group in self._named(op.below) if op.frees else ():
            group.reshard()
        if op.aborts:
            self.certain &= not any(group.may_fill for group in self.groups)
            self.hooks.reset()
        for group in self.groups if op.takes_state else ():
            group.take_state()
        for group in self.groups if op.casts_to else ():
            group.cast = op.casts_to
            group.reshard()
            self.certain &= not group.gradients
        if op.rebuilds:
            self.certain &= not flags_set(self.case)
            self._start(self.at.case.on(op.mesh))
            for group in self.groups:
                group.cast = self.at.cast
        return bool(losses) or not op.takes

    def _named(self, below: Below | None) -> list[Group]:
        named = modules_named(self.case, self.hooks.of_module, below) if below else []
        return [self.hooks.of_module[m] for m in named]

    def _set_flag(self, switch: Switch) -> None:
        for group in self._named(switch.below):
            match switch.flag:
                case "requires_gradient_sync":
                    group.reduces = group.all_reduces = switch.value
                case "requires_all_reduce":
                    group.all_reduces = switch.value
                case "reshard_after_backward":
                    group.reshards_after_backward = switch.value
                case "reshard_after_forward":
                    group.set_reshard_after_forward(switch.value)
                case "is_last_backward":
                    group.root.last_backward = switch.value


class Followed(NamedTuple):
    """A whole run: what each op does, and the model after the last one. To be read only: it is
    shared.
    """

    predictions: tuple[Prediction | None, ...]
    after: FullyShardModel


@functools.lru_cache(maxsize=2)
def followed(case: Case, rank: int, *, prefetches: bool = True) -> Followed:
    """The run of ``case``; several oracles ask for the same one."""
    model = FullyShardModel(case, rank, prefetches=prefetches)
    return Followed(tuple(model.advance() for _ in case.schedule), model)
