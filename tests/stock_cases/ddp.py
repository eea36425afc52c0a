"""Options of DDP and of composable DDP."""

from __future__ import annotations

from typing import Any

from cases import BACKWARD, FORWARD, ROOT, STEP, TWO_STEPS, ZERO, chain, groups, make_case

from fuzzshard.case.case import Optimizer
from fuzzshard.case.options import DDP
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from stock_cases.stock import Stock

_THREE_STEPS = (*TWO_STEPS, ZERO, FORWARD, BACKWARD, STEP)
_SYNC = tuple(ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))
_NORM = chain(a=Linear(out=4), n=BatchNorm(), b=Linear(out=3))


def ddp(options: DDP, **rest: Any) -> Stock:
    """DDP alone, with momentum; buckets are rebuilt after the first step."""
    more = {"engines": ("ddp",), "optimizer": Optimizer(momentum=0.5), "schedule": _THREE_STEPS}
    return Stock(make_case(ddp=options, **(more | rest)), ("bitwise", "bounded"))


DDP_OPTIONS = {
    "gradients that are views of small buckets, all of them used, on a device mesh": ddp(
        DDP(
            find_unused_parameters=False,
            gradient_as_bucket_view=True,
            buckets="few_each",
            device_mesh=True,
        )
    ),
    "a static graph, buckets of one parameter": ddp(
        DDP(static_graph=True, find_unused_parameters=False, buckets="one_each")
    ),
    "listed buckets": ddp(DDP(buckets="listed")),
    "unused parameters skipped": ddp(DDP(skip_all_reduce_unused_params=True)),
    "a batched copy": ddp(DDP(batched_grad_copy=True)),
    "buckets on demand": ddp(DDP(lazy_bucket_allocation=True)),
    "torch's hook, values of the first rank, within join": ddp(
        DDP(hook="allreduce", initial="first_rank", join="initial")
    ),
    "values of the first rank, and a step before the first forward": ddp(
        DDP(initial="first_rank"), schedule=(STEP, FORWARD, BACKWARD, STEP)
    ),
    "a user's hook, values that nobody synchronises": ddp(DDP(hook="average", initial="unsynced")),
    "post-local SGD's hook, composable": ddp(DDP(hook="local_sgd"), engines=("replicate",)),
    "torch's hook that averages in float16, after no_sync": ddp(
        DDP(hook="fp16"), schedule=(_SYNC[0], FORWARD, BACKWARD, _SYNC[1], *_THREE_STEPS)
    ),
    "torch's wrapper that does so, gradients that are views": ddp(
        DDP(hook="fp16_wrapper", gradient_as_bucket_view=True), engines=("replicate",)
    ),
    "torch's hook that averages in float16 what is scaled": ddp(
        DDP(hook="fp16"), optimizer=Optimizer(grad_scaler="default")
    ),
    "within join, divided by the ranks that are left": ddp(DDP(join="effective")),
    "within join, which throws": ddp(DDP(join="throwing")),
    "within join, which is off": ddp(DDP(join="off")),
    "within join, of which rank 0 has the fewest inputs": ddp(
        DDP(), schedule=(*_THREE_STEPS, ops.TrainUnevenly(rounds=(1, 3)), FORWARD)
    ),
    "within join and no_sync, buffers of those that have inputs": ddp(
        DDP(buffers="broadcast"),
        model=_NORM,
        schedule=(
            *_THREE_STEPS,
            ops.TrainUnevenly(rounds=(2, 1), division="effective", no_sync=True),
            FORWARD,
        ),
    ),
    "within join, which throws as it should": ddp(
        DDP(),
        engines=("ddp", "zero_redundancy"),
        schedule=(*_THREE_STEPS, ops.TrainUnevenly(division="throwing"), *TWO_STEPS),
    ),
    "finalized by hand": ddp(DDP(manual_finalization=True)),
    "no_sync left by an exception": ddp(DDP(no_sync="left_by_error")),
    "no_sync within no_sync": ddp(
        DDP(no_sync="again"),
        schedule=(_SYNC[0], FORWARD, BACKWARD, _SYNC[1], *_THREE_STEPS),
    ),
    "outputs without a clone": ddp(DDP(uncloned_outputs=True)),
    "buffers of the first rank": ddp(DDP(buffers="broadcast"), model=_NORM),
    "buffers of the first rank, synchronised in forward": ddp(
        DDP(buffers="forward_broadcast"), model=_NORM
    ),
    "buffers left alone in forward": ddp(DDP(buffers="forward_local"), model=_NORM),
    "composable, with an ignored module": ddp(
        DDP(ignored_modules=True), engines=("replicate",), ignored=("a",), wrap=groups("b", ROOT)
    ),
}
