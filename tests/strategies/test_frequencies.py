"""How often features, pairs and triples of them are drawn. The seed is in the sample's fixture."""

import itertools
from collections import Counter

import pytest
from upstream_rows import UPSTREAM_ROWS

from fuzzshard.case.features import ALL_FEATURES
from fuzzshard.case.needs import needs_cpu
from fuzzshard.case.validate import validate
from fuzzshard.parts.ops import Forward

EXTENSIONS = frozenset(
    (
        *(
            "op",
            "precision",
            "passing",
            "option",
            "compile",
            "tensor",
            "fsdp1",
            "delay",
            "relation",
            "user_hook",
        ),
        *("all_gather", "offload", "shard", "prefetch", "expect", "communication", "ddp"),
        *("pipelining", "context_parallel"),
    )
)
"""Dimensions of which most cases have nothing."""
EXTENSION_FEATURES = frozenset(
    (
        *("edge:iadd", "edge:attend", "edge:method", "edge:alternatives", "leaf:conv2d"),
        *("leaf:conv1d_of_one", "leaf:experts", "leaf:idle_expert", "leaf:fused_attention"),
        *(
            "engine:replicate",
            "engine:fsdp1",
            "engine:zero_redundancy",
            "engine:pipelining",
            "engine:expert_parallel",
            "engine:simple_fsdp",
            "engine:context_parallel",
            "mesh:tensor",
            "mesh:hsdp_tensor",
            "mesh:pipeline",
        ),
        *("input:same_on_ranks", "input:on_host", "freeze:engines_only"),
        *("schedule:inference_forward", "schedule:several_losses"),
        *("input:rows_differ", "input:rows_vary", "input:one_row", "input:no_rows"),
        *(
            "optimizer:foreach",
            "optimizer:no_foreach",
            "optimizer:exclude",
            "optimizer:post_optim_event",
            "optimizer:maximize",
            "optimizer:step_lr",
            "optimizer:cosine_annealing_lr",
            "optimizer:one_cycle_lr",
            *("optimizer:scaled", "optimizer:skipped", "optimizer:muon", "optimizer:second"),
        ),
        "loss:gradient_penalty",
        *("edge:adapter", "freeze:adapted", "option:added"),
        *("returns:list", "returns:namedtuple", "returns:dataclass"),
    )
)
"""More features that most cases do not have."""
ON_CUDA = frozenset(
    (
        *("offload:pinned", "input:on_host", "compile:inductor", "option:memory"),
        *("fsdp1:offload", "fsdp1:initial_first_rank", "fsdp1:summon_on_host"),
    )
)


def is_extension(feature):
    if feature == "op:reshard":  # asked for before parameters change
        return False
    return feature.partition(":")[0] in EXTENSIONS or feature in EXTENSION_FEATURES


RARER_OPTIMIZERS = (
    *("optimizer:rmsprop", "optimizer:adadelta", "optimizer:adamax", "optimizer:nadam"),
    *("optimizer:radam", "optimizer:asgd", "optimizer:adagrad", "optimizer:adafactor"),
)
"""Drawn in place of Adam: too rare to meet every other feature of plain training."""
CORE = [
    f
    for f in ALL_FEATURES
    if not is_extension(f) and not f.startswith("wrap:list_group_") and f not in RARER_OPTIMIZERS
]

