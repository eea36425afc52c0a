"""Which cases the documentation of DDP's options covers.

Sources are in torch/nn/parallel/distributed.py unless they are named.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator

from torch.nn.parallel import DistributedDataParallel

from fuzzshard.case.arrivals import arrivals, graph_is_static, replicated
from fuzzshard.case.case import Case
from fuzzshard.case.facts import has_batch_norm
from fuzzshard.case.options import DDP
from fuzzshard.engines.ddp.script import options
from fuzzshard.engines.exclusion import Exclusion


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
    named = [argument.partition("=")[0] for argument in options(spec, has_buffers=True)]
    return [name for name in named if name not in known]


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
