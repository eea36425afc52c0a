"""``fsdp/test_fsdp_multiple_forward.py``."""

from __future__ import annotations

from fuzzshard.case.case import Case, Optimizer
from upstream.cell import Row, single
from upstream.models import inner_and_outer
from upstream.setup import DDP_AND_FSDP1, always, each, floats, make, train


def _m1(same: bool = True) -> Case:
    return make(
        inner_and_outer(),
        train(3, fresh=False, zero="end", to_none=always),
        floats(64, 4, requires_grad=True, same=same),
        4,
        each("inner"),
        engines=DDP_AND_FSDP1,
        optimizer=Optimizer(kind="sgd", lr=0.1),
    )


ROWS = (
    Row(
        "M1",
        "fsdp/test_fsdp_multiple_forward.py",
        "TestMultiForward.test_multi_forward",
        single(_m1()) + single(_m1(same=False), folder="intended"),
        differs=("the inner unit is wrapped after the model is built, not in its constructor",),
        folders=(("intended", "ranks get different data, so that averaging shows"),),
    ),
)
