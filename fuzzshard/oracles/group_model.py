"""One wrap group of ``fully_shard`` as its documentation describes it: when it gathers, shards and
reduces.

``fully_shard`` all-gathers a group that is not unsharded when one of its modules is called and
when the gradient of its output arrives, shards it after forward as ``reshard_after_forward`` says
and after backward, and reduce-scatters the gradients it has then (the docstring of
``fully_shard``). What is not in docstrings follows
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Set
from typing import NamedTuple

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.communication import fills_unused
from fuzzshard.case.dtypes import promoted_reduction
from fuzzshard.case.facts import Facts
from fuzzshard.parts.dtypes import Dtype


class Shards(enum.Enum):
    """How a group holds its parameters; ``FEW`` is the smaller mesh of an int
    ``reshard_after_forward``.

    ``EITHER``: a recomputation has unsharded them, or stopped before it came to the group.
    """

    ALL = "sharded"
    FEW = "sharded over the smaller mesh"
    WHOLE = "unsharded"
    EITHER = "sharded or unsharded"


class Ahead(enum.Enum):
    """Whether an all-gather was issued that nothing has waited for yet.

    ``MAYBE``: it was asked for where the group may have been unsharded, or by a recomputation that
    may have stopped before.
    """

    NONE = "none"
    ISSUED = "issued"
    MAYBE = "issued or none"


class Phase(enum.Enum):
    """Which hook of a module or of its group ran last."""

    IDLE = "idle"
    FORWARD = "forward"
    PRE_BACKWARD = "pre-backward"
    POST_BACKWARD = "post-backward"


class Issued(NamedTuple):
    """One collective: its kind, the elements of the gathered or the scattered tensor, and their
    dtype.

    ``sure``: whether it is issued in any case.
    """

    kind: str
    size: int | None
    dtype: str | None
    sure: bool = True


@dataclasses.dataclass(eq=False)
class Root:
    """What the groups below one FSDP root share."""

    last_backward: bool = True
    forward: int | None = None
    """The group whose module is the outermost one that runs forward now."""
    order: list[int] = dataclasses.field(default_factory=list)
    """The groups in the order of their post-forwards, with repetitions: backward prefetches
    against it.
    """


class Group:
    """The state of one group. ``issued`` gets its collectives."""

    def __init__(self, case: Case, found: Facts, index: int, issued: list[Issued]) -> None:
        self.case, self.found, self.index, self.issued = case, found, index, issued
        self.spec: WrapGroup = case.wrap[index]
        self.parameters = [fqn for fqn, owner in found.owners.items() if owner == index]
        self.root = Root()
        self.claimed = False
        self.keeps_after_forward, self.keeps_as_root, self.few = self.spec.after_forward(
            case.mesh.shard
        )
        self.reduces = True
        self.all_reduces = True
        self.reshards_after_backward = True
        self.cast: Dtype | None = None
        self.shards = Shards.ALL
        self.ahead = Ahead.NONE
        self.called = Phase.IDLE
        self.phase = Phase.IDLE
        self.gradients: set[str] = set()
        self.frozen: Set[str] = frozenset()
        self.was_unsharded = False
        self.partial: set[str] = set()
        """What waits for its all-reduce and takes part in the next reduction of the group."""
        self.places: list[int] = []
        self.still_to_run: set[str] = set()
        self.waits_to_finalize = False
        """Whether ``finalize_backward`` of the root runs the post-backward, as it has not reduced
        yet.
        """

    @property
    def runs_in_part(self) -> bool:
        """Whether some modules of a list group have run forward and others have not."""
        return len(self.spec.modules) > 1 and bool(self.still_to_run)

    def unshard(self) -> None:
        """Starts an all-gather where one is due."""
        if self.ahead is Ahead.ISSUED or self.shards is Shards.WHOLE or not self.parameters:
            return
        sure = self.ahead is Ahead.NONE and self.shards is not Shards.EITHER
        self.ahead = Ahead.MAYBE if self.shards is Shards.EITHER else Ahead.ISSUED
        if (self.few if self.shards is Shards.FEW else self.case.mesh.shard) > 1:
            known = self._sizes_known and not self.spec.does("gathers_several")
            size = self._sum(self.parameters) * self.case.mesh.shard if known else None
            self.issued.append(Issued("all_gather", size, None, sure=sure))

    def wait(self) -> None:
        """Ends an all-gather that was started."""
        if self.ahead is not Ahead.NONE:
            self.ahead, self.shards = Ahead.NONE, Shards.WHOLE
            self.was_unsharded = True

    def gather(self) -> None:
        """Makes the group unsharded."""
        self.unshard()
        self.wait()

    @property
    def unshards_in_backward(self) -> bool:
        """``FSDPModule.set_unshard_in_backward``."""
        return not self.spec.does("stays_sharded")

    def unshard_in_backward(self) -> None:
        """Starts an all-gather where one is due and backward needs it."""
        if self.unshards_in_backward:
            self.unshard()

    def doubt(self, shards: Shards, ahead: Ahead) -> None:
        """What was done since ``shards`` and ``ahead`` held may not have been done."""
        if self.shards is not shards:
            self.shards = Shards.EITHER
        if self.ahead is not ahead:
            self.ahead = Ahead.MAYBE

    def reshard(self) -> None:
        """``FSDPModule.reshard``: what was gathered is freed, and so is what was only issued."""
        self.shards, self.ahead = Shards.ALL, Ahead.NONE

    def take_state(self) -> None:
        """The hooks of a state dict: they shard. Nothing says whether the next forward uses an
        all-gather that was issued before.
        """
        self.shards = Shards.ALL
        if self.ahead is not Ahead.NONE:
            self.ahead = Ahead.MAYBE

    def reshard_after_forward(self) -> None:
        """What ``reshard_after_forward`` says."""
        if not self.keeps_after_forward:
            self.shards = Shards.FEW if self.few < self.case.mesh.shard else Shards.ALL

    @property
    def may_fill(self) -> bool:
        """Whether the group reduces zeros for parameters without a gradient, once it has been
        unsharded.
        """
        return fills_unused(self.case, self.index) and not self.was_unsharded

    def reset(self) -> None:
        """Forgets an iteration, with its gradients."""
        self.shards, self.ahead = Shards.ALL, Ahead.NONE
        self.called = self.phase = Phase.IDLE
        self.gradients, self.partial, self.still_to_run = set(), set(), set()
        self.waits_to_finalize = False
        self.places.clear()
        self.root.order.clear()
        self.root.forward = None

    def set_reshard_after_forward(self, value: bool) -> None:
        """``FSDPModule.set_reshard_after_forward``."""
        self.keeps_after_forward, self.few = not value, self.case.mesh.shard
        self.keeps_as_root = False

    def finalize(self) -> None:
        """What ``finalize_backward`` of the root does to the group.

        It "completes pending gradient reduction and resharding according to their current
        settings"; pending is the reduction of a group whose last post-backward waits for this, or
        did not synchronise.
        """
        if self.waits_to_finalize:
            self.post_backward()
        elif self.reshards_after_backward:
            self.reshard()
        self.phase = Phase.IDLE

    def post_backward(self) -> None:
        """Shards, and reduces the gradients that there are."""
        self.phase = Phase.POST_BACKWARD
        self.waits_to_finalize = not self.reduces
        if self.reshards_after_backward:
            if self.shards is Shards.FEW:
                self.ahead = Ahead.NONE
            self.shards = Shards.ALL
        reduced = self.gradients | self.partial
        if fills_unused(self.case, self.index) and self.was_unsharded:
            reduced |= {fqn for fqn in self.parameters if fqn not in self.frozen}
        if not self.reduces or not reduced:
            return
        size = self._sum(reduced) if self._sizes_known else None
        dtype = promoted_reduction(self.case, self.found, reduced, self.cast)
        self.gradients, self.partial = set(), set()
        if self.case.mesh.shard > 1:
            self.issued.append(Issued("reduce_scatter", size, dtype))
        if self.case.mesh.replicate is None:
            return
        if self.all_reduces:
            self.issued.append(Issued("all_reduce", size, dtype))
        else:
            self.partial = reduced

    @property
    def _sizes_known(self) -> bool:
        """Parameters of several dtypes travel as bytes, those of tensor-parallel modules in
        parts.
        """
        keeps = self.spec.policy is not None and self.spec.policy.does("keeps_vectors")
        return not self.case.dtypes and not self.case.tensor_parallel and not keeps

    def _sum(self, fqns: Collection[str]) -> int:
        """The elements of one rank's shards, padded to equal sizes."""
        total = 0
        for fqn in fqns:
            shape = self.found.parameters[fqn]
            dim = self.spec.dim_of(shape)
            total += math.prod(shape) // shape[dim] * -(-shape[dim] // self.case.mesh.shard)
        return total
