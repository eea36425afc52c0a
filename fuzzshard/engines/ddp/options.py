"""What a Case's options of DDP mean: arguments, methods, and what their documentation covers.

Sources are in torch/nn/parallel/distributed.py unless they are named.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from fuzzshard.case.arrivals import Replicated
from fuzzshard.case.case import Case
from fuzzshard.case.options import DDP
from fuzzshard.engines.exclusion import Exclusion
from fuzzshard.engines.mesh import RankMesh
from fuzzshard.engines.written import called, evaluate, run


def arguments(case: Case, mesh: RankMesh) -> dict[str, Any]:
    """The keyword arguments of the constructor, which ``replicate`` takes as well."""
    ranks = {} if case.ddp.does("takes_mesh") else {"process_group": mesh.group}
    return ranks | called(case.ddp.arguments(), mesh=mesh.data_mesh)


def spoil(case: Case, mesh: RankMesh, synchronised: Iterable[torch.Tensor]) -> None:
    """Zeroes what ``init_sync`` takes from the first rank, if the case says so.

    "the deprecated broadcast_buffers=False excludes buffers from this init sync", and DDP knows
    nothing of what ``replicate`` ignores (``_collect_params`` in
    torch/distributed/_composable/replicate.py).
    """
    if case.ddp.does("spoils") and mesh.rank != 0:
        with torch.no_grad():
            for tensor in synchronised:
                tensor.zero_()


def tell(case: Case, mesh: RankMesh, module: Any, *, wrapper: bool) -> None:
    """Does with a module that DDP is constructed for what the options say."""
    library = {"dist": dist, "allreduce_hook": allreduce_hook}
    run(case.ddp.lines("ddp", "group", wrapper=wrapper), library, ddp=module, group=mesh.group)


def join(case: Case, ddp: DistributedDataParallel) -> Join | None:
    """The context that the case trains in, if it does."""
    return next((evaluate(context, ddp=ddp) for context in case.ddp.contexts("ddp")), None)


def not_covered(case: Case, *, replicate: bool) -> Exclusion | None:
    """Why the documentation of an option does not cover a case, or None."""
    return next(_exclusions(case, Replicated(case, replicate)), None)


def _exclusions(case: Case, seen: Replicated) -> Iterator[Exclusion]:
    for name in _lacking(case.ddp):
        yield Exclusion(
            f"this version of torch has no {name} of DDP", "fuzzshard: asked of the torch at hand"
        )
    for option, value in case.ddp.told():
        yield from (Exclusion(*reason) for reason in option.excludes(value, seen))


def _lacking(spec: DDP) -> Iterator[str]:
    """The arguments and methods that a case needs and that this version of torch lacks."""
    known = inspect.signature(DistributedDataParallel).parameters
    wrapped = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    if not wrapped:  # or else somebody has wrapped the constructor
        yield from (name for name in called(spec.arguments(), mesh=None) if name not in known)
    methods = [option.method for option, value in spec.told() if value and option.method]
    yield from (name for name in methods if not hasattr(DistributedDataParallel, name))
