"""In which manner the reference trains where documents let an engine do otherwise."""

from __future__ import annotations

import msgspec
import torch
from cases import BACKWARD, STEP, chain, graph, groups, make_case
from traces import difference, floats, gradient, trace

from fuzzshard.case.case import Checkpoint, Optimizer
from fuzzshard.case.options import FSDP1
from fuzzshard.engines.reference.manner import PLAIN
from fuzzshard.oracles.allowed import is_beyond_rounding, manner_here, may_be_allowed
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import BatchNorm
from fuzzshard.parts.ops import Forward, LoadState, SaveState
from fuzzshard.training.trace import Key

NOTHING = trace({})
GRADIENT = gradient(1)
OF_INPUT = Key(1, "input_gradient", "input 0 of batch 0")
RECOMPUTED = make_case(
    graph("h = a(x)", "y = n(h)", a=Linear(out=4), n=BatchNorm()),
    (Forward(), BACKWARD, STEP),
    wrap=groups(""),
    checkpoints=(Checkpoint(module="n"),),
)


def test_only_groups_join_the_inputs_of_their_modules() -> None:
    assert manner_here(make_case(), "fully_shard", NOTHING).joins_inputs
    assert not manner_here(make_case(wrap=()), "fully_shard", NOTHING).joins_inputs
    assert manner_here(make_case(), "simple_fsdp", NOTHING) == PLAIN


def test_what_replicates_averages_what_was_averaged_before_again() -> None:
    kept = make_case(fsdp1=FSDP1(strategy="no_shard"))
    engines = {"ddp", "replicate", "zero_redundancy", "fsdp1", "fully_shard"}
    again = {name for name in engines if manner_here(kept, name, NOTHING).averages_again}
    assert again == engines - {"fully_shard"}
    assert not manner_here(make_case(), "fsdp1", NOTHING).averages_again


def test_only_flat_parameters_have_zeros_beside_a_gradient() -> None:
    case = make_case(chain(a=Linear(out=4), b=Linear(out=4)), wrap=())
    held = trace({gradient(1): floats(0.0)})
    assert manner_here(case, "fsdp1", held).filled == {(1, "a.weight")}
    assert not manner_here(case, "fully_shard", held).filled


def test_only_a_graph_that_recomputes_leaves_counts_alone() -> None:
    counted = trace({})
    counted.counts[1, "n.num_batches_tracked"] = 1
    traced = msgspec.structs.replace(RECOMPUTED, compile="aot_eager")
    eager = msgspec.structs.replace(RECOMPUTED, compile="eager")
    assert manner_here(traced, "fully_shard", counted).counts == counted.counts
    for case in (RECOMPUTED, eager):
        assert not manner_here(case, "fully_shard", counted).counts


def test_only_a_checkpoint_on_disk_makes_states_as_they_are_before_a_step() -> None:
    schedule = (SaveState(), Forward(), BACKWARD, STEP, LoadState())
    case = make_case(schedule=schedule, optimizer=Optimizer(kind="adam"))
    copied = msgspec.structs.replace(case, schedule=(SaveState(via="state_dict"), *schedule[1:]))
    states = trace(
        {
            Key(0, "resume", "step of a.weight"): floats(0.0),
            Key(0, "resume", "step of b.bias"): floats(1.0),
            Key(0, "resume", "exp_avg of b.bias"): floats(0.0),
            Key(0, "resume", "step of a.bias"): None,
            Key(3, "optimizer_state", "step of a.bias"): floats(1.0),
            Key(4, "resume", "step of a.bias"): floats(1.0),
        }
    )
    assert manner_here(case, "ddp", states).made == {(0, "a.weight"), (4, "a.bias")}
    assert manner_here(copied, "ddp", states).made == frozenset()


def test_rounding_makes_no_tensor_and_counts_nothing() -> None:
    assert is_beyond_rounding(difference(GRADIENT, floats(0.0), None))
    assert is_beyond_rounding(difference(GRADIENT, floats(0.0), floats(0.0).double()))
    assert is_beyond_rounding(difference(GRADIENT, torch.tensor(1), torch.tensor(2)))
    assert not is_beyond_rounding(difference(GRADIENT, floats(0.0), floats(1.0)))


def test_a_rank_that_is_left_alone_does_not_judge_what_may_be_documented() -> None:
    case = make_case()
    zeros, wrong = (difference(k, floats(0.0), None) for k in (OF_INPUT, GRADIENT)), floats(2.0)
    assert all(may_be_allowed(case, "fully_shard", d) for d in zeros)
    assert not may_be_allowed(case, "ddp", difference(GRADIENT, floats(0.0), None))
    state = Key(1, "resume", "exp_avg of a.weight")
    assert may_be_allowed(case, "ddp", difference(state, floats(0.0), None))
    differs = difference(GRADIENT, floats(1.0), wrong)
    assert not may_be_allowed(case, "fully_shard", differs)
    assert may_be_allowed(RECOMPUTED, "fully_shard", differs)
