"""``_composable/fsdp/test_fully_shard_training.py``: the core of one-dimensional training."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fuzzshard.case.case import Case, WrapGroup
from fuzzshard.case.options import Delay, DelaySite
from fuzzshard.parts.leaves.activation import Activation
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.ops import Backward, Forward, Step, ZeroGrad
from upstream.cell import Row, grid, single
from upstream.models import (
    TIED,
    inner_and_outer,
    layer_names,
    mlps,
    sequential,
    token_inputs,
    transformer,
)
from upstream.setup import (
    ADAM,
    ADAMW,
    DELAY,
    FULLY_SHARD,
    POSITIONS,
    RESHARDS,
    SHORT_DELAYS,
    TRAINING,
    UNEVEN,
    WITH_REPLICATE,
    always,
    each,
    floats,
    losses_if_uneven,
    make,
    only,
    train,
)

CLASS = "TestFullyShard1DTrainingCore"
SHAPES = ("16-15-8", "7-15-3")
SITES: dict[str, DelaySite] = {
    "after_forward": "after_forward",
    "all_gather": "before_all_gather",
    "reduce_scatter": "before_reduce_scatter",
    "optim": "before_step",
}
DELAYS = ("none", *SITES, "all")
"""Upstream leaves two or three delays at a time out."""


def _delays(which: str) -> tuple[Delay, ...]:
    chosen = {"none": (), "all": tuple(SITES)}.get(which, (which,))
    return tuple(Delay(site=SITES[name], milliseconds=DELAY) for name in chosen)


def _a1(shapes: str, ranks: int = 4) -> Case:
    width, middle, out = map(int, shapes.split("-"))
    model = sequential(
        {"first": Linear(out=middle), "relu": Activation(), "second": Linear(out=out)}
    )
    schedule = train(10, fresh=False)
    return make(
        model, schedule, floats(4, width), ranks, only(""), engines=WITH_REPLICATE, optimizer=ADAM
    )


def _multi_group(
    raf: bool | int,
    delays: str,
    ranks: int = 4,
    compiler: str | None = None,
    offload: str | None = None,
) -> Case:
    wrap = each(*layer_names(3), raf=raf, root=raf, offload=offload)
    return make(
        transformer(3, vocab=1024, max_seq=64),
        train(10, fresh=True),
        token_inputs(3, 64, vocab=1024, max_seq=64),
        ranks,
        wrap,
        ties=TIED,
        engines=WITH_REPLICATE,
        optimizer=ADAM,
        delays=_delays(delays),
        compile=compiler,
    )


def _offloaded(pin_memory: bool, delays: str) -> Case:
    return _multi_group(True, delays, offload="pinned" if pin_memory else "unpinned")


def _a4(ranks: int = 4) -> Case:
    schedule = (
        *(Forward(), Backward(), Step(), ZeroGrad()),
        *(Forward(target="mlp_0"), Backward(), Step()),
        Forward(),
    )
    return make(
        sequential(mlps(32, 4, 4, 4)),
        schedule,
        floats(8, 32),
        ranks,
        each("mlp_0", "mlp_1", "mlp_2"),
        engines=FULLY_SHARD,
        optimizer=replace(ADAM, foreach=True),
        delays=_delays("optim"),
    )


def _a5(raf: bool | int, passed: bool = False) -> Case:
    given = raf if passed else None
    return make(
        inner_and_outer(),
        train(10, fresh=False),
        floats(32, 4),
        4,
        each("inner", raf=given, root=given),
        engines=WITH_REPLICATE,
        optimizer=ADAM,
        observe=losses_if_uneven(given),
    )


def _a5_intended(raf: bool | int) -> Case:
    return _a5(raf, passed=True)


def _a6(ranks: int = 4) -> Case:
    layers = layer_names(8)
    groups = tuple(
        WrapGroup(
            modules=(layer,),
            forward_prefetch=layers[i + 1 : i + 3] if i < len(layers) - 2 else (),
            backward_prefetch=(layers[i - 1], layers[i - 2]) if i >= 2 else (),
        )
        for i, layer in enumerate(layers)
    )
    return _reused_tokens(8, ranks, (*groups, WrapGroup(modules=("",))))


def _a7(ranks: int = 4) -> Case:
    return _reused_tokens(
        2,
        ranks,
        each(*layer_names()),
        optimizer=replace(ADAMW, post_optim_event=True),
        delays=(Delay(site="after_step", milliseconds=DELAY),),
    )


def _reused_tokens(layers: int, ranks: int, wrap: tuple[WrapGroup, ...], **options: Any) -> Case:
    return make(
        transformer(layers),
        train(10, fresh=False, to_none=always),
        token_inputs(2, 8),
        ranks,
        wrap,
        ties=TIED,
        engines=WITH_REPLICATE,
        **{"optimizer": ADAMW, **options},
    )


WIDE = ("wide", "8 ranks, as upstream has with 8 GPUs")

ROWS = (
    Row(
        "A1",
        TRAINING,
        f"{CLASS}.test_train_parity_single_group",
        grid(_a1, shapes=SHAPES) + grid(_a1, folder="wide", shapes=SHAPES, ranks=(8,)),
        folders=(WIDE,),
    ),
    Row(
        "A2",
        TRAINING,
        f"{CLASS}.test_train_parity_multi_group",
        grid(_multi_group, raf=RESHARDS, delays=DELAYS)
        + grid(_multi_group, folder="wide", raf=RESHARDS, delays=("none", "all"), ranks=(8,))
        + grid(
            _multi_group,
            folder="compiled",
            raf=RESHARDS,
            delays=DELAYS,
            compiler=("aot_eager", "inductor"),
        ),
        differs=(POSITIONS, SHORT_DELAYS),
        folders=(
            WIDE,
            ("compiled", "the wrapped root is compiled; upstream's backend is inductor"),
        ),
    ),
    Row(
        "A3",
        TRAINING,
        f"{CLASS}.test_train_parity_multi_group_cpu_offload_eager",
        grid(_offloaded, pin_memory=(True, False), delays=DELAYS),
        differs=(POSITIONS, SHORT_DELAYS, "pinned memory needs CUDA"),
    ),
    Row(
        "A4",
        TRAINING,
        f"{CLASS}.test_non_root_forward_backward",
        single(_a4()) + single(_a4(8), folder="wide"),
        differs=(
            SHORT_DELAYS,
            "the delay is before both steps, and the inner forward has inputs of its own",
        ),
        folders=(WIDE,),
    ),
    Row(
        "A5",
        TRAINING,
        f"{CLASS}.test_multi_forward_module",
        grid(_a5, raf=RESHARDS) + grid(_a5_intended, folder="intended", raf=RESHARDS),
        differs=(
            "as upstream the argument `raf` is not used, so the three cells are equal",
            UNEVEN,
        ),
        folders=(("intended", "`raf` is passed to fully_shard"),),
    ),
    Row(
        "A6",
        TRAINING,
        f"{CLASS}.test_explicit_prefetching",
        single(_a6()) + single(_a6(8), folder="wide"),
        differs=(POSITIONS,),
        folders=(WIDE,),
    ),
    Row(
        "A7",
        TRAINING,
        f"{CLASS}.test_post_optim_event",
        single(_a7()) + single(_a7(8), folder="wide"),
        differs=(POSITIONS, SHORT_DELAYS, "what it guards is a race between CUDA streams"),
        folders=(WIDE,),
    ),
)
