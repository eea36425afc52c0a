"""From which op on engines may add in another order."""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    AGAIN,
    BACKWARD,
    FORWARD,
    ROOT,
    STEP,
    TWO_STEPS,
    call,
    chain,
    children,
    float_inputs,
    groups,
    make_case,
    tensor_op,
)
from fuzzshard.oracles.association import (
    accumulates,
    adds_in_another_order,
    narrow_sums,
    reorders_from,
)
from msgspec.structs import replace

from fuzzshard.case.case import Case, Freeze, Mesh, Tie
from fuzzshard.case.graph import Alias, Block
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.case.schedule import ClipGradNorm, Forward, SetFlag, SetRequiresGrad
from fuzzshard.contracts import REDUCTIONS_FOLLOW_GRAD_DTYPE
from fuzzshard.oracles.rungs import bitwise_until
from fuzzshard.parts.leaves.batch_norm import BatchNorm
from fuzzshard.parts.leaves.conv1d import Conv1d
from fuzzshard.parts.leaves.conv2d import Conv2d
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.rms_norm import RMSNorm

END = len(TWO_STEPS)
FIRST_BACKWARD, SECOND_BACKWARD = 1, 3
NO_SYNC, SYNC = (SetFlag(flag="requires_gradient_sync", value=value) for value in (False, True))


def adding(*values: str) -> Block:
    """Three modules that read ``x``, and the sum of values: ``x``, or what module a, b or c made of it."""
    nodes = [call(f"h{name}", name, "x") for name in "abc"]
    for index, value in enumerate(values[1:]):
        nodes.append(tensor_op(f"s{index}", "add", f"s{index - 1}" if index else values[0], value))
    return Block(
        children=children(a=Linear(out=5), b=Linear(out=5), c=Linear(out=5)),
        nodes=tuple(nodes),
        outputs=(nodes[-1].name,),
    )


INNER = Block(
    children=children(p=Linear(out=5), q=Linear(out=5)),
    nodes=(call("hp", "p", "x"), call("hq", "q", "x"), tensor_op("s", "add", "hp", "hq")),
    outputs=("s",),
)
"""A block that reads its input twice."""


def around(*order: str) -> Case:
    """``INNER`` and a linear read the same value, in this order; ``INNER`` is wrapped."""
    nodes = tuple(call(f"h{name}", name, "x") for name in order)
    return make_case(
        Block(
            children=children(inner=INNER, last=Linear(out=5)),
            nodes=(*nodes, tensor_op("y", "add", "hinner", "hlast")),
            outputs=("y",),
        ),
        wrap=groups("inner", ROOT),
    )


def test_a_boundary_regroups_a_sum_only_where_something_newer_arrives_before_it() -> None:
    assert reorders_from(around("inner", "last")) == FIRST_BACKWARD
    assert reorders_from(around("last", "inner")) == END
    unwrapped = replace(around("inner", "last"), wrap=groups(ROOT))
    assert reorders_from(unwrapped) == END


def test_the_reference_regroups_what_ddp_does_not_where_a_wrapped_module_returns_its_input() -> None:
    inner = Block(
        children=children(p=Linear(out=5)),
        nodes=(call("hp", "p", "x"),),
        outputs=("hp", "x"),
        returns="tuple",
    )
    model = Block(
        children=children(first=Linear(out=5), inner=inner),
        nodes=(
            call("h", "first", "x"),
            call("pair", "inner", "h"),
            tensor_op("square", "mul", "h", "h"),
        ),
        outputs=("square", "pair.1"),
        returns="tuple",
    )
    assert reorders_from(make_case(model, wrap=groups("inner")), "ddp") == FIRST_BACKWARD
    assert reorders_from(make_case(model, wrap=groups(ROOT)), "ddp") == END


def test_three_readers_add_up_in_one_order_where_each_has_its_own_boundary() -> None:
    assert reorders_from(make_case(adding("ha", "hb", "hc"))) == END
    assert reorders_from(make_case(adding("x", "ha", "hb", "hc"))) == END


def test_a_norm_reads_its_input_twice() -> None:
    model = Block(
        children=children(n=RMSNorm(), a=Linear(out=5)),
        nodes=(call("hn", "n", "x"), call("ha", "a", "x"), tensor_op("y", "add", "hn", "ha")),
        outputs=("y",),
    )
    assert reorders_from(make_case(model)) == FIRST_BACKWARD
    assert reorders_from(make_case(model, wrap=groups("a", ROOT))) == END


TIED = chain(a=Linear(out=5), b=Linear(out=5))
TIE = (Tie(parameter="b.weight", source="a.weight"),)


