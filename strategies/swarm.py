"""Swarm testing: every case first draws which choices it may make at all.

A generator that may always do everything makes every case a bit of everything; features that hide
one another then never meet alone. Leaving out about half of the choices per case makes small cases
with few features and large conjunctions both common (Groce et al., Swarm Testing, ISSTA 2012).
"""

from __future__ import annotations

from hypothesis import strategies as st

CHOICES: tuple[str, ...] = (
    # leaves
    "linear",
    "linear_no_bias",
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "conv1d",
    "raw_parameter",
    "raw_matrix",
    "mlp",
    "attention",
    "dropout",
    "activation",
    # inputs and widths
    "sequence",
    "ids",
    "several_inputs",
    "input_grad",
    "odd_widths",
    "width_one",
    # edges
    "add",
    "mul",
    "concat",
    "detach",
    "relu",
    "tanh",
    "branch",
    "nested",
    "second_nested",
    "several_outputs",
    "partial_loss",
    "unused_module",
    "unused_value",
    # reuse
    "repeat",
    "alias",
    "no_grad_call",
    "tie",
    "two_forwards",
    # wrapping
    "many_groups",
    "list_group",
    "root_not_wrapped",
    "reshard_true",
    "reshard_false",
    "reshard_int",
    "checkpoint",
    "hsdp",
    # freezing
    "freeze_parameter",
    "freeze_module",
    "freeze_after_wrap",
    "toggle",
    # schedule
    "several_steps",
    "microbatches",
    "no_sync",
    "partial_sync",
    "no_all_reduce",
    "not_last_backward",
    "no_reshard",
    "zero_to_zero",
    "no_zero_grad",
    "no_grad_forward",
    "eval_forward",
    "non_root_forward",
    "backward_order",
    # optimizer
    "momentum",
    "weight_decay",
    "adam",
)

Swarm = frozenset[str]
"""The choices that one case may make."""

_BYTES = (len(CHOICES) + 7) // 8


def _decode(data: bytes) -> Swarm:
    """A quarter of the swarms allow 25 % of the choices, a half 50 %, a quarter 75 %."""
    first = int.from_bytes(data[1 : 1 + _BYTES], "little")
    second = int.from_bytes(data[1 + _BYTES :], "little")
    mask = (first & second, first, first, first | second)[data[0] >> 6]
    return frozenset(choice for i, choice in enumerate(CHOICES) if mask >> i & 1)


def swarms() -> st.SearchStrategy[Swarm]:
    """Which choices a case may make, drawn as one value."""
    size = 1 + 2 * _BYTES
    return st.binary(min_size=size, max_size=size).map(_decode)
