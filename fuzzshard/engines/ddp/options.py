"""What a Case's options of DDP mean: arguments, methods, and what their documentation covers.

Sources are in torch/nn/parallel/distributed.py unless they are named.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from fuzzshard.case.arrivals import arrivals, graph_is_static, replicated
from fuzzshard.case.case import Case
from fuzzshard.case.facts import has_batch_norm
from fuzzshard.case.options import DDP
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.mesh import RankMesh

_FLAGS = (
    *("static_graph", "gradient_as_bucket_view", "skip_all_reduce_unused_params"),
    *("batched_grad_copy", "lazy_bucket_allocation"),
)
"""Arguments of the constructor that the options have under their own names, and that are off by
default.
"""

_BUCKETS: Mapping[str, dict[str, Any]] = {
    "default": {},
    "few_each": {"bucket_cap_mb": 2e-4},
    "one_each": {"bucket_cap_mb": 1e-6},
    "listed": {"bucket_cap_mb_list": [1e-4, 2e-5, 3e-4]},
}
"""In MiB: some 200 bytes, or 1. Torch's own tests have such fractions as well."""

_BUFFERS: Mapping[str, dict[str, Any]] = {
    "local": {"broadcast_buffers": False},
    "forward_local": {"forward_sync_buffers": False},
    "broadcast": {"broadcast_buffers": True},
    "forward_broadcast": {"forward_sync_buffers": True},
}

_JOIN: Mapping[str, dict[str, Any]] = {
    "initial": {},
    "effective": {"divide_by_initial_world_size": False},
    "throwing": {"throw_on_early_termination": True},
    "off": {"enable": False},
}


def _named(spec: DDP) -> dict[str, Any]:
    """The keyword arguments of the constructor that are not about ranks and devices."""
    flags = {name: True for name in _FLAGS if getattr(spec, name)}
    unsynced = {"init_sync": False} if spec.initial == "unsynced" else {}
    found = {"find_unused_parameters": spec.find_unused_parameters, **flags, **unsynced}
    return found | _BUCKETS[spec.buckets] | _BUFFERS[spec.buffers]


def arguments(case: Case, mesh: RankMesh) -> dict[str, Any]:
    """The keyword arguments of the constructor, which ``replicate`` takes as well."""
    ranks = (
        {"device_mesh": mesh.data_mesh} if case.ddp.device_mesh else {"process_group": mesh.group}
    )
    return ranks | _named(case.ddp)


def spoil(case: Case, mesh: RankMesh, synchronised: Iterable[torch.Tensor]) -> None:
    """Zeroes what ``init_sync`` takes from the first rank, if the case says so.

    "the deprecated broadcast_buffers=False excludes buffers from this init sync", and DDP knows
    nothing of what ``replicate`` ignores (``_collect_params`` in
    torch/distributed/_composable/replicate.py).
    """
    if case.ddp.initial == "first_rank" and mesh.rank != 0:
        with torch.no_grad():
            for tensor in synchronised:
                tensor.zero_()


def register_hook(case: Case, mesh: RankMesh, module: Any) -> None:
    """Registers the communication hook of the case, if it has one."""
    if case.ddp.hook is not None:
        module.register_comm_hook(mesh.group, _HOOKS[case.ddp.hook])


def _average(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The sum over the ranks, divided afterwards."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future.then(lambda summed: summed.value()[0] / group.size())


_HOOKS: Mapping[str, Any] = {
    "allreduce": allreduce_hook,
    "average": lambda group, bucket: _average(
        group, bucket
    ),  # DDP wants no strings for annotations
}


def join(case: Case, ddp: DistributedDataParallel) -> Join | None:
    """The context that the case trains in, if it does."""
    return None if case.ddp.join is None else ddp.join(**_JOIN[case.ddp.join])


def not_covered(case: Case, *, replicate: bool) -> Exclusion | None:
    """Why the documentation of an option does not cover a case, or None."""
    return next(_exclusions(case, case.ddp, replicate=replicate), None)


_CLASS = "distributed.py, class docstring"
_LATE = (
    "torch/distributed/_composable/replicate.py: DDP is made of a list of parameters, by the "
    "first forward"
)


def _exclusions(case: Case, spec: DDP, *, replicate: bool) -> Iterator[Exclusion]:
    lacking = _lacking(spec)
    if spec.manual_finalization and not hasattr(DistributedDataParallel, "finalize_backward"):
        lacking.append("finalize_backward")
    for name in lacking:
        yield Exclusion(
            f"this version of torch has no {name} of DDP", "fuzzshard: asked of the torch at hand"
        )
    if replicate:
        yield from _of_replicate(case, spec)
    if spec.device_mesh and (case.mesh.replicate is not None or case.mesh.tensor is not None):
        yield Exclusion(
            "a mesh of two axes", "distributed.py, __init__: 'Only 1D device mesh is supported'"
        )
    if spec.static_graph and not graph_is_static(case):
        yield Exclusion(
            "a graph that changes",
            f"{_CLASS}, static_graph: 'The set of used and unused parameters will not change ... "
            "How the "
            "graph is trained will not change during the whole training loop'",
        )
    trained = replicated(case, by_replicate=replicate)
    arrived = [some & trained for some in arrivals(case).values()]
    if spec.skip_all_reduce_unused_params and len(set(arrived)) > 1:
        yield Exclusion(
            "unused parameters change",
            f"{_CLASS}, skip_all_reduce_unused_params: 'This requires that unused parameters "
            "remain the same "
            "across all ranks throughout the entire training process.'",
        )
    if (
        not spec.find_unused_parameters
        and not spec.static_graph
        and any(some < trained for some in arrived)
    ):
        yield Exclusion(
            "a backward misses a parameter, and find_unused_parameters is off",
            f"{_CLASS}, find_unused_parameters: 'Parameters that don't receive gradients as part "
            "of this "
            "graph are preemptively marked as being ready to be reduced'",
        )


def _lacking(spec: DDP) -> list[str]:
    """The arguments that the case needs and that this version of torch does not have."""
    known = inspect.signature(DistributedDataParallel).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return []  # somebody has wrapped the constructor
    return [name for name in _named(spec) if name not in known]


def _of_replicate(case: Case, spec: DDP) -> Iterator[Exclusion]:
    if spec.broadcasts_buffers and has_batch_norm(case, ""):
        yield Exclusion("replicate() gives DDP no buffers to broadcast", _LATE)
    if spec.join is not None or spec.manual_finalization:
        yield Exclusion("replicate() has no join() and no finalize_backward()", _LATE)
    if spec.initial == "first_rank":
        if not all(
            op.sets_mode for op in itertools.takewhile(lambda op: not op.call, case.schedule)
        ):
            yield Exclusion(
                "parameters are used before the first forward, which synchronises them", _LATE
            )
        if any(op.rebuilds for op in case.schedule):
            yield Exclusion("a model that is built anew is used before its first forward", _LATE)