def test_a_parameter_that_is_used_twice_is_reduced_once_unless_its_group_is_called_twice() -> None:
    assert reorders_from(make_case(TIED, ties=TIE, wrap=groups(ROOT))) == END
    alias = chain(a=Linear(out=5), b=Alias(target="a"))
    assert reorders_from(make_case(alias, wrap=groups(ROOT))) == END
    assert reorders_from(make_case(alias, wrap=groups("a", ROOT))) == FIRST_BACKWARD


SCHEDULES = {
    "microbatches": ((FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), "ddp", SECOND_BACKWARD),
    "microbatches of fully_shard": ((FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), "fully_shard", 5),
    "two pending forwards": ((FORWARD, AGAIN, BACKWARD, STEP), "fully_shard", 2),
    "two pending forwards of ddp": ((FORWARD, AGAIN, BACKWARD, STEP), "ddp", 4),
    "a forward without gradients": ((Forward(grad=False), FORWARD, BACKWARD, STEP), "fully_shard", 4),
    "a clipped norm": ((FORWARD, BACKWARD, ClipGradNorm(max_norm=1.0), STEP), "fully_shard", 2),
}


@pytest.mark.parametrize(("schedule", "engine", "expected"), SCHEDULES.values(), ids=SCHEDULES.keys())
def test_the_op_from_which_on_sums_are_reordered(schedule: tuple, engine: str, expected: int) -> None:
    assert reorders_from(make_case(schedule=schedule), engine) == expected


def test_reductions_over_replicas_alone_are_other_sums() -> None:
    partial = SetFlag(flag="requires_all_reduce", value=False)
    case = make_case(
        schedule=(partial, FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), mesh=Mesh(replicate=2, shard=1)
    )
    assert accumulates(case)
    assert reorders_from(case, "fully_shard") == 4


def test_what_a_compiler_or_tensor_parallelism_computes_is_never_in_order() -> None:
    assert reorders_from(make_case(compile="eager", wrap=groups(ROOT))) == 0
    assert adds_in_another_order(make_case(compile="eager", wrap=groups(ROOT)))


def test_on_many_ranks_bits_are_equal_until_the_first_reduction() -> None:
    schedule = (NO_SYNC, FORWARD, BACKWARD, SYNC, AGAIN, BACKWARD, STEP)
    assert bitwise_until(make_case(schedule=schedule, mesh=4), "fully_shard", "gradient") == 5
    assert bitwise_until(make_case(schedule=schedule, mesh=4), "fully_shard", "unreduced_gradient") == 6
    assert bitwise_until(make_case(schedule=schedule, mesh=2), "fully_shard", "gradient") == len(schedule)


def test_arguments_of_one_module_that_are_one_value_are_added_up_apart() -> None:
    """Without a boundary its readers' gradients arrive one by one, with it one sum for each argument."""
    inner = Block(
        inputs=("p", "q"),
        children=children(a=Linear(out=5)),
        nodes=(tensor_op("c", "concat", "p", "q"), call("h", "a", "c"), tensor_op("s", "add", "h", "q")),
        outputs=("s",),
    )
    model = Block(children=children(b=inner), nodes=(call("y", "b", "x", "x"),), outputs=("y",))
    case = make_case(model, TWO_STEPS, wrap=groups("b"))
    assert reorders_from(case, "fully_shard") == FIRST_BACKWARD
    assert reorders_from(replace(case, wrap=groups("b.a")), "fully_shard") == END


@pytest.mark.parametrize(("order", "expected"), [(("p", "q"), FIRST_BACKWARD), (("q", "p"), END)])
def test_gradients_of_the_arguments_of_one_call_arrive_in_their_order(
    order: tuple[str, str], expected: int
) -> None:
    """A module reads one, the block returns the other; without a boundary the newest reader is first."""
    inner = Block(
        inputs=order,
        children=children(a=Linear(out=5)),
        nodes=(call("h", "a", "p"),),
        outputs=("h", "q"),
        returns="tuple",
    )
    model = Block(
        children=children(f=Linear(out=5), b=inner),
        nodes=(call("x1", "f", "x"), call("y", "b", "x1", "x1"), tensor_op("s", "add", "y.0", "y.1")),
        outputs=("s", "x1"),
        returns="tuple",
    )
    case = make_case(model, TWO_STEPS, wrap=groups("b"))
    assert reorders_from(case, "fully_shard") == expected


def test_zeros_from_a_boundary_that_nothing_reads_may_change_the_strides_of_a_sum() -> None:
    inner = Block(
        inputs=("p", "q"),
        children=children(a=Linear(out=5)),
        nodes=(call("h", "a", "p"),),
        outputs=("h",),
    )
    nodes = (call("h", "c", "x"), call("y", "b", "h", "h"))
    model = Block(children=children(c=Linear(out=5), b=inner), nodes=nodes, outputs=("y",))
    case = make_case(model, TWO_STEPS, wrap=groups("b"))
    assert reorders_from(case, "fully_shard") == FIRST_BACKWARD
    assert reorders_from(replace(case, wrap=groups("b.a")), "fully_shard") == END


