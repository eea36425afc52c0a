"""What a Case's options mean in calls of ``fully_shard`` and of ``FSDPModule``'s methods."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from fuzzshard.analysis.communication import words_of
from fuzzshard.case.case import Case
from fuzzshard.contracts import REDUCTIONS_FOLLOW_GRAD_DTYPE


def lacking(case: Case) -> str | None:
    """Return what the case needs and this torch does not have, if there is something."""
    if any(op.retypes for op in case.schedule) and not REDUCTIONS_FOLLOW_GRAD_DTYPE.holds():
        return "reductions that follow grad_dtype"
    told = words_of(case).values()
    names = (word.call.partition("(")[0] for word in told if not word.of_several)
    keeps = any(group.precision and group.precision.keep for group in case.wrap)
    if keeps and "param_dtype_override_fn" not in MixedPrecisionPolicy.__dataclass_fields__:
        return "MixedPrecisionPolicy.param_dtype_override_fn"
    called = ["reset_iter_state"] if any(op.aborts for op in case.schedule) else []
    called += ["finalize_backward"] if case.finalize is not None else []
    return next((f"FSDPModule.{n}" for n in (*names, *called) if not hasattr(FSDPModule, n)), None)


def forget_compiled() -> None:
    """Compile with caches that no other case has filled."""
    torch._dynamo.reset()
    # The cache on disk goes by what is traced, and not by what a mend makes of it.
    torch._functorch.config.enable_autograd_cache = False