RARE = {
    "loss:token_mean": 0.06,
    "mesh:1": 0.03,
    "mesh:3": 0.03,
    "leaf:attention": 0.05,
    "reuse:tied_across_groups": 0.01,
    "schedule:backward_oldest": 0.05,
    "schedule:backward_newest": 0.05,
    "schedule:step_unsynced": 0.03,
    "schedule:no_all_reduce": 0.06,
    "schedule:retain_graph": 0.035,  # expected 0.047, two standard deviations above
    "wrap:parameter_in_no_group": 0.04,
    "optimizer:adam": 0.05,
    "optimizer:adamw": 0.05,
}
"""Features with a bound of their own: few meshes need them, few models can have them, or engines
refuse.
"""
COMMON = 0.08
SELDOM = {
    "schedule:several_losses": 0.008,  # expected 0.013, three standard deviations above
    **dict.fromkeys(RARER_OPTIMIZERS, 0.01),
    "wrap:list_group_leaves_root": 0.0005,
    **dict.fromkeys(("tensor:sequence", "tensor:sequence_layout"), 0.006),
    "freeze:engines_only": 0.004,
    **dict.fromkeys(("precision:reduce_only", "precision:no_cast", "precision:mixed"), 0.006),
    **dict.fromkeys(("fsdp1:hybrid_shard", "fsdp1:hybrid_shard_zero2"), 0.004),
    **dict.fromkeys(("compile:eager", "compile:aot_eager", "option:losses_only"), 0.004),
    "leaf:conv1d_of_one": 0.006,
    **dict.fromkeys(("op:save_async", "op:other_mesh"), 0.01),
    **{"engine:pipelining": 0.045, "engine:expert_parallel": 0.01},
    # expected 0.0095, three standard deviations above
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("pipelining:")), 0.005),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("context_parallel:")), 0.01),
    **dict.fromkeys(("expect:error", "expect:warning", "op:set_path_on_some_ranks"), 0.001),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("delay:")), 0.004),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("user_hook:")), 0.01),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("relation:")), 0.002),
    "op:take_state_dict_in_inference": 0.014,  # expected 0.018, two standard deviations above
    "relation:plan": 0.0013,  # expected 0.003, two standard deviations above
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("communication:")), 0.01),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("ddp:")), 0.005),
    # expected 0.012, three standard deviations above
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("ddp:join_")), 0.007),
    **dict.fromkeys(("ddp:ignored_modules", "ddp:initial_unsynced"), 0.004),
    **dict.fromkeys(
        ("optimizer:step_lr", "optimizer:cosine_annealing_lr", "optimizer:one_cycle_lr"),
        0.008,  # expected 0.013, three standard deviations above
    ),
    **dict.fromkeys((f for f in ALL_FEATURES if f.startswith("fsdp1:summon_")), 0.004),
    "fsdp1:summon_gradients": 0.0025,  # FSDP1 runs no parameters with fsdp_pre_all_gather
    **dict.fromkeys(
        (f for f in ALL_FEATURES if f.startswith(("fsdp1:initial_", "fsdp1:hook_"))), 0.005
    ),
    **dict.fromkeys(("communication:share_streams", "communication:no_backward_unshard"), 0.003),
    **dict.fromkeys(("communication:keep_storage", "precision:kept"), 0.005),
    **dict.fromkeys(("op:abort_forward", "op:abort_backward"), 0.004),
    **dict.fromkeys(("option:finalize_wait", "option:finalize_async"), 0.007),
    **dict.fromkeys(("input:rows_vary", "input:one_row", "input:no_rows"), 0.005),
    **dict.fromkeys(("optimizer:scaled", "optimizer:skipped"), 0.01),
    **dict.fromkeys(("optimizer:muon", "loss:gradient_penalty"), 0.01),
    # expected 0.007, 0.008, 0.015 and 0.019, three standard deviations above
    **{"op:grad_dtype_any": 0.0045, "op:grad_dtype_wider": 0.005},
    **{"op:grad_dtype_narrower": 0.009, "op:grad_dtype_own": 0.012},
    "option:added": 0.014,  # expected 0.026, three standard deviations above
    "op:load_assign": 0.004,
    "fsdp1:hybrid": 0.012,
    "ddp:broadcasts": 0.01,
    "precision:parameter_dtype": 0.01,
    "mesh:hsdp_tensor": 0.01,
    "tensor:dtensor_output": 0.01,
    "tensor:empty_shard": 0.004,
}
"""Extensions that few cases have, or that are for few meshes or engines."""
EXTENDED = 0.018
TOO_RARE = {"wrap:list_group_holds_member"}
"""One case in thousands has them, so a sample says nothing; corpus/findings has some."""

