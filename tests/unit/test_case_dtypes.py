"""Dtypes: what policies cast, where dtypes do not meet, and how a case is made more precise."""

from __future__ import annotations

from typing import Any

import pytest
from cases import BACKWARD, FORWARD, ROOT, STEP, chain, float_inputs, graph, groups, make_case
from msgspec.structs import replace

from fuzzshard.analysis.dtypes import Casts, casts, is_low_precision, lifted, uniform
from fuzzshard.analysis.needs import needs_cpu
from fuzzshard.analysis.validate import validate
from fuzzshard.case.case import Case, Freeze, Inputs, Mesh, Optimizer, TensorSpec, WrapGroup
from fuzzshard.case.options import FSDP1, ParameterDtype, Precision
from fuzzshard.errors import InvalidCase
from fuzzshard.parts import ops
from fuzzshard.parts.dtypes import Dtype, promote
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.lstm import LSTM
from fuzzshard.parts.leaves.norms import LayerNorm, RMSNorm
from fuzzshard.parts.leaves.raw_parameter import RawParameter
from fuzzshard.parts.ops import Cast, Forward, SaveState, SetGradDtype, SetRequiresGrad

HALF = Precision(param="bfloat16")
HALF_OUT = Precision(param="bfloat16", output="float32")


def under(precision: Precision | None, *modules: str) -> tuple[WrapGroup, ...]:
    return tuple(replace(group, precision=precision) for group in groups(*modules))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("bfloat16", "float16", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float32", "float32"),
        ("float64", "float32", "float64"),
    ],
)
def test_promotion_is_that_of_torch(a: Dtype, b: Dtype, expected: Dtype) -> None:
    assert promote(a, b) == promote(b, a) == expected


def test_one_policy_for_all_groups_computes() -> None:
    validate(make_case(wrap=under(HALF, "a", "b", ROOT)))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            make_case(schedule=(Forward(target="nothing"),), wrap=under(HALF, "a", "b", ROOT)),
            "forward names 'nothing', which is not a module",
        ),
        (
            make_case(wrap=(*under(HALF, "a"), *groups("b", ROOT))),
            "'b' has parameters of float32 and is called with bfloat16",
        ),
        (
            make_case(wrap=under(Precision(param="bfloat16", cast_inputs=False), ROOT)),
            "'a' has parameters of bfloat16 and is called with float32",
        ),
        (
            make_case(engines=("fsdp1",), fsdp1=FSDP1(precision=HALF), wrap=under(HALF, ROOT)),
            "both FSDP1 and wrap groups have mixed precision",
        ),
        (
            make_case(optimizer=Optimizer(kind="muon", exclude=("a.bias",))),
            "it is for matrices",
        ),
    ],
)
def test_dtypes_that_do_not_meet_are_refused(case: Case, message: str) -> None:
    with pytest.raises(InvalidCase, match=message):
        validate(case, 2)


def test_an_output_dtype_brings_the_two_together() -> None:
    validate(make_case(wrap=(*under(HALF_OUT, "a"), *groups("b", ROOT))))


@pytest.mark.parametrize(
    ("norm", "computes"),
    [(LayerNorm(), True), (RMSNorm(), True), (RawParameter(), True), (Linear(out=5), False)],
)
def test_norms_and_products_in_full_precision_take_half_precision(
    norm: Any, computes: bool
) -> None:
    case = make_case(chain(a=Linear(out=5), n=norm), wrap=(*under(HALF, "a"), *groups("n", ROOT)))
    if computes:
        validate(case)
    else:
        with pytest.raises(InvalidCase, match="has parameters of float32"):
            validate(case)


