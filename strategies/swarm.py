"""Swarm testing: every case first draws which choices it may make at all.

A generator that may always do everything makes every case a bit of everything; features that hide
one another then never meet alone. Leaving out about half of the choices per case makes small cases
with few features and large conjunctions both common (Groce et al., Swarm Testing, ISSTA 2012).
"""

from __future__ import annotations

from fuzzshard.strategies.tape import Tape

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


def swarm(tape: Tape) -> Swarm:
    """Two fifths of the swarms allow 25 % of the choices, two fifths 50 %, one fifth 75 %."""
    density = tape.below(5)
    first, second = tape.bits(len(CHOICES)), tape.bits(len(CHOICES))
    mask = (first & second, first & second, first, first, first | second)[density]
    return frozenset(choice for i, choice in enumerate(CHOICES) if mask >> i & 1)
