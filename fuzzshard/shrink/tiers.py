"""All passes in tiers: cheapest and most effective first."""

from __future__ import annotations

from functools import partial

from fuzzshard.shrink import (
    dag_passes,
    leaf_passes,
    model_passes,
    option_passes,
    plan_passes,
    size_passes,
    use_passes,
)
from fuzzshard.shrink.passes import Pass

TIERS: tuple[tuple[Pass, ...], ...] = (
    (
        Pass("engines", plan_passes.engines, independent=False),
        Pass("public", option_passes.public, independent=False),
        Pass("mesh", plan_passes.meshes, independent=False),
        Pass("schedule prefix", plan_passes.prefixes, independent=False),
        Pass("options", option_passes.options),
        Pass("extras", plan_passes.extras),
        Pass("ops", plan_passes.ops),
    ),
    (
        Pass("modules", model_passes.modules),
        Pass("wrap groups", plan_passes.groups),
        Pass("group members", plan_passes.group_members),
        Pass("widths together", size_passes.widths_together, independent=False),
        Pass("embeddings", leaf_passes.floats, independent=False),
        Pass("leaves to linears", leaf_passes.to_linear),
        Pass("leaves to activations", leaf_passes.to_activation),
        Pass("blocks inline", model_passes.inline),
        Pass("wrapped blocks inline", partial(model_passes.inline, heirs="first")),
        Pass("wrapped blocks inline as lists", partial(model_passes.inline, heirs="all")),
        Pass("empty blocks", leaf_passes.empty_blocks),
        Pass("children in sequence", use_passes.children_in_sequence),
        Pass("calls in sequence", use_passes.calls_in_sequence),
        Pass("nodes", dag_passes.nodes),
        Pass("outputs", dag_passes.outputs),
        Pass("inputs", dag_passes.inputs),
        Pass("aliases", model_passes.aliases, independent=False),
    ),
    (
        Pass("hoist", model_passes.hoist, independent=False),
        Pass("lone ops", plan_passes.lone_ops),
        Pass("merge groups", plan_passes.merge_groups, independent=False),
        Pass("merge modules", model_passes.merge_modules, independent=False),
        Pass("merge into linear", model_passes.merge_into_linear, independent=False),
        Pass("raise targets", plan_passes.raise_targets),
        Pass("raise groups", plan_passes.raise_groups, independent=False),
        Pass("lone outputs", dag_passes.lone_outputs, independent=False),
        Pass("arguments", dag_passes.arguments, independent=False),
        Pass("call unused", use_passes.call_unused, independent=False),
        Pass("join in sequence", use_passes.join_in_sequence, independent=False),
        Pass("read unread", use_passes.read_unread, independent=False),
        Pass("leaves to biased linears", leaf_passes.to_biased_linear),
        Pass("leaves to parameters", leaf_passes.to_parameter),
        Pass("plain leaves", leaf_passes.plain),
        Pass("shorter leaves", leaf_passes.shorter),
        Pass("simpler nodes", leaf_passes.simpler_nodes),
    ),
    (
        Pass("choices", option_passes.choices, independent=False),
        Pass("widths", size_passes.widths, independent=False),
        Pass("rewire", dag_passes.rewire, independent=False),
        Pass("exchange", dag_passes.exchange, independent=False),
        Pass("child order", model_passes.child_order, independent=False),
        Pass("delay forwards", plan_passes.delay_forwards, independent=False),
        Pass("op order", plan_passes.op_order, independent=False),
        Pass(
            "names and numbers",
            lambda case: (*leaf_passes.names(case), *plan_passes.numbers(case)),
        ),
    ),
)
