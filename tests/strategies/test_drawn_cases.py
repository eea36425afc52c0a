"""What holds for every case that is drawn."""

import pytest
from cases import ROOT, chain, groups, make_case
from msgspec.structs import replace
from streams import Streams

from fuzzshard.analysis.feature_names import NEEDED_RANKS, ON_CUDA, ONE_OF
from fuzzshard.analysis.flow import flow_of
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.validate import validate
from fuzzshard.case.codec import decode, encode
from fuzzshard.case.graph import Alias, Block, walk
from fuzzshard.case.options import Precision
from fuzzshard.engines.registry import not_applicable
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm
from fuzzshard.parts.losses import LOSSES
from fuzzshard.parts.ops import Backward, Forward, SetRequiresGrad, Step
from fuzzshard.strategies import draw_cases
from fuzzshard.strategies.cases import SIZES
from fuzzshard.strategies.freezing import below
from fuzzshard.strategies.swarm import NUM_BYTES, swarm
from fuzzshard.strategies.tape import ByteTape
from fuzzshard.strategies.trained_model import TrainedModel

EXACT_OPS = {"add", "concat", "detach", "relu", "iadd"}


def num_leaves(case):
    return sum(not isinstance(module, Block | Alias) for _, module in walk(case.model))


def test_every_case_is_valid(sample):
    for case in sample.cases[::3]:
        validate(case, sample.world_size)


def test_a_module_is_called_by_itself_in_every_dtype_that_may_come():
    """An ignored norm keeps its dtype, and its group casts what it is called with. PyTorch norms
    half precision with parameters in float32, but not in float64.
    """
    case = make_case(
        chain(a=Linear(out=4), n=LayerNorm()),
        wrap=tuple(replace(g, precision=Precision(param="bfloat16")) for g in groups("n", ROOT)),
        ignored=("n",),
        dtype="float32",
    )
    assert TrainedModel.of(case).forward_targets(casts=False) == ["n"]
    assert TrainedModel.of(case).forward_targets(casts=True) == []


@pytest.mark.parametrize("cuda", [False, True])
def test_cases_have_one_feature_of_each_such_set_and_none_that_they_cannot_have(streams, cuda):
    for case, present in streams.each(cuda=cuda):
        assert all(len(names & present) == 1 for names in ONE_OF)
        assert cuda or ON_CUDA.isdisjoint(present)
        assert all(NEEDED_RANKS.get(feature, 1) <= case.mesh.size for feature in present)


def test_every_case_survives_the_codec(sample):
    for case in sample.cases[:1000]:
        assert decode(encode(case)) == case


def test_no_case_is_drawn_twice(sample, streams):
    drawn = [case for case, _ in streams.each(cuda=False)]
    minimal = drawn[0]
    others = [case for case in drawn if case != minimal]
    assert drawn.count(minimal) == len(drawn) / streams.LENGTH  # each begins with it
    assert len(set(others)) == len(others)


def test_cases_are_small(sample):
    leaves = sorted(map(num_leaves, sample.cases))
    ops = sorted(len(case.schedule) for case in sample.cases)
    assert sum(leaves) / len(leaves) <= 7.5
    assert (
        leaves[len(leaves) * 9 // 10] <= 12
    )  # chains have modules for all stages, others pairs to split
    assert ops[len(ops) // 2] <= 18
    assert max(path.count(".") for case in sample.cases for path, _ in walk(case.model)) <= 3
    assert (
        max(d for case in sample.cases for s in inferred(case).parameters.values() for d in s)
        <= 4 * 24
    )


def test_few_features_are_as_possible_as_many(sample):
    counts = sorted(map(len, sample.features))
    assert counts[len(counts) // 10] <= 27
    assert counts[len(counts) * 9 // 10] >= 38


def test_every_backward_has_something_to_differentiate(sample):
    for case in sample.cases[:2000]:
        found = inferred(case)
        flow = flow_of(case)
        trainable = frozenset(found.parameters)
        for freeze in case.freezes:
            trainable = below(trainable, freeze.target, inside=False)
        for op in case.schedule:
            if isinstance(op, SetRequiresGrad):
                chosen = below(frozenset(found.parameters), op.target, inside=True)
                trainable = trainable | chosen if op.value else trainable - chosen
            elif isinstance(op, Forward) and op.grad:
                flows = flow.outputs(op.target, trainable)
                assert any(flows[i] for i in op.outputs or range(len(flows)))


def test_no_loss_is_pending_when_parameters_change_in_place(sample):
    for case in sample.cases:
        pending = 0
        for op in case.schedule:
            if isinstance(op, Forward):
                pending += op.grad
            elif isinstance(op, Backward):
                pending = 0 if op.which == "all" else pending - 1
            elif isinstance(op, Step):
                assert not pending


def test_a_checkpoint_comes_to_another_mesh_and_back(streams: Streams) -> None:
    moves = ((c, [op.rebuilds for op in c.schedule if op.rebuilds]) for c, _ in streams.each())
    assert any(len(meshes) > 1 and case.on(meshes[-1]) == case for case, meshes in moves)


def test_a_module_below_the_root_is_mostly_called_after_the_root(streams: Streams) -> None:
    first = [
        next(op.target for op in drawn.case.schedule if isinstance(op, Forward))
        for drawn in streams.each()
        if "schedule:non_root_forward" in drawn.features
    ]
    assert 0 < sum(map(bool, first)) / len(first) < 0.1


def test_cases_of_exact_values_often_round_nothing(sample):
    exact = [
        case
        for case in sample.cases
        if case.values != "gaussian"
        and case.mesh.size in (1, 2, 4)
        and LOSSES[case.loss].is_exact
        and case.optimizer.kind == "sgd"
        and not case.optimizer.weight_decay
        and {
            getattr(n, "op", "add")
            for _, m in walk(case.model)
            if isinstance(m, Block)
            for n in m.nodes
        }
        <= EXACT_OPS
    ]
    assert len(exact) / len(sample.cases) >= 0.18


def test_every_engine_of_a_case_runs_it(sample):
    for case in sample.cases[:2000]:
        assert case.engines
        assert not any(not_applicable(case, engine) for engine in case.engines)


@pytest.mark.parametrize(("engine", "least"), [("ddp", 0.2), ("replicate", 0.03), ("fsdp1", 0.03)])
def test_older_engines_have_their_share_of_cases(sample, engine, least):
    running = sum(engine in case.engines for case in sample.cases)
    assert running / len(sample.cases) > least


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_mesh_fits_the_world(world_size):
    for case in draw_cases(5, 50, world_size=world_size):
        validate(case, world_size)


def test_a_swarm_reads_no_further_than_its_tape():
    class Counting(ByteTape):
        def __init__(self, data):
            super().__init__(data)
            self.read = 0

        def below(self, n):
            self.read += 1
            return super().below(n)

    rest = b"\xff" * 100
    tapes = [Counting(bytes([density]) + rest) for density in (0, 255)]
    for tape in tapes:
        swarm(tape)
    assert max(tape.read for tape in tapes) == NUM_BYTES <= SIZES[0]
