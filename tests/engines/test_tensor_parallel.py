"""Tensor parallelism under ``fully_shard`` trains as the plain module does, on meshes of several
axes.
"""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    ZERO,
    call,
    chain,
    colwise,
    float_inputs,
    graph,
    groups,
    make_case,
    rowwise,
    tensor_op,
)
from msgspec.structs import replace

from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import (
    Case,
    Checkpoint,
    Freeze,
    Inputs,
    Mesh,
    Optimizer,
    TensorSpec,
    Tie,
    WrapGroup,
)
from fuzzshard.case.graph import TensorOp
from fuzzshard.case.options import Precision, TensorParallel
from fuzzshard.engines.registry import not_applicable
from fuzzshard.errors import InvalidCase
from fuzzshard.oracles.registration import RegistrationModel
from fuzzshard.parts import ops
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.norms import LayerNorm, RMSNorm
from fuzzshard.parts.op import Op
from fuzzshard.verdict import Status
from fuzzshard.world import World

SQUARE = Mesh(shard=2, tensor=2)
ADAM = Optimizer(kind="adam", lr=0.01, foreach=False)
PAIR = (colwise("a"), rowwise("b"))
IDS = Inputs(batch=2, seq=4, tensors=(TensorSpec(kind="ids", size=8),))
TIE = (Tie(parameter="out.weight", source="embed.weight"),)
CLIPPED = (FORWARD, BACKWARD, ops.ClipGradNorm(max_norm=0.5), STEP, ZERO, AGAIN, BACKWARD, STEP)
NO_SYNC, SYNC = (
    ops.SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True)
)

ATTENTION = graph(
    *(call(f"h{name}", name, "x") for name in "qkv"),
    TensorOp(name="mixed", op="attend", args=("hq", "hk", "hv"), head_dim=2),
    "y = o(mixed)",
    q=Linear(out=8),
    k=Linear(out=8),
    v=Linear(out=8),
    o=Linear(out=8),
)
LAYER = graph(
    "a = norm(x)",
    "b = attention(a)",
    "h = add(x, b)",
    "c = rms(h)",
    "d = up(c)",
    "e = gelu(d)",
    "f = down(e)",
    "y = add(h, f)",
    norm=LayerNorm(),
    attention=ATTENTION,
    rms=RMSNorm(),
    up=Linear(out=16),
    gelu=Activation(fn="gelu"),
    down=Linear(out=8),
)
TRANSFORMER = chain(
    embed=Embedding(vocab=8, dim=8), layer=LAYER, norm=LayerNorm(), out=Linear(out=8, bias=False)
)


def plan(*, sequence: bool) -> tuple[TensorParallel, ...]:
    """The plan of a transformer; with ``sequence`` norms and residuals are sharded along the
    sequence.
    """
    inside: Any = {"input": "sequence"} if sequence else {}
    outside: Any = {"output": "sequence"} if sequence else {}
    norms = ("layer.norm", "layer.rms", "norm") if sequence else ()
    return (
        rowwise("embed", input="replicate", output="sequence" if sequence else "replicate"),
        *(colwise(f"layer.attention.{name}", local_output=True, **inside) for name in "qkv"),
        rowwise("layer.attention.o", **outside),
        colwise("layer.up", **inside),
        rowwise("layer.down", **outside),
        colwise("out", output="replicate", **inside),
        *(TensorParallel(module=name, style="sequence", local_output=False) for name in norms),
    )


def transformer(*, sequence: bool = False, mesh: Mesh = SQUARE, **options: Any) -> Case:
    """Two steps of a tied transformer of one layer, in double precision: in single precision the
    same takes five times as long, as rounding has to be told from errors by further runs. SGD, as
    DTensor works out a layout for every operation of a step.
    """
    defaults: dict[str, Any] = {"ties": TIE, "wrap": groups("layer", ROOT), "dtype": "float64"}
    return make_case(
        TRANSFORMER,
        mesh=mesh,
        inputs=IDS,
        tensor_parallel=plan(sequence=sequence),
        **{**defaults, **options},
    )


def pair(*plans: TensorParallel, width: int = 7, mesh: Mesh = SQUARE, **options: Any) -> Case:
    """Linear(5, width), ReLU, Linear(width, 3) with a plan."""
    model = chain(a=Linear(out=width), r=Activation(), b=Linear(out=3))
    plans = plans or PAIR
    return make_case(model, mesh=mesh, tensor_parallel=plans, **{"dtype": "float64", **options})


def joined(op: Any, *plans: TensorParallel, seq: int = 0) -> Case:
    """``op`` over the results of two linears."""
    model = graph(
        "h = a(x)",
        "k = b(x)",
        tensor_op("y", op, "h", "k"),
        "z = c(y)",
        a=Linear(out=4),
        b=Linear(out=4),
        c=Linear(out=3),
    )
    inputs = float_inputs(seq=seq)
    return make_case(model, mesh=SQUARE, tensor_parallel=plans, inputs=inputs, dtype="float64")


