"""What characterises each of PyTorch's own tests that the case space subsumes, as features of a
Case.

A row is a test method of ``test/distributed`` (:mod:`upstream` has all of its cells). A
random case that has all features of a row combines what the test combines, with whatever else it
has.
"""

from __future__ import annotations

from collections.abc import Mapping

_STEPS = "schedule:several_steps"
_GROUPS = "wrap:several_groups"

UPSTREAM_ROWS: Mapping[str, frozenset[str]] = {
    row: frozenset(features)
    for row, features in {
        "M1": (
            "engine:fsdp1",
            "fsdp1:flat_params",
            "reuse:repeated_call",
            "edge:residual",
            _GROUPS,
        ),
        "I1": ("engine:fully_shard", "passing:tuple", "input:several", "wrap:root"),
        "P1": ("engine:fully_shard", "op:reshard", "dim:uneven", "mesh:4", "wrap:root"),
        "P2": ("engine:fully_shard", "reshard:int", "mesh:4", _GROUPS, "wrap:root"),
        "C1": ("engine:fully_shard", "op:cast_before_forward", _GROUPS, _STEPS),
        "A1": (
            "leaf:linear",
            "leaf:activation",
            "dim:uneven",
            "optimizer:adam",
            "wrap:root",
            _STEPS,
        ),
        "A2": ("engine:fully_shard", "delay:before_all_gather", _GROUPS, _STEPS),
        "A3": ("engine:fully_shard", "offload:unpinned", "reshard:true", _GROUPS, _STEPS),
        "A4": ("schedule:non_root_forward", "edge:nested_block", "wrap:root", _GROUPS, _STEPS),
        "A5": (
            "reuse:repeated_call",
            "edge:residual",
            "optimizer:adam",
            "wrap:root",
            _GROUPS,
            _STEPS,
        ),
        "A6": ("prefetch:forward", "prefetch:backward", "wrap:root", _GROUPS, _STEPS),
        "A7": ("optimizer:post_optim_event", "wrap:root", _GROUPS, _STEPS),
        "K1": ("checkpoint:utils", "edge:residual", "wrap:root", _GROUPS, _STEPS),
        "S1": ("reuse:tied_in_group", "checkpoint:composable", "wrap:root", _GROUPS, _STEPS),
        "G1": ("mesh:hsdp", "schedule:no_all_reduce", "schedule:microbatches", _GROUPS, _STEPS),
        "G2": ("op:unshard_async", "schedule:not_last_backward", "schedule:no_sync", _GROUPS),
        "D1": (
            "tensor:colwise",
            "tensor:rowwise",
            "tensor:dtensor_output",
            "wrap:root",
            _GROUPS,
            _STEPS,
        ),
        "D2": ("tensor:colwise", "tensor:rowwise", "offload:unpinned", "wrap:root"),
        "D3": ("mesh:tensor", "tensor:rowwise", "op:save_dcp", "op:load", _STEPS),
        "N1": ("mesh:pipeline", "tensor:colwise", "tensor:rowwise", _GROUPS),
        "H1": (
            "mesh:hsdp",
            "schedule:no_sync",
            "schedule:microbatches",
            "leaf:layer_norm",
            _GROUPS,
            _STEPS,
        ),
        "V1": ("engine:fully_shard", "leaf:conv2d", "edge:method", _GROUPS),
        "F1": ("engine:fsdp1", "fsdp1:policy", "freeze:toggled_on", "schedule:no_grad_forward"),
        "F2": ("engine:fsdp1", "edge:iadd", "reuse:no_grad_retraversal", "freeze:before_wrap"),
        "F3": (
            "engine:fsdp1",
            "engine:ddp",
            "fsdp1:policy",
            "freeze:before_wrap",
            _GROUPS,
            _STEPS,
        ),
        "F4": ("fsdp1:precision", "fsdp1:backward_prefetch_post", "freeze:before_wrap", _STEPS),
        "E1": ("fsdp1:detail", "edge:alternatives", "op:set_path_on_some_ranks", "expect:error"),
        "E2": ("fsdp1:detail", "edge:alternatives", "op:set_path_on_some_ranks", "expect:warning"),
        "E3": ("fsdp1:detail", "schedule:eval_forward", "schedule:microbatches"),
        "Z1": (
            "freeze:mixed_group",
            "freeze:after_wrap",
            "reshard:int",
            "mesh:4",
            _GROUPS,
            _STEPS,
        ),
        "Z2": (
            "freeze:after_wrap",
            "schedule:no_grad_forward",
            "wrap:root_not_wrapped",
            _GROUPS,
            _STEPS,
        ),
        "Z3": (
            "edge:iadd",
            "reuse:no_grad_retraversal",
            "freeze:before_wrap",
            "wrap:root",
            _GROUPS,
            _STEPS,
        ),
    }.items()
}
"""The features of each row, by its id."""