EXTENDED_PAIRS = {
    ("precision:bfloat16", "passing:keyword"): 0.005,
    ("precision:bfloat16", "passing:dataclass"): 0.005,
    ("precision:bfloat16", "checkpoint:composable"): 0.01,
    ("precision:bfloat16", "schedule:no_sync"): 0.01,
    ("precision:bfloat16", "op:take_state_dict_before_forward"): 0.002,
    ("precision:bfloat16", "prefetch:forward"): 0.003,
    ("precision:reduce", "op:divide_factor"): 0.002,
    ("op:cast_before_forward", "wrap:several_groups"): 0.015,
    ("op:unshard_async", "schedule:microbatches"): 0.01,
    ("op:reshard", "reshard:false"): 0.01,
    ("op:set_reshard_after_forward", "schedule:several_steps"): 0.02,
    ("op:set_path", "checkpoint:composable"): 0.005,
    ("op:load", "optimizer:momentum"): 0.01,
    ("op:rebuild", "mesh:hsdp"): 0.002,
    ("op:clip", "mesh:hsdp"): 0.004,
    ("edge:iadd", "reuse:no_grad_retraversal"): 0.02,
    ("edge:method", "passing:keyword"): 0.003,
    ("edge:alternatives", "engine:ddp"): 0.02,
    ("offload:unpinned", "op:clip"): 0.002,
    ("option:meta", "freeze:before_wrap"): 0.01,
    ("option:ignored", "wrap:several_groups"): 0.02,
    ("shard:last", "reshard:false"): 0.01,
    ("mesh:tensor", "wrap:list_group"): 0.005,
    ("mesh:tensor", "checkpoint:composable"): 0.007,
    ("mesh:tensor", "mesh:pipeline"): 0.003,
    ("engine:fsdp1", "freeze:mixed_group"): 0.03,
    ("engine:fsdp1", "reuse:no_grad_retraversal"): 0.02,
    ("engine:fsdp1", "schedule:microbatches"): 0.03,
    ("fsdp1:precision", "freeze:before_wrap"): 0.008,
    ("engine:replicate", "schedule:no_sync"): 0.01,
    ("input:rows_differ", "engine:fsdp1"): 0.006,
    ("input:rows_differ", "schedule:microbatches"): 0.01,
    ("input:rows_differ", "mesh:tensor"): 0.001,
    ("input:no_rows", "engine:ddp"): 0.002,
    # what one choice of swarms brings, three standard deviations below what is expected
    ("engine:zero_redundancy", "user_hook:step_post_hook"): 0.009,
    ("engine:pipelining", "op:load"): 0.006,
    ("engine:pipelining", "op:load_assign"): 0.007,
    ("tensor:sequence", "precision:param"): 0.0025,
    ("optimizer:second", "optimizer:scaled"): 0.003,
}

ONE_OF = [
    ("mesh:1", "mesh:2", "mesh:3", "mesh:4", "mesh:larger"),
    ("dtype:float32", "dtype:float64"),
    ("values:gaussian", "values:dyadic"),
    ("loss:sum", "loss:dot", "loss:mean_square", "loss:token_mean", "loss:gradient_penalty"),
    ("optimizer:sgd", "optimizer:adam", "optimizer:adamw", "optimizer:muon", *RARER_OPTIMIZERS),
    ("wrap:root", "wrap:root_not_wrapped"),
    ("mesh:hsdp", "mesh:axis_of_one"),
]
"""A case has one value of each of these dimensions."""

IMPOSSIBLE = {
    ("dim:uneven", "mesh:1"): "every size is divisible by 1",
    ("dim:smaller_than_mesh", "mesh:1"): "no parameter has size 0",
    ("mesh:1", "mesh:hsdp"): "two axes larger than 1 need four ranks",
    ("mesh:2", "mesh:hsdp"): "two axes larger than 1 need four ranks",
    ("mesh:3", "mesh:hsdp"): "3 is prime",
    **{
        (kind, "optimizer:momentum"): "momentum is SGD's"
        for kind in ("optimizer:adam", "optimizer:adamw", *RARER_OPTIMIZERS)
    },
    ("dim:power_of_two", "leaf:attention"): "qkv.weight has 3 * width rows",
    (
        "reuse:tied_across_groups",
        "wrap:root_not_wrapped",
    ): "it would be used sharded: an invalid case",
}

TRIPLES = {
    ("reshard:int", "dim:uneven", "wrap:several_groups"): 0.08,
    ("optimizer:momentum", "edge:unused_output", "schedule:several_steps"): 0.02,
    ("mesh:hsdp", "schedule:no_all_reduce", "schedule:several_steps"): 0.008,
    ("checkpoint:composable", "wrap:nested", "reuse:two_forwards"): 0.01,
    ("checkpoint:wrapper", "wrap:nested", "reuse:two_forwards"): 0.009,  # expected 0.014
    ("reuse:tied_in_group", "wrap:list_group", "schedule:no_sync"): 0.01,
    ("freeze:mixed_group", "freeze:toggled_on", "schedule:microbatches"): 0.02,
    ("mesh:4", "schedule:partial_sync", "schedule:several_steps"): 0.01,
    ("edge:unused_module", "wrap:several_groups", "schedule:zero_grad_to_zero"): 0.02,
}


def impossible_pairs():
    pairs = {tuple(sorted(pair)) for pair in IMPOSSIBLE}
    return pairs | {
        tuple(sorted(p)) for family in ONE_OF for p in itertools.combinations(family, 2)
    }


@pytest.fixture(scope="module")
def counts(sample):
    """In how many cases each pair of features is."""
    return Counter(
        p for present in sample.features for p in itertools.combinations(sorted(present), 2)
    )


