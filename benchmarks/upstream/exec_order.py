"""``fsdp/test_fsdp_exec_order.py``: FSDP1's check of the order of units across ranks and
iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzshard.case.case import Case, Freeze
from fuzzshard.case.graph import Block, Call
from fuzzshard.case.options import FSDP1, Expect
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Op, SetMode, SetPath, SetRequiresGrad
from upstream.cell import Row, grid
from upstream.models import block, call, relu, sequential
from upstream.setup import FSDP1_ONLY, each, floats, make

FILE = "fsdp/test_fsdp_exec_order.py"
CLASS = "TestFSDPExecOrder"
STRATEGIES = ("full_shard", "shard_grad_op")
ERROR = r"^(Forward order differs across ranks)"
WARNING = (
    r"^(Forward order differs from that of the first iteration on rank \d+\. "
    r"Collectives are unchecked and may give incorrect results or hang)"
)
FLIP: tuple[Op, ...] = (
    SetPath(path=1, ranks="others"),
    SetRequiresGrad(target="layer1", value=False, ranks="others"),
    SetRequiresGrad(target="layer2", value=True, ranks="others"),
)
"""All ranks but the first take the other path, and train its parameters."""


def _model() -> Block:
    layer2 = sequential(
        {
            "first": Linear(out=3, bias=False),
            "relu": Activation(),
            "second": Linear(out=6, bias=False),
        }
    )
    return block(
        {"layer0": Linear(out=6), "layer1": Linear(out=6, bias=False), "layer2": layer2},
        call("y", "layer0", "x"),
        relu("z", "y"),
        Call(name="u", module="layer1", args=("z",), alternatives=("layer2",)),
        relu("v", "u"),
    )


def _case(strategy: Any, schedule: tuple[Op, ...], expect: tuple[Expect, ...] = ()) -> Case:
    return make(
        _model(),
        schedule,
        floats(8, 5),
        4,
        each("layer1", "layer2"),
        freezes=(Freeze(target="layer2"),),
        engines=FSDP1_ONLY,
        fsdp1=FSDP1(strategy=strategy, debug="detail"),
        expect=expect,
    )


def _e1(strategy: Any) -> Case:
    expect = Expect(kind="error", engine="fsdp1", pattern=ERROR, op=len(FLIP))
    return _case(strategy, (*FLIP, Forward()), (expect,))


def _e2(strategy: Any, iterations: int) -> Case:
    before = tuple(op for i in range(iterations) for op in (Forward(batch=i), Backward()))
    schedule = (
        *before,
        *FLIP,
        Forward(batch=iterations),
        Backward(),
        Forward(batch=iterations + 1),
        Backward(),
    )
    expect = Expect(
        kind="warning", engine="fsdp1", pattern=WARNING, op=len(before) + len(FLIP), ranks="others"
    )
    return _case(strategy, schedule, (expect,))


def _epochs() -> Iterator[Op]:
    for epoch in range(2):
        yield SetMode(train=True)
        for i in range(3):
            yield from (Forward(batch=6 * epoch + i), Backward(which="newest"))
        yield SetMode(train=False)
        for i in range(3, 6):
            yield Forward(batch=6 * epoch + i)


def _e3(strategy: Any) -> Case:
    return _case(strategy, tuple(_epochs()))


IN_STEP = "ranks begin with equal parameters; upstream lets them differ"

ROWS = (
    Row(
        "E1",
        FILE,
        f"{CLASS}.test_invalid_first_iter_order",
        grid(_e1, strategy=STRATEGIES),
        (IN_STEP,),
    ),
    Row(
        "E2",
        FILE,
        f"{CLASS}.test_invalid_later_iter_order",
        grid(_e2, strategy=STRATEGIES, iterations=(1, 3)),
        (IN_STEP,),
    ),
    Row("E3", FILE, f"{CLASS}.test_train_eval", grid(_e3, strategy=STRATEGIES), (IN_STEP,)),
)
