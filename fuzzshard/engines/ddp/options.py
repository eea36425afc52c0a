"""Which cases the documentation of DDP's options covers.

Sources are in torch/nn/parallel/distributed.py unless they are named.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.nn.parallel import DistributedDataParallel

from fuzzshard.case.arrivals import Replicated
from fuzzshard.case.case import Case
from fuzzshard.case.options import DDP
from fuzzshard.engines.exclusion import Exclusion


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
        named = (argument.partition("=")[0] for argument in spec.arguments())
        yield from (name for name in named if name not in known)
    methods = [option.method for option, value in spec.told() if value and option.method]
    yield from (name for name in methods if not hasattr(DistributedDataParallel, name))
