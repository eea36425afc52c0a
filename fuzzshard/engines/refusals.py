"""Errors that are documented contracts of an engine, one by one. Whatever is not listed is a finding.

A case that meets one is REJECTED for that engine; the other engines are still judged.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One documented error: the engine, the type, a pattern of its text, and where it is documented."""

    engine: str
    error: str
    pattern: str
    source: str


_DDP = "torch/nn/parallel/distributed.py"
_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"

REFUSALS: tuple[Refusal, ...] = (
    Refusal("ddp", "RuntimeError", "is not needed when a module", f"{_DDP}, __init__"),
    Refusal(
        "ddp",
        "RuntimeError",
        "Expected to have finished reduction in the prior iteration",
        "torch/csrc/distributed/c10d/reducer.cpp: outputs that do not take part in the loss",
    ),
    Refusal(
        "ddp",
        "RuntimeError",
        "Expected to mark a variable ready only once",
        "torch/csrc/distributed/c10d/reducer.cpp: several forwards, or checkpointing with unused parameters",
    ),
    Refusal(
        "fully_shard",
        "RuntimeError",
        "requires a single root module",
        f"{_STATE}, _lazy_init: a list group cannot be the root",
    ),
    Refusal(
        "fully_shard",
        "RuntimeError",
        "requires running forward through the root module first",
        f"{_STATE}, _lazy_init",
    ),
    Refusal(
        "fully_shard",
        "ValueError",
        "is shared with a parameter already managed by another FSDP group",
        f"{_STATE}, _validate_no_duplicate_params: tied parameters belong in one group",
    ),
    Refusal(
        "fully_shard",
        "RuntimeError",
        "Cannot concatenate overlapping meshes",
        "the same rule for a module that is registered in two groups: the second group meets a DTensor on "
        "its own mesh (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param)",
    ),
)


def refusal(engine: str, error: BaseException) -> Refusal | None:
    """The documented refusal that ``error`` is, or None."""
    return next(
        (
            r
            for r in REFUSALS
            if r.engine == engine and r.error == type(error).__name__ and re.search(r.pattern, str(error))
        ),
        None,
    )