CASES = {
    "a transformer": transformer(),
    "a transformer with sequence parallel norms": transformer(sequence=True, optimizer=ADAM),
    "sequence parallel norms and dyadic values": transformer(sequence=True, values="dyadic"),
    "checkpointed layers": transformer(sequence=True, checkpoints=(Checkpoint(module="layer"),)),
    "frozen norms and projections": transformer(
        sequence=True,
        freezes=(Freeze(target="layer.norm", after_wrap=True), Freeze(target="layer.up")),
    ),
    "parameters that no group manages": transformer(sequence=True, wrap=groups("layer.attention")),
    "HSDP": make_case(
        chain(a=Linear(out=4), n=LayerNorm(), b=Linear(out=3)),
        mesh=Mesh(replicate=2, shard=1, tensor=2),
        inputs=float_inputs(seq=4),
        tensor_parallel=(
            rowwise("a", input="replicate", output="sequence"),
            TensorParallel(module="n", style="sequence", local_output=False),
            colwise("b", input="sequence", output="replicate"),
        ),
        optimizer=ADAM,
        dtype="float64",
    ),
    "two pipeline slices": transformer(sequence=True, mesh=Mesh(pipeline=2, shard=1, tensor=2)),
    "four tensor-parallel ranks": transformer(sequence=True, mesh=Mesh(shard=1, tensor=4)),
    "one tensor-parallel rank": transformer(sequence=True, mesh=Mesh(shard=2, tensor=1)),
    "a world larger than the mesh": transformer(mesh=Mesh(shard=1, tensor=2)),
    "uneven shards": pair(),
    "uneven shards of an output": pair(colwise("a"), colwise("b")),
    "even plain shards": pair(colwise("a", local_output=True), rowwise("b"), width=6),
    "a whole activation between": pair(
        colwise("a", output="replicate"), rowwise("b", input="replicate")
    ),
    "modules outside the plan": pair(rowwise("a", input="replicate")),
    "an embedding in columns": make_case(
        chain(e=Embedding(vocab=7, dim=5), b=Linear(out=3)),
        mesh=SQUARE,
        inputs=Inputs(batch=3, tensors=(TensorSpec(kind="ids", size=7),)),
        tensor_parallel=(colwise("e"), rowwise("b")),
        dtype="float64",
    ),
    "a sequence that does not split evenly": make_case(
        chain(a=Linear(out=4), n=RMSNorm(), b=Linear(out=3)),
        mesh=SQUARE,
        inputs=float_inputs(seq=5),
        tensor_parallel=(
            rowwise("a", input="replicate", output="sequence", local_output=False),
            TensorParallel(module="n", style="sequence", local_output=False),
            rowwise("b", local_output=False),
        ),
        dtype="float64",
    ),
    "a product of shards": joined("mul", colwise("a"), colwise("b"), rowwise("c")),
    "a concatenation of parts of a sequence": joined(
        "concat",
        rowwise("a", input="replicate", output="sequence"),
        rowwise("b", input="replicate", output="sequence"),
        colwise("c", input="sequence", output="replicate"),
        seq=4,
    ),
    "clipped gradients": pair(schedule=CLIPPED),
    "microbatches": pair(schedule=(NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP)),
    "manual unshard and reshard": pair(
        schedule=(ops.Unshard(), FORWARD, ops.Reshard(), BACKWARD, STEP)
    ),
    "offload": pair(wrap=(WrapGroup(modules=(ROOT,), offload="unpinned"),)),
    "mixed precision": pair(
        wrap=(
            WrapGroup(modules=(ROOT,), precision=Precision(param="bfloat16", reduce="float32")),
        ),
        engines=("fully_shard",),
        dtype="float32",
    ),
    "a forward of one module": pair(
        rowwise("a", input="replicate"),
        schedule=(FORWARD, BACKWARD, STEP, ZERO, ops.Forward(target="a"), BACKWARD, STEP),
        engines=("fully_shard",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_tensor_parallel_case_holds(four_ranks: World, case: Case) -> None:
    validate(case, world_size=4)
    verdict = four_ranks.run(case)
    assert verdict.status is Status.PASS, (verdict.findings[:3], verdict.message)
    assert not verdict.notes


@pytest.mark.parametrize("seed", range(2))
def test_rounding_raises_no_alarm(four_ranks: World, seed: int) -> None:
    case = transformer(sequence=seed % 2 == 0, dtype="float32")
    case = replace(case, seed=seed)
    assert four_ranks.run(case).status is Status.PASS


@pytest.mark.parametrize(
    "mesh", [Mesh(pipeline=2, shard=2), Mesh(pipeline=1, replicate=2, shard=2)]
)
def test_slices_of_a_pipeline_train_side_by_side(four_ranks: World, mesh: Mesh) -> None:
    verdict = four_ranks.run(make_case(mesh=mesh))
    assert verdict.status is Status.PASS
    assert verdict.comparison == ("bitwise" if mesh.data_size == 2 else "bounded")


@pytest.mark.parametrize(
    "setting",
    [
        ops.SetGradDtype(target="a", dtype="float64"),
        ops.RegisterParameterHook(hook="post_accumulate_grad_hook", target="a.weight"),
    ],
    ids=["grad_dtype", "hook"],
)
def test_a_cast_takes_what_was_set_on_a_dtensor_that_no_group_shards(
    four_ranks: World, setting: Op
) -> None:
    case = make_case(
        chain(a=Linear(out=4)),
        (setting, ops.Cast(dtype="float32"), FORWARD, BACKWARD, STEP),
        wrap=(),
        mesh=SQUARE,
        tensor_parallel=(colwise("a", output="replicate"),),
        optimizer=Optimizer(foreach=False),
        engines=("fully_shard",),
    )
    excluded = not_applicable(case, "fully_shard")
    assert excluded is not None
    assert "a DTensor is exchanged for another" in excluded.reason
    sharded = replace(case, wrap=groups(ROOT))
    assert not_applicable(sharded, "fully_shard") is None
    assert four_ranks.run(sharded).status is Status.PASS


def test_a_dimension_that_both_shard_is_cut_for_tensor_parallelism_first() -> None:
    model = RegistrationModel(pair(mesh=Mesh(replicate=2, shard=2, tensor=2)))
    seen = {fqn: model.expected(fqn) for fqn in ("a.weight", "b.weight", "b.bias")}
    assert {fqn: r.placements for fqn, r in seen.items() if r} == {
        "a.weight": ("R", "_S(0, 2)", "S(0)"),
        "b.weight": ("R", "S(0)", "S(1)"),
        "b.bias": ("R", "S(0)", "R"),
    }
    assert {r.mesh for r in seen.values() if r} == {(2, 2, 2)}


REFUSED = {
    "cannot share evenly": pair(colwise("a", local_output=True), rowwise("b")),
    "wants a plain tensor sharded along its features": pair(rowwise("a")),
    "is called with a plain tensor sharded": pair(colwise("a", local_output=True), width=6),
    "is called with a DTensor whole": pair(rowwise("a", input="replicate", local_output=False)),
    "a forward of '' returns": make_case(
        chain(a=Linear(out=4)), mesh=SQUARE, tensor_parallel=(colwise("a", local_output=True),)
    ),
    "'add' in block '' joins": joined("add", rowwise("a", input="replicate"), colwise("b")),
    "'concat' in block '' cannot work": joined("concat", colwise("a"), colwise("b"), rowwise("c")),
    "'iadd' in block '' cannot work": joined("iadd", rowwise("a", input="replicate")),
    "which it is tied to": make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        mesh=SQUARE,
        tensor_parallel=(colwise("a", output="replicate"),),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
    ),
    "of equal values|which it is tied to": make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        mesh=SQUARE,
        tensor_parallel=(
            colwise("a", output="replicate", initial="last_rank"),
            colwise("b", output="replicate"),
        ),
        ties=(Tie(parameter="b.weight", source="a.weight"),),
    ),
    "tells no dim to count from the end": pair(colwise("a", from_end=True), rowwise("b")),
    "is to be sharded along its features": make_case(
        chain(a=Linear(out=4), n=LayerNorm()),
        mesh=SQUARE,
        tensor_parallel=(
            rowwise("a", input="replicate"),
            TensorParallel(module="n", style="sequence", input="features"),
        ),
    ),
    "a plain tensor sharded along its rows of 3": pair(
        rowwise("a", input="replicate", output="rows"),
        colwise("b", input="rows", output="replicate"),
        inputs=replace(float_inputs(), batch=3),
    ),
    "prepares a plain tensor sharded along its rows as one whole": pair(
        rowwise("a", input="replicate"),
        rowwise("b", input="replicate", output="rows"),
        TensorParallel(module="", style="prepare_output", prepared=("h2",)),
    ),
    "returns no tensors one by one": make_case(
        replace(chain(a=Linear(out=4)), returns="dict"),
        mesh=SQUARE,
        tensor_parallel=(
            rowwise("a", input="replicate"),
            TensorParallel(module="", style="prepare_output", prepared=("h0",)),
        ),
    ),
    "reshard_after_forward=2": pair(mesh=Mesh(shard=4, tensor=2), wrap=groups(ROOT, reshard=2)),
    "sharded along a sequence axis": pair(rowwise("a", input="replicate", output="sequence")),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_would_not_compute_the_same_is_no_case(why: str) -> None:
    with pytest.raises(InvalidCase, match=why):
        validate(REFUSED[why])