def test_a_layer_norm_in_full_precision_of_half_precision_needs_the_cpu() -> None:
    wrap = (*under(HALF, "a"), *groups("n", ROOT))
    assert "layer_norm" in (
        needs_cpu(make_case(chain(a=Linear(out=5), n=LayerNorm()), wrap=wrap)) or ""
    )
    assert needs_cpu(make_case(chain(a=Linear(out=5), n=RMSNorm()), wrap=wrap)) is None
    assert (
        needs_cpu(
            make_case(chain(a=Linear(out=5), n=LayerNorm()), wrap=under(HALF, "a", "n", ROOT))
        )
        is None
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", None])
def test_gradients_of_another_dtype_are_not_stepped_in_lists(dtype: Dtype | None) -> None:
    retyped = SetGradDtype(target="", dtype=dtype)
    wrap = under(Precision(param="bfloat16", reduce="bfloat16"), ROOT)
    case = make_case(
        chain(a=Linear(out=5)), (retyped, *ops.training(0)), wrap=wrap, optimizer=Optimizer()
    )
    in_turn = replace(case, optimizer=Optimizer(foreach=False))
    in_lists = replace(case, optimizer=Optimizer(foreach=True))
    validate(case)
    assert "foreach" in (needs_cpu(case) or "")
    assert needs_cpu(replace(case, schedule=ops.training(0))) is None
    validate(in_turn)
    assert needs_cpu(in_turn) is None
    with pytest.raises(InvalidCase, match="take no gradients of another dtype"):
        validate(in_lists)


@pytest.mark.parametrize(
    ("reduce", "said"),
    [(None, [None]), ("bfloat16", [None]), (None, ["bfloat16", None]), (None, ["float32", None])],
)
def test_a_checkpoint_needs_gradients_with_the_dtypes_of_zeros(
    reduce: Dtype | None, said: list[Dtype | None]
) -> None:
    """A momentum buffer has the dtype of its first gradient, which may be one of zeros."""
    first, *later = [SetGradDtype(target="", dtype=dtype) for dtype in said]
    schedule = (first, SaveState(via="dcp"), *later, *ops.training(0))
    wrap = under(Precision(reduce=reduce), ROOT) if reduce else groups(ROOT)
    case = make_case(
        chain(a=Linear(out=5)), schedule, wrap=wrap, optimizer=Optimizer(foreach=False)
    )
    if "bfloat16" in (reduce, *said):
        with pytest.raises(InvalidCase, match="needs gradients of the dtype of their parameters"):
            validate(case)
    else:
        validate(case)


def test_a_scaler_takes_bfloat16_on_the_cpu_alone_and_float16_nowhere() -> None:
    def scaled(dtype: Dtype) -> Case:
        schedule = (SetGradDtype(target="a", dtype=dtype), *ops.training(0))
        optimizer = Optimizer(foreach=False, grad_scaler="finite")
        return make_case(chain(a=Linear(out=5)), schedule, wrap=groups(ROOT), optimizer=optimizer)

    validate(scaled("bfloat16"))
    assert "GradScaler" in (needs_cpu(scaled("bfloat16")) or "")
    assert needs_cpu(scaled("float64")) is None
    with pytest.raises(InvalidCase, match="GradScaler takes none of float16"):
        validate(scaled("float16"))


def test_an_lstm_needs_the_cpu_for_backwards_that_cudnn_lacks() -> None:
    inputs = Inputs(batch=2, seq=2, tensors=(TensorSpec(size=3),))
    evaluated = (ops.mode(train=False), *ops.training(0))
    lstm = make_case(chain(a=LSTM(out=3)), evaluated, inputs=inputs)
    assert "cuDNN" in (needs_cpu(lstm) or "")
    trained = replace(lstm, schedule=ops.training(0))
    assert needs_cpu(trained) is None
    assert "backward of a backward" in (needs_cpu(replace(trained, loss="gradient_penalty")) or "")
    assert needs_cpu(replace(lstm, model=chain(a=Linear(out=3)))) is None


def test_ids_are_not_cast_and_an_embedding_gives_the_dtype_of_its_weight() -> None:
    model = chain(e=Embedding(vocab=6, dim=4), b=Linear(out=3))
    inputs = Inputs(batch=2, seq=2, tensors=(TensorSpec(kind="ids", size=6),))
    validate(make_case(model, inputs=inputs, wrap=under(HALF, "e", "b", ROOT)))


def test_attention_between_values_of_two_dtypes_does_not_compute() -> None:
    model = graph(
        "q1 = q(x)", "k1 = k(x)", "t = attend(q1, k1, k1)", q=Linear(out=4), k=Linear(out=4)
    )
    wrap = (*under(HALF, "q"), *groups("k", ROOT))
    with pytest.raises(InvalidCase, match="'attend' in block '' joins"):
        validate(make_case(model, inputs=float_inputs(4, seq=2), wrap=wrap))


def test_a_cast_changes_what_computes() -> None:
    case = make_case(
        schedule=(Cast(dtype="float64"), FORWARD, BACKWARD, STEP), wrap=under(HALF, "a", ROOT)
    )
    validate(case)
    late = Precision(param="float32", cast_inputs=False)
    with pytest.raises(InvalidCase, match="called with float64"):
        validate(replace(case, wrap=under(late, "a", "b", ROOT)))


def test_frozen_parameters_of_a_group_may_have_another_dtype() -> None:
    other = (ParameterDtype(target="a", dtype="bfloat16"),)
    frozen = make_case(wrap=under(HALF, ROOT), dtypes=other, freezes=(Freeze(target="a"),))
    validate(frozen)
    for case in (
        replace(frozen, freezes=()),
        replace(frozen, schedule=(SetRequiresGrad(target="a", value=True), *frozen.schedule)),
    ):
        with pytest.raises(InvalidCase, match="trains parameters of several dtypes"):
            validate(case)


def test_fsdp1_casts_at_the_root_only() -> None:
    case = make_case(engines=("fsdp1",), fsdp1=FSDP1(precision=HALF))
    assert casts(case) == {ROOT: Casts("bfloat16", None)}
    assert casts(make_case(wrap=under(HALF, "a", ROOT))) == {
        m: Casts("bfloat16", None) for m in ("a", ROOT)
    }


def test_what_is_low_precision() -> None:
    assert not is_low_precision(make_case())
    assert not is_low_precision(make_case(wrap=under(Precision(output="float32"), ROOT)))
    assert is_low_precision(make_case(wrap=under(HALF, ROOT)))
    assert is_low_precision(
        make_case(dtype="float64", wrap=under(Precision(reduce="float32"), ROOT))
    )


def test_a_uniform_case_has_one_dtype_and_no_policy() -> None:
    ops = (Cast(dtype="float64"), FORWARD, Cast(dtype="float32"))
    case = make_case(
        schedule=ops,
        wrap=under(HALF, ROOT),
        fsdp1=FSDP1(precision=Precision(param="float16")),
        dtypes=(ParameterDtype(target="a", dtype="bfloat16"),),
    )
    for dtype in ("float32", "float64"):
        casts_to_it = (Cast(dtype=dtype), FORWARD, Cast(dtype=dtype))
        assert uniform(case, dtype) == make_case(
            schedule=casts_to_it, wrap=groups(ROOT), dtype=dtype
        )


def test_a_lifted_case_has_float32_for_half_precision_and_all_else_as_it_is() -> None:
    policy = Precision(param="bfloat16", reduce="float64")
    case: Case = make_case(wrap=under(policy, ROOT), mesh=Mesh(shard=2))
    case = replace(case, schedule=(Cast(dtype="float16"), *case.schedule))
    once = lifted(case)
    assert once.dtype == "float32"
    assert once.wrap[0].precision == Precision(param="float32", reduce="float64")
    assert once.schedule == (Cast(dtype="float32"), *case.schedule[1:])
    assert lifted(once) == once


def test_muon_rounds_to_bfloat16_in_the_case_itself_alone() -> None:
    case = make_case(optimizer=Optimizer(kind="muon", exclude=("a.bias", "b.bias")))
    validate(case, 2)
    assert case.optimizer.step_lines() == ["optimizer.step()"]
    for precise in (lifted(case), uniform(case, "float32")):
        assert precise.optimizer.step_lines() == ["with KeepingDtypes():", "    optimizer.step()"]


def test_a_second_optimizer_gets_what_the_first_does_not() -> None:
    both = Optimizer(kind="muon", exclude=("a.bias", "b.bias"), beside="adamw")
    validate(make_case(optimizer=both), 2)
    assert both.step_lines() == ["optimizer.step()", "second.step()"]
    scaled = replace(both, grad_scaler="finite")
    assert scaled.step_lines() == [
        *("scaler.step(optimizer)", "scaler.step(second)", "scaler.update()")
    ]
    assert both.leaving_out(()).beside is None
    with pytest.raises(InvalidCase, match="the second optimizer has no parameters"):
        validate(make_case(optimizer=Optimizer(beside="adamw")), 2)


def test_a_penalty_needs_an_input_with_gradients() -> None:
    case = make_case(loss="gradient_penalty")
    validate(case, 2)
    calm = (TensorSpec(size=5),)
    with pytest.raises(InvalidCase, match="of gradients of inputs"):
        validate(replace(case, inputs=replace(case.inputs, tensors=calm)), 2)


def test_a_centered_rmsprop_takes_gradients_of_the_dtype_of_the_parameters() -> None:
    schedule = (SetGradDtype(target="a", dtype="bfloat16"), FORWARD, BACKWARD, STEP)
    plain = make_case(schedule=schedule, optimizer=Optimizer(kind="rmsprop"))
    validate(plain)
    with pytest.raises(InvalidCase, match="of another dtype"):
        validate(replace(plain, optimizer=Optimizer(kind="rmsprop", flags=("centered",))))