@pytest.mark.parametrize("feature", CORE)
def test_every_feature_of_plain_training_is_frequent(sample, feature):
    bound = RARE.get(feature, COMMON)
    assert sample.share(feature) >= bound, (
        f"seed {sample.seed}: P({feature}) = {sample.share(feature):.4f}"
    )


@pytest.mark.parametrize("feature", sorted(set(ALL_FEATURES) - set(CORE) - ON_CUDA - TOO_RARE))
def test_every_other_feature_is_drawn(sample, feature):
    bound = SELDOM.get(feature, EXTENDED)
    assert sample.share(feature) >= bound, (
        f"seed {sample.seed}: P({feature}) = {sample.share(feature):.4f}"
    )


def test_a_third_of_the_cases_are_plain_training(sample):
    plain = sum(not any(map(is_extension, present)) for present in sample.features) / len(
        sample.cases
    )
    assert 0.28 <= plain <= 0.4


def test_ranks_have_batches_of_other_sizes_in_one_case_of_twenty(sample):
    share = sample.share("input:rows_differ")
    assert 0.05 <= share <= 0.08, f"seed {sample.seed}: {share:.4f}"


def test_what_needs_cuda_is_drawn_only_for_cuda(sample, streams):
    assert ON_CUDA.isdisjoint(frozenset().union(*sample.features))
    on_cuda = streams.whole(cuda=True)
    assert frozenset().union(*on_cuda.values()) >= ON_CUDA
    for case in [*on_cuda][::3]:
        validate(case, sample.world_size)
        assert needs_cpu(case) is None
    assert any(needs_cpu(case) for case in sample.cases)
    assert any(feature.startswith("op:grad_dtype") for f in on_cuda.values() for feature in f)


@pytest.mark.parametrize(("pair", "bound"), EXTENDED_PAIRS.items(), ids=lambda value: str(value))
def test_extensions_meet_other_features(sample, pair, bound):
    assert sample.share(*pair) >= bound, f"seed {sample.seed}: {sample.share(*pair):.4f}"


@pytest.mark.parametrize("row", UPSTREAM_ROWS)
def test_what_an_upstream_test_combines_is_combined_by_chance(sample, row):
    assert sample.share(*UPSTREAM_ROWS[row]) >= 0.0008, f"seed {sample.seed}"


def test_every_pair_of_features_of_plain_training_is_drawn(sample, counts):
    possible = set(itertools.combinations(sorted(CORE), 2)) - impossible_pairs()
    rarest = sorted(possible, key=lambda pair: counts[pair])[:5]
    print(f"seed {sample.seed}: {len(possible)} pairs, rarest:", [(counts[p], *p) for p in rarest])
    assert not [pair for pair in possible if not counts[pair]]


def test_no_impossible_pair_is_drawn(counts):
    assert {pair: counts[pair] for pair in impossible_pairs() if counts[pair]} == {}


def test_nearly_every_pair_is_drawn_many_times(counts):
    possible = set(itertools.combinations(sorted(CORE), 2)) - impossible_pairs()
    assert sum(counts[pair] >= 20 for pair in possible) / len(possible) >= 0.99


def test_many_schedules_end_with_a_forward_that_uses_what_the_last_step_changed(sample):
    ends = [case.schedule[-1] for case in sample.cases if "fsdp1" not in case.engines]
    share = sum(isinstance(op, Forward) and not op.grad for op in ends) / len(ends)
    assert 0.3 < share < 0.6, f"seed {sample.seed}: {share:.3f}"


@pytest.mark.parametrize(("triple", "bound"), TRIPLES.items(), ids=lambda value: str(value))
def test_conjunctions_of_three_are_drawn(sample, triple, bound):
    assert sample.share(*triple) >= bound, f"seed {sample.seed}: {sample.share(*triple):.4f}"


def test_most_triples_are_drawn_within_4500_cases(sample):
    """Counted among every second feature, without triples that hold an impossible pair."""
    impossible = impossible_pairs()
    seen = set()
    for present in sample.features:
        seen.update(itertools.combinations(sorted(present & EVERY_SECOND), 3))
    possible = [
        t
        for t in itertools.combinations(sorted(EVERY_SECOND), 3)
        if not impossible.intersection(itertools.combinations(t, 2))
    ]
    share = sum(t in seen for t in possible) / len(possible)
    print(f"seed {sample.seed}: {share:.4f} of {len(possible)} triples")
    assert share >= 0.99


EVERY_SECOND = frozenset(CORE[::2])
