"""The strategies in a test of a user's own: what is drawn, what Hypothesis makes of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzshard import case as public
from fuzzshard import strategies
from fuzzshard.analysis.features import ALL_FEATURES, features
from fuzzshard.analysis.validate import validate
from fuzzshard.case import Case, Inputs, Mesh, TensorSpec
from fuzzshard.case.graph import Alias, Block, walk
from fuzzshard.errors import InvalidCase
from fuzzshard.parts.ops import Backward, Forward, SetFlag, Step
from fuzzshard.parts.part import Part
from fuzzshard.strategies import (
    cases,
    freeze_masks,
    meshes,
    module_graphs,
    reuse_patterns,
    schedules,
    wrapping_plans,
)
from fuzzshard.strategies.inputs import fitting

SEEDS = (1, 2, 3)
QUIET = (Phase.generate, Phase.shrink)
"""Without the phase that explains, which traces every line and takes twice as long."""
PAIRS = cases(mesh=meshes(max_ranks=2))


class Planted(Exception):
    """The fault of a test."""


def run_test(
    strategy: st.SearchStrategy[Any], is_faulty: Callable[[Any], bool], number: int
) -> tuple[Any, int, str]:
    """The value that a failing test ends with, how many were tried, and what is printed."""
    tried: list[Any] = []

    @seed(number)
    @settings(max_examples=3000, database=None, deadline=None, phases=QUIET)
    @given(value=strategy)
    def test(value: Any) -> None:
        tried.append(value)
        if is_faulty(value):
            raise Planted

    with pytest.raises(Planted) as caught:
        test()
    return tried[-1], len(tried), "\n".join(caught.value.__notes__)


def evaluated(printed: str) -> Any:
    """The value of the call that Hypothesis prints, with the names that the documentation says."""
    names: dict[str, Any] = {"test": lambda value: value}
    exec("from fuzzshard.case import *", names)
    (call,) = re.findall(r"test\(.*?^\)", printed, flags=re.DOTALL | re.MULTILINE)
    return eval(call, names)


def num_leaves(root: Block) -> int:
    return sum(not isinstance(module, Block | Alias) for _, module in walk(root))


def drawn(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """What a test that passes is given, with all health checks."""
    values: list[Any] = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None)
    @given(strategy)
    def test(value: Any) -> None:
        values.append(value)

    test()
    return values


def has(*wanted: str) -> Callable[[Case], bool]:
    return lambda case: features(case).issuperset(wanted)


FAULTS: dict[str, Callable[[Case], bool]] = {
    "a backward": lambda case: any(isinstance(op, Backward) for op in case.schedule),
    "a frozen module": lambda case: any(
        freeze.target.rpartition(".")[2] not in ("weight", "bias") for freeze in case.freezes
    ),
    "two groups": lambda case: len(case.wrap) == 2,
    "a tie": lambda case: bool(case.ties),
    "two replicas": lambda case: (case.mesh.replicate or 0) >= 2,
    "two replicas and bfloat16": lambda case: (
        (case.mesh.replicate or 0) >= 2
        and any(g.precision and g.precision.param == "bfloat16" for g in case.wrap)
    ),
    "several forwards after a step": lambda case: (
        [op for op in case.schedule if isinstance(op, Forward | Step)].count(Step()) > 1
        and has("schedule:microbatches")(case)
    ),
}
FAST = ("a frozen module", "two groups", "two replicas and bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAST)
def test_a_faulty_case_shrinks_to_a_small_one_that_is_printed_as_code(fault: str) -> None:
    check_shrinking(fault, SEEDS[0])


@pytest.mark.slow
@pytest.mark.parametrize("number", SEEDS[1:2])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_seed_shrinks_to_a_small_case(fault: str, number: int) -> None:
    check_shrinking(fault, number)


def check_shrinking(fault: str, number: int) -> None:
    strategy = cases() if "replicas" in fault else PAIRS
    began = time.process_time()
    case, tried, printed = run_test(strategy, FAULTS[fault], number)
    seconds = time.process_time() - began
    said = f"seed {number}: {tried} cases, {seconds:.1f} s, {len(case.schedule)} ops, {case!r}"
    print(said)
    validate(case)
    assert len(case.schedule) <= (12 if "several" in fault else 6), said
    assert num_leaves(case.model) <= 4, said
    assert len(case.wrap) <= 3, said
    assert len(repr(case)) < 1200, said
    assert tried < 3000, said
    assert evaluated(printed) == case


GRAPH = public.Block(
    children=tuple(public.Child(name=f"up{i}", module=public.Linear(out=4)) for i in range(4)),
    nodes=tuple(
        public.Call(name=f"h{i}", module=f"up{i}", args=(f"h{i - 1}" if i else "x",))
        for i in range(4)
    ),
    outputs=("h3",),
)
"""Four layers in a row."""


@pytest.mark.parametrize(
    ("of_graph", "is_faulty", "size"),
    [
        (wrapping_plans, lambda plan: len(plan) >= 3, 4),
        (wrapping_plans, lambda plan: any(len(g.modules) > 1 for g in plan), 2),
        (freeze_masks, lambda mask: any(freeze.after_wrap for freeze in mask), 1),
        (reuse_patterns, lambda ties: len(ties) == 2, 2),
        (
            schedules,
            lambda ops: any(isinstance(op, SetFlag) for op in ops),
            12,
        ),  # seeds 1 to 6: 7 to 12
    ],
)
def test_a_part_of_a_case_shrinks_alone(
    of_graph: Callable[[Block], st.SearchStrategy[Any]],
    is_faulty: Callable[[Any], bool],
    size: int,
) -> None:
    value, tried, printed = run_test(of_graph(GRAPH), is_faulty, SEEDS[0])
    assert evaluated(printed) == value
    assert len(value) <= size, f"seed {SEEDS[0]}, {tried} tried: {value}"


def test_the_simplest_values_are_plain() -> None:
    case, *_ = run_test(cases(), lambda case: True, SEEDS[0])
    assert [type(op).__name__ for op in case.schedule] == [
        *("Forward", "Backward", "Step", "ZeroGrad")
    ]
    assert num_leaves(case.model) == 1
    assert case.mesh == Mesh(shard=2)
    graph, *_ = run_test(module_graphs(), lambda graph: True, SEEDS[0])
    assert graph == case.model
    for of_graph, plain in ((wrapping_plans, 1), (freeze_masks, 0), (reuse_patterns, 0)):
        assert len(run_test(of_graph(graph), lambda value: True, SEEDS[0])[0]) == plain


@pytest.mark.parametrize("max_ranks", [1, 2, 3, 8])
def test_cases_are_valid_on_meshes_of_so_many_ranks(max_ranks: int) -> None:
    for case in drawn(cases(mesh=meshes(max_ranks=max_ranks)), 60, SEEDS[0]):
        validate(case, max_ranks)


def test_engines_can_be_named() -> None:
    assert {case.engines for case in drawn(cases(engines=("ddp",)), 30, SEEDS[0])} == {("ddp",)}


def test_every_part_of_a_case_can_be_given() -> None:
    mesh, plan = (
        Mesh(shard=3),
        (public.WrapGroup(modules=("up1",)), public.WrapGroup(modules=("",))),
    )
    data = Inputs(batch=5, tensors=(TensorSpec(size=7),))
    ops = (Forward(), Backward())
    strategy = cases(
        mesh=st.just(mesh),
        inputs=st.just(data),
        model=st.just(GRAPH),
        wrap=st.just(plan),
        ties=st.just(()),
        freezes=st.just((public.Freeze(target="up1"),)),
        schedule=st.just(ops),
    )
    for case in drawn(strategy, 30, SEEDS[0]):
        assert (case.mesh, case.model, case.schedule) == (mesh, GRAPH, ops)
        assert [group.modules for group in case.wrap] == [("up1",), ("",)]
        assert (case.inputs.batch, case.inputs.tensors) == (5, data.tensors)
        assert [freeze.target for freeze in case.freezes] == ["up1"]
        validate(case)


def test_a_part_can_be_a_strategy_for_the_case_so_far() -> None:
    def one_step(case: Case) -> st.SearchStrategy[Any]:
        return schedules(case).filter(lambda ops: ops.count(Step()) == 1)

    strategy = cases(
        model=module_graphs(),
        wrap=wrapping_plans,
        ties=reuse_patterns,
        freezes=freeze_masks,
        schedule=one_step,
    )
    for case in drawn(strategy, 60, SEEDS[0]):
        validate(case, 4)
        assert case.schedule.count(Step()) == 1


def test_what_does_not_fit_together_is_left_out() -> None:
    plan = (public.WrapGroup(modules=("up0",)),)
    strategy = cases(model=st.sampled_from((GRAPH, _other_graph())), wrap=st.just(plan))
    assert {case.model for case in drawn(strategy, 30, SEEDS[0])} == {GRAPH}


def _other_graph() -> Block:
    (first, *_) = GRAPH.children
    return public.Block(
        children=(public.Child(name="only", module=first.module),),
        nodes=(public.Call(name="h0", module="only", args=("x",)),),
        outputs=("h0",),
    )


def test_inputs_are_found_for_every_graph() -> None:
    nothing = Inputs(batch=2, tensors=(TensorSpec(size=4),))
    for graph in drawn(module_graphs(), 60, SEEDS[0]):
        fitting(graph, nothing)
    with pytest.raises(InvalidCase, match="pass inputs="):
        fitting(public.Block(children=(), nodes=(), outputs=("nowhere",)), nothing)


def test_every_name_that_a_case_prints_is_public() -> None:
    def below(part: type[Part]) -> set[str]:
        return {part.__name__}.union(*map(below, part.__subclasses__()))

    assert below(Part) - {
        "Part",
        "Leaf",
        "Biased",
        "Projection",
        "_Mixing",
        "Op",
        "OnGroups",
        "WithOptions",
    } == {*public.__all__}


def test_drawn_cases_print_as_code() -> None:
    names: dict[str, Any] = {}
    exec("from fuzzshard.case import *", names)
    for case in strategies.draw_cases(SEEDS[0], 60, world_size=8, cuda=True):
        assert eval(repr(case), names) == case


@pytest.mark.slow
def test_events_are_as_frequent_as_in_campaigns() -> None:
    """Within a factor of two for what one case of seven has, in six runs of 100 examples."""
    quiet = settings(max_examples=100, database=None, deadline=None, phases=[Phase.generate])
    seeds = range(1, 7)
    tested: list[Case] = []
    for number in seeds:
        seed(number)(quiet(given(cases())(lambda case: tested.append(case))))()
    assert len(set(tested)) > 0.9 * len(tested), f"seeds {seeds}"
    campaign = [
        case for number in seeds for case in strategies.draw_cases(number, 100, world_size=4)
    ]
    ours, theirs = (list(map(features, some)) for some in (tested, campaign))
    sizes = [sum(map(len, some)) / len(some) for some in (ours, theirs)]
    assert 0.85 < sizes[0] / sizes[1] < 1.15, f"seeds {seeds}: {sizes} features a case"
    common = [feature for feature in ALL_FEATURES if share(theirs, feature) > 0.15]
    ratios = {feature: share(ours, feature) / share(theirs, feature) for feature in common}
    assert not {f: ratio for f, ratio in ratios.items() if not 0.5 < ratio < 2}, f"seeds {seeds}"


def share(some: list[frozenset[str]], feature: str) -> float:
    return sum(feature in present for present in some) / len(some)
