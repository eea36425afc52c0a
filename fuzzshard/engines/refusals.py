"""Errors that are documented contracts of an engine, one by one. Whatever is not listed is a finding.

A case that meets one is REJECTED for that engine; the other engines are still judged.
"""

from __future__ import annotations

import dataclasses
import re

from fuzzshard.case.case import ALL_ENGINES


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One documented error: the engine, the type, a pattern of its text, and where it is documented."""

    engine: str
    error: str
    pattern: str
    source: str


_DDP = "torch/nn/parallel/distributed.py"
_FLAT = "torch/distributed/fsdp/_flat_param.py"
_STATE = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py"

REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(engine, "RuntimeError", pattern, source)
        for engine in ("ddp", "replicate")
        for pattern, source in (
            ("is not needed when a module", f"{_DDP}, __init__"),
            (
                "Expected to have finished reduction in the prior iteration",
                "torch/csrc/distributed/c10d/reducer.cpp: outputs that do not take part in the loss",
            ),
            (
                "Expected to mark a variable ready only once",
                "torch/csrc/distributed/c10d/reducer.cpp: several forwards, or checkpointing with unused "
                "parameters",
            ),
        )
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
    Refusal(
        "fully_shard",
        "UserWarning",
        "returned a view tensor. An in-place op on this view",
        f"{_STATE}, _register_pre_backward_hook: an error where the view is changed in place "
        "(fuzzshard/engines/fully_shard.py, taking_warnings_seriously)",
    ),
    Refusal(
        "fully_shard",
        "RuntimeError",
        "_foreach_zero_.* got mixed torch.Tensor and DTensor",
        "torch/optim/optimizer.py, zero_grad: with foreach it zeroes the gradients of all parameters in one "
        "call, and DTensor wants no plain tensors among its own (torch/distributed/tensor/_dispatch.py)",
    ),
    Refusal(
        "fsdp1",
        "ValueError",
        "Must flatten tensors with uniform `requires_grad`",
        f"{_FLAT}, _validate_tensors_to_flatten: a unit is frozen or not unless use_orig_params",
    ),
    Refusal(
        "fsdp1",
        "ValueError",
        "FSDP does not support wrapping such modules when use_orig_params=False",
        "torch/distributed/fsdp/_wrap_utils.py, _validate_frozen_params: the same rule under a policy",
    ),
    Refusal(
        "fsdp1",
        "ValueError",
        "Must flatten tensors with uniform dtype",
        f"{_FLAT}, _validate_tensors_to_flatten",
    ),
    Refusal(
        "fsdp1",
        "RuntimeError",
        "Cannot access accelerator device when none is available",
        f"{_FLAT}, init_flat_param_attributes: offloaded parameters are pinned for an accelerator",
    ),
    *(
        Refusal(
            engine,
            "RuntimeError",
            pattern,
            "torch/distributed/checkpoint: the checkpoint has no optimizer state of a parameter that had no "
            "gradient before, and the optimizer that it is loaded into has (_init_optim_state)",
        )
        for engine in ALL_ENGINES
        for pattern in ("Missing optimizer state for parameter", "Missing key in checkpoint state_dict")
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