@pytest.mark.parametrize(
    ("batch", "seq", "width", "expected"), [(2, 3, 5, END), (1, 3, 5, 0), (2, 1, 5, 0), (2, 3, 1, 0)]
)
def test_a_convolution_whose_strides_are_free_is_never_in_order(
    batch: int, seq: int, width: int, expected: int
) -> None:
    inputs = replace(float_inputs(width, seq=seq), batch=batch)
    case = make_case(
        chain(c=Conv1d(out=5), b=Linear(out=3)), TWO_STEPS, wrap=groups("c", ROOT), inputs=inputs
    )
    assert reorders_from(case, "fully_shard") == expected


@pytest.mark.parametrize(
    ("channels", "kernel", "width", "expected"), [(3, 2, 48, END), (3, 2, 12, 0), (1, 2, 16, 0), (3, 1, 3, 0)]
)
def test_so_is_one_that_makes_one_patch_of_an_image_or_whose_image_has_one_channel(
    channels: int, kernel: int, width: int, expected: int
) -> None:
    model = chain(c=Conv2d(channels=channels, kernel=kernel, out=7), b=Linear(out=3))
    case = make_case(model, TWO_STEPS, wrap=groups("c", ROOT), inputs=float_inputs(width))
    assert reorders_from(case, "fully_shard") == expected


@pytest.mark.parametrize(
    ("batch", "seq", "frozen", "expected"),
    [(2, 1, "b", 0), (1, 3, "b", 0), (2, 3, "b", END), (3, 0, "b", END), (2, 1, "", END)],
)
def test_a_frozen_matrix_goes_by_the_strides_of_what_a_batch_norm_makes_of_one_position(
    batch: int, seq: int, frozen: str, expected: int
) -> None:
    freezes = (Freeze(target=frozen),) if frozen else ()
    inputs = replace(float_inputs(seq=seq), batch=batch)
    model = chain(n=BatchNorm(), b=Linear(out=3))
    case = make_case(model, TWO_STEPS, wrap=groups("b", ROOT), freezes=freezes, inputs=inputs)
    assert reorders_from(case, "fully_shard") == expected
    assert reorders_from(case, "ddp") == END


@pytest.mark.parametrize("engine", ["fully_shard", "ddp"])
@pytest.mark.parametrize(
    ("frozen", "engines_only", "expected"), [("a", True, 2), ("b", True, END + 1), ("a", False, END + 1)]
)
def test_a_matrix_product_may_add_otherwise_where_the_reference_alone_has_the_parameter_frozen(
    engine: str, frozen: str, engines_only: bool, expected: int
) -> None:
    thaw = SetRequiresGrad(target="a", value=True, engines_only=engines_only)
    case = make_case(
        chain(a=Linear(out=5), b=Linear(out=5)),
        (*TWO_STEPS[:2], thaw, *TWO_STEPS[2:]),
        freezes=(Freeze(target=frozen),),
        observe="losses",
    )
    assert reorders_from(case, engine) == expected


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (Precision(param="float16", reduce="float32"), {"a.weight": "float16"}),
        (Precision(param="float16", reduce="float16"), {}),
        (None, {}),
    ],
)
@pytest.mark.skipif(not REDUCTIONS_FOLLOW_GRAD_DTYPE.holds(), reason="gradients add up uncast everywhere")
def test_gradients_of_a_parameter_that_is_used_twice_may_add_up_before_they_are_cast(
    precision: Precision | None, expected: dict[str, str]
) -> None:
    case = make_case(TIED, ties=TIE, wrap=(replace(*groups(ROOT), precision=precision),))
    assert narrow_sums(case, "fully_shard") == expected


@pytest.mark.parametrize(
    ("strategy", "schedule", "expected"),
    [
        ("no_shard", (FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), {"float16"}),
        ("no_shard", (FORWARD, BACKWARD, STEP), set()),
        ("full_shard", (FORWARD, BACKWARD, AGAIN, BACKWARD, STEP), set()),
    ],
)
def test_fsdp1_without_shards_casts_what_has_accumulated(
    strategy: Any, schedule: tuple, expected: set[str]
) -> None:
    case = make_case(
        TIED,
        schedule=schedule,
        wrap=groups(ROOT),
        engines=("fsdp1",),
        fsdp1=FSDP1(strategy=strategy, precision=Precision(param="float16")),
    )
    assert set(narrow_sums(case, "fsdp1").values()) == expected
