"""``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.part import Part, off_default

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class DDP(Part, frozen=True, kw_only=True):
    """Options of the engines ``ddp`` and ``replicate`` (``DistributedDataParallel``).

    Fields with the names of its arguments are these.

    - ``buckets``: torch's own size, a few parameters each, one each, or sizes one by one.
    - ``buffers``: the first rank's before every forward or everyone's own, by
    ``broadcast_buffers`` or
      by ``forward_sync_buffers``.
    - ``initial``: before ``init_sync`` only the first rank has the case's values; or that is off.
    - ``hook``: torch's ``allreduce_hook``, or one that divides after the sum.
    - ``join``: trains within ``ddp.join()``, which divides by the ranks there were at first or by
    those
      left, raises where a rank is done, or is off. ``replicate`` has none.
    - ``manual_finalization``: ``finalize_backward()`` after every synchronised backward.
    - ``ignored_modules``: ``replicate`` is given the modules that the case ignores.
    """

    find_unused_parameters: bool = True
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    lazy_bucket_allocation: bool = False
    buckets: Literal["default", "few_each", "one_each", "listed"] = "default"
    buffers: Literal["local", "forward_local", "broadcast", "forward_broadcast"] = "local"
    initial: Literal["equal", "first_rank", "unsynced"] = "equal"
    device_mesh: bool = False
    hook: Literal["allreduce", "average"] | None = None
    join: Literal["initial", "effective", "throwing", "off"] | None = None
    manual_finalization: bool = False
    ignored_modules: bool = False

    @property
    def broadcasts_buffers(self) -> bool:
        """Whether every forward begins with the buffers of the first rank."""
        return self.buffers in ("broadcast", "forward_broadcast")


ALONE = ("buffers", "join", "manual_finalization")
"""Options that ``replicate`` does not have."""


def option_features(case: Case, found: Facts, without: Collection[str]) -> Iterator[str]:
    """Yield the features of all options but ``without``."""
    for name in off_default(case.ddp):
        if name in without:
            continue
        value = getattr(case.ddp, name)
        yield (
            f"ddp:{name}"
            if value is True
            else f"ddp:no_{name}"
            if value is False
            else f"ddp:{name}_{value}"
        )
    if case.ddp.broadcasts_buffers and found.batch_norms:
        yield "ddp:broadcasts"


MEANINGS = {
    "ddp:no_find_unused_parameters": "DDP does not look for unused parameters",
    "ddp:static_graph": "static_graph=True",
    "ddp:gradient_as_bucket_view": "gradient_as_bucket_view=True",
    "ddp:skip_all_reduce_unused_params": "skip_all_reduce_unused_params=True",
    "ddp:batched_grad_copy": "batched_grad_copy=True",
    "ddp:lazy_bucket_allocation": "lazy_bucket_allocation=True",
    "ddp:buckets_few_each": "buckets of a few parameters each",
    "ddp:buckets_one_each": "buckets of one parameter each",
    "ddp:buckets_listed": "bucket_cap_mb_list",
    "ddp:buffers_forward_local": "forward_sync_buffers=False",
    "ddp:buffers_broadcast": "broadcast_buffers=True",
    "ddp:buffers_forward_broadcast": "forward_sync_buffers=True",
    "ddp:broadcasts": "DDP has buffers to broadcast",
    "ddp:initial_first_rank": "only the first rank has the right values when DDP is constructed",
    "ddp:initial_unsynced": "init_sync=False",
    "ddp:device_mesh": "DDP is given a device mesh",
    "ddp:hook_allreduce": "torch's all-reduce as a communication hook",
    "ddp:hook_average": "a communication hook that divides after the sum",
    "ddp:join_initial": "training within join()",
    "ddp:join_effective": "training within join(divide_by_initial_world_size=False)",
    "ddp:join_throwing": "training within join(throw_on_early_termination=True)",
    "ddp:join_off": "training within join(enable=False)",
    "ddp:manual_finalization": "finalize_backward() after every synchronised backward",
    "ddp:ignored_modules": "replicate() is told to ignore modules",
}


class DistributedDataParallel(EngineSpec):
    """Replicates the model, whatever its wrap groups are."""

    name = "ddp"
    title = "`DistributedDataParallel`"
    tag = "DDP"
    meaning = "DistributedDataParallel runs"
    options = "ddp"
    meanings = MEANINGS
    wrapper = "DistributedDataParallel"
    differs_in = ("buffers",)

    @override
    def moves_inputs(self, target: str, wrapped: frozenset[str]) -> bool:
        return not target

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        return option_features(case, found, ("ignored_modules",))

    @override
    def check(self, case: Case, found: Facts) -> None:
        others = set(case.engines) - {DistributedDataParallel.name}
        if case.ddp.broadcasts_buffers and others and found.batch_norms:
            raise InvalidCase(
                "DDP broadcasts buffers, which the other engines do not, and there is one "
                "reference",
                'run the engine ddp alone, or set ddp.buffers to "local"',
            )
