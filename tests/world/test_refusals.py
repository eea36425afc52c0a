"""A documented refusal that a case announces is REJECTED with torch's own text; elsewhere it
accuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    chain,
    colwise,
    float_inputs,
    graph,
    groups,
    make_case,
    two_linears,
)
from msgspec.structs import replace
from planting import fault_file
from torch.nn.parallel import DistributedDataParallel

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    EngineName,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    RankBatch,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import Alias, Call
from fuzzshard.case.options import DDP, FSDP1, ParameterDtype, Precision, TensorParallel
from fuzzshard.contracts import REDUCTIONS_FOLLOW_GRAD_DTYPE
from fuzzshard.engines.refusals import Refusal
from fuzzshard.engines.registry import ENGINES, REFUSALS
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.convolutions import Conv1d, Conv2d
from fuzzshard.parts.leaves.dropout import Dropout
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.operators import Operators
from fuzzshard.parts.ops import (
    CorruptState,
    Forward,
    LoadState,
    SaveState,
    SetGradDtype,
    SetPath,
)
from fuzzshard.reproducer import scripts
from fuzzshard.verdict import Status
from fuzzshard.world import World, WorldConfig

BY_DDP: tuple[EngineName, ...] = ("ddp", "zero_redundancy")
BY_REDUCERS: tuple[EngineName, ...] = (*BY_DDP, "replicate")
BY_FULLY_SHARD: tuple[EngineName, ...] = ("fully_shard",)
BY_FSDP1: tuple[EngineName, ...] = ("fsdp1",)

NOTHING_TO_FINALIZE = "no gradient reduction requires finalization"
SHARED = "is shared with a parameter already managed by another FSDP group"
TIED = chain(a=Linear(out=5), b=Linear(out=5))
ADDS_IN_PLACE = graph("h0 = a(x)", "h1 = iadd(h0, x)", a=Linear(out=5))

PATCHES_IN_PLACE = graph("h0 = a(x)", "h1 = iadd(h0, h0)", a=Conv2d(channels=1, kernel=1, out=2))
"""The output of the convolution is transposed."""

TIED_ACROSS = make_case(TIED, ties=(Tie(parameter="b.weight", source="a.weight"),))
"""fully_shard alone refuses it; DDP does not mind."""

TWO_PATHS = graph(
    Call(name="h0", module="a", args=("x",), alternatives=("b",)),
    outputs="h0",
    a=Linear(out=5),
    b=Linear(out=5),
)
TWO_OUTPUTS = graph(
    "h0 = a(x)", "h1 = b(x)", outputs="h0 h1", returns="tuple", a=Linear(out=5), b=Linear(out=5)
)

ONE_OUTPUT = Forward(outputs=(0,))
UNUSED = graph("h0 = a(x)", a=Linear(out=5), u=Linear(out=2))
INNER = chain(block=two_linears(), c=Linear(out=3))

ANNOUNCED: dict[str, tuple[Case, str]] = {
    "finalize_backward() of a backward that reaches no parameter": (
        make_case(
            freezes=(Freeze(target=ROOT, after_wrap=True),),
            inputs=float_inputs(),
            ddp=DDP(manual_finalization=True),
            engines=BY_DDP,
        ),
        NOTHING_TO_FINALIZE,
    ),
    "no trainable parameters": (
        make_case(freezes=(Freeze(target=ROOT),), engines=BY_REDUCERS),
        "is not needed when a module doesn't have any parameter",
    ),
    "a parameter that the last forward does not use": (
        make_case(TWO_PATHS, (FORWARD, SetPath(path=1), FORWARD, BACKWARD), engines=BY_REDUCERS),
        "Expected to mark a variable ready only once",
    ),
    "a checkpoint without the state of a parameter": (
        make_case(
            UNUSED,
            (FORWARD, BACKWARD, STEP, SaveState(), CorruptState(how="rebuild"), LoadState()),
            optimizer=Optimizer(kind="adam"),
            engines=("ddp", "replicate", "fully_shard", "simple_fsdp"),
        ),
        "Missing key in checkpoint state_dict",
    ),
    "a list group as the root": (
        make_case(wrap=groups(("a", "b")), engines=BY_FULLY_SHARD),
        "requires a single root module",
    ),
    "a forward of a part before the root": (
        make_case(
            schedule=(Forward(target="b"), BACKWARD, STEP, FORWARD, BACKWARD),
            engines=BY_FULLY_SHARD,
        ),
        "FSDP state has already been lazily initialized for b",
    ),
    "weights tied across groups": (replace(TIED_ACROSS, engines=BY_FULLY_SHARD), SHARED),
    "zeros for a parameter with gradients of any dtype": (
        make_case(
            UNUSED,
            (SetGradDtype(target="u"), FORWARD, BACKWARD, STEP),
            wrap=(WrapGroup(modules=("u",), communication=("zeros_for_unused",)), *groups(ROOT)),
            engines=BY_FULLY_SHARD,
        ),
        "Reducing unused parameters with grad_dtype=None requires an explicit",
    ),
    "an output that is a view and is changed in place": (
        make_case(PATCHES_IN_PLACE, inputs=float_inputs(4), engines=BY_FULLY_SHARD),
        "returned a view tensor. An in-place op on this view",
    ),
    "a reshape that cuts a dim with uneven shards": (
        make_case(
            chain(a=Linear(out=3), o=Operators(functions=(("reshape", -1),))),
            (FORWARD, BACKWARD),
            mesh=Mesh(shard=1, tensor=2, pipeline=1),
            wrap=groups("a", ROOT),
            inputs=Inputs(batch=2, tensors=(TensorSpec(size=5),)),
            tensor_parallel=(TensorParallel(module="o", style="dtensor", dim=0),),
            engines=("fully_shard", "pipelining"),
        ),
        "Cannot unflatten unevenly sharded tensor",
    ),
    "a part of a flat parameter that is frozen": (
        make_case(freezes=(Freeze(target="a"),), wrap=groups(ROOT), engines=BY_FSDP1),
        "Must flatten tensors with uniform `requires_grad`",
    ),
    "a part of a module of a policy that is frozen": (
        make_case(
            INNER,
            freezes=(Freeze(target="block.a"),),
            wrap=groups("block", ROOT),
            fsdp1=FSDP1(wrapping="policy"),
            engines=BY_FSDP1,
        ),
        "FSDP does not support wrapping such modules when use_orig_params=False",
    ),
    "a flat parameter of two dtypes": (
        make_case(
            UNUSED,
            freezes=(Freeze(target="u"),),
            dtypes=(ParameterDtype(target="u", dtype="float64"),),
            wrap=groups(ROOT),
            fsdp1=FSDP1(use_orig_params=True),
            engines=BY_FSDP1,
        ),
        "Must flatten tensors with uniform dtype",
    ),
}
"""A case for every refusal, in the order of :data:`REFUSALS`, and the text that comes."""
OTHER_TRIGGERS: dict[str, tuple[Case, str]] = {
    "a Linear of uneven rows of sequences": (
        make_case(
            chain(a=Linear(out=3), b=Linear(out=4)),
            (FORWARD, BACKWARD),
            mesh=Mesh(shard=1, tensor=2, pipeline=1),
            inputs=Inputs(batch=3, seq=2, tensors=(TensorSpec(size=5),)),
            tensor_parallel=(
                colwise("a", output="rows", local_output=False),
                colwise("b", output="replicate"),
            ),
            engines=("fully_shard", "pipelining"),
        ),
        "Cannot flatten unevenly sharded tensor",
    ),
    "a Linear of uneven rows of patches": (
        make_case(
            chain(p=Conv2d(channels=1, kernel=2, out=5), a=Linear(out=3), b=Linear(out=4)),
            (FORWARD, BACKWARD),
            mesh=Mesh(shard=1, tensor=2),
            inputs=Inputs(batch=3, tensors=(TensorSpec(size=16),)),
            tensor_parallel=(
                colwise("a", output="rows", local_output=False),
                colwise("b", output="replicate"),
            ),
            engines=BY_FULLY_SHARD,
        ),
        "Cannot flatten unevenly sharded tensor",
    ),
}
"""Of refusals that have a case above."""


@pytest.fixture(scope="module")
def raising() -> Iterator[World]:
    """Ranks whose engines raise what they should not."""
    with World(WorldConfig(size=2, preload=(str(fault_file("raises_refusals")),))) as world:
        yield world


def engines_of(refusal: Refusal) -> list[str]:
    """Those that raise it; what calls ``fully_shard`` beside it has its refusals."""
    others = ("expert_parallel", "context_parallel", "replicate_with_fsdp", "spmd")
    engines = ((n, e) for n, e in ENGINES.items() if n not in others)
    return [name for name, engine in engines if refusal in engine.refusals]


def test_every_refusal_has_a_case() -> None:
    for refusal, (case, text) in zip(REFUSALS, ANNOUNCED.values(), strict=True):
        assert re.search(refusal.pattern, text) or text in refusal.pattern or "lazily" in text
        assert set(case.engines) == set(engines_of(refusal))


@pytest.mark.parametrize(
    ("case", "text"), (ANNOUNCED | OTHER_TRIGGERS).values(), ids=ANNOUNCED | OTHER_TRIGGERS
)
def test_an_announced_refusal_comes(two_ranks: World, case: Case, text: str) -> None:
    if ("grad_dtype" in text and not REDUCTIONS_FOLLOW_GRAD_DTYPE.holds()) or (
        text == NOTHING_TO_FINALIZE and not hasattr(DistributedDataParallel, "finalize_backward")
    ):
        pytest.skip("this torch does not refuse it")
    validate(case, 2)
    verdict = two_ranks.run(case)
    assert verdict.status is Status.REJECTED, verdict
    assert set(verdict.notes) == set(case.engines)
    for note in verdict.notes.values():
        assert note.startswith("refused: ")
        assert text in note
    assert text in verdict.message
    assert verdict.findings == ()


@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=ANNOUNCED.keys())
def test_the_same_text_where_it_is_not_announced_is_a_crash(raising: World, number: int) -> None:
    engine = engines_of(REFUSALS[number])[0]
    verdict = raising.run(replace(make_case(), seed=number, engines=(engine,)))
    assert verdict.status is Status.CRASH, verdict
    assert verdict.findings[0].engine == engine
    assert re.search(REFUSALS[number].pattern, verdict.findings[0].observed)


NOT_COMING = {
    "fully_shard": "weights tied across groups",
    "ddp": "a parameter that the last forward does not use",
}


@pytest.mark.parametrize("engine", NOT_COMING)
def test_an_announced_refusal_that_does_not_come_is_a_finding(engine: EngineName) -> None:
    case = replace(ANNOUNCED[NOT_COMING[engine]][0], engines=(engine,))
    with World(WorldConfig(size=2, preload=(str(fault_file("never_refuses")),))) as world:
        verdict = world.run(case)
    assert (verdict.status, verdict.signature) == (
        Status.DIVERGENCE,
        f"divergence/{engine}/expectation/not refused",
    )
    first = verdict.findings[0]
    assert first.observed == "no error"
    assert first.name in ANNOUNCED[NOT_COMING[engine]][1]
    script = next(scripts(case, signature=verdict.signature, findings=verdict.findings))
    assert f'raise AssertionError("nothing raised {first.name}")' in script


@pytest.mark.parametrize("mends", [(), ("unused_outputs_get_undefined_gradients",)])
def test_a_broken_search_for_unused_parameters_is_a_crash_of_ddp(mends: tuple[str, ...]) -> None:
    with World(WorldConfig(size=2, preload=(str(fault_file("ddp_finds_no_outputs")),))) as world:
        verdict = world.run(make_case(engines=("ddp",)), mends=mends)
    assert verdict.status is Status.CRASH
    assert verdict.findings[0].op == TWO_STEPS.index(BACKWARD)
    assert "Expected to mark a variable ready only once" in verdict.findings[0].observed


FORWARDS_THAT_REDUCE = {
    "an output that a tuple hands out": make_case(
        TWO_OUTPUTS, (ONE_OUTPUT, BACKWARD) * 2, engines=BY_REDUCERS
    ),
    "paths that alternate, each with its backward": make_case(
        TWO_PATHS,
        (FORWARD, BACKWARD, SetPath(path=1), FORWARD, BACKWARD, STEP),
        engines=BY_REDUCERS,
    ),
    "several forwards of one path": make_case(
        TWO_PATHS, (FORWARD, AGAIN, BACKWARD, STEP), engines=BY_REDUCERS
    ),
    "a forward without gradients in between": make_case(
        TWO_PATHS,
        (FORWARD, SetPath(path=1), Forward(grad=False), BACKWARD, STEP),
        engines=BY_REDUCERS,
    ),
}


@pytest.mark.parametrize("case", FORWARDS_THAT_REDUCE.values(), ids=FORWARDS_THAT_REDUCE.keys())
def test_what_the_reducer_supports_is_not_refused(two_ranks: World, case: Case) -> None:
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.notes) == (Status.PASS, {})


def test_what_one_engine_refuses_is_judged_under_the_others(two_ranks: World) -> None:
    verdict = two_ranks.run(TIED_ACROSS)
    assert verdict.status is Status.REJECTED
    assert list(verdict.notes) == ["fully_shard"]


def test_an_output_that_is_no_view_may_be_changed_in_place(four_ranks: World) -> None:
    assert four_ranks.run(make_case(ADDS_IN_PLACE)).status is Status.PASS


VIEW_ELSEWHERE = graph(
    "h0 = c(x)", "h1 = r(x)", "h2 = iadd(h1, h0)", c=chain(a=Conv1d(out=2)), r=Activation()
)
"""The output of ``c`` is a view, that of ``r`` is changed in place."""


def test_a_view_is_no_error_of_a_forward_that_changes_no_output_in_place(two_ranks: World) -> None:
    case = make_case(
        VIEW_ELSEWHERE,
        (Forward(target="c"), BACKWARD),
        wrap=groups("c", "r"),
        inputs=float_inputs(2, seq=3),
        engines=BY_FULLY_SHARD,
    )
    verdict = two_ranks.run(case)
    assert (verdict.status, verdict.notes) == (Status.PASS, {}), verdict.findings


def test_what_only_a_rank_without_rows_may_refuse_is_not_asked_for(four_ranks: World) -> None:
    """In float16 only the output of a linear layer over no rows is a view; the other rank would
    wait.
    """
    inputs = replace(float_inputs(seq=3), rank_batches=(RankBatch(rank=1, rows=0),))
    wrap = (WrapGroup(modules=("a",), precision=Precision(param="float16", output="float32")),)
    case = make_case(ADDS_IN_PLACE, inputs=inputs, wrap=wrap, engines=("fully_shard",))
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, verdict
    assert "the rank without rows" in verdict.notes["fully_shard"]


def test_ranks_whose_hooks_run_in_another_order_without_rows_are_not_asked_to_agree(
    four_ranks: World,
) -> None:
    """The hooks of ``c`` and of ``b`` would both be on what ``c`` returns, on the rank without
    rows alone.
    """
    inputs = replace(float_inputs(), rank_batches=(RankBatch(rank=1, rows=0),))
    model = chain(a=Linear(out=4), b=chain(w=Linear(out=6), c=Linear(out=3), d=Dropout(p=0.5)))
    engines: tuple[EngineName, ...] = ("ddp", "fully_shard", "fsdp1")
    verdict = four_ranks.run(
        make_case(model, inputs=inputs, wrap=groups("b.c", "b", ""), engines=engines)
    )
    assert verdict.status is Status.PASS, verdict
    assert set(verdict.notes) == {"fully_shard", "fsdp1"}
    assert all("the rank without rows" in note for note in verdict.notes.values())


def test_a_refusal_leaves_the_world_as_it_was(four_ranks: World) -> None:
    four_ranks.run(make_case())
    before = four_ranks.pids
    assert four_ranks.run(ANNOUNCED["a list group as the root"][0]).status is Status.REJECTED
    assert four_ranks.run(make_case()).status is Status.PASS
    assert four_ranks.pids == before


def test_a_module_registered_in_two_groups_is_run_and_judged(four_ranks: World) -> None:
    model = chain(a=Linear(out=5), b=Alias(target="a"))
    verdict = four_ranks.run(make_case(model, wrap=groups("a", ROOT)))
    assert verdict.status is Status.PASS
