"""``_composable/fsdp/test_fully_shard_training.py``: activation checkpointing and shared
parameters.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fuzzshard.case.case import Case
from upstream.cell import Row, grid
from upstream.models import TIED, layer_names, token_inputs, transformer
from upstream.setup import (
    ADAM,
    BOTH,
    POSITIONS,
    RESHARDS,
    TRAINING,
    WITH_REPLICATE,
    checkpointed,
    each,
    make,
    train,
)

IMPLEMENTATIONS = ("composable", "utils", "wrapper")


def _k1(
    raf: bool | int,
    implementation: Any,
    ranks: int = 2,
    dropout: float = 0.0,
    compiler: str | None = None,
) -> Case:
    layers = layer_names(3)
    return make(
        transformer(3, vocab=1024, max_seq=64, dropout=dropout),
        train(10, fresh=False, zero="end"),
        token_inputs(3, 64, vocab=1024, max_seq=64),
        ranks,
        each(*layers, raf=raf, root=raf),
        ties=TIED,
        checkpoints=checkpointed(layers, implementation=implementation),
        engines=WITH_REPLICATE,
        optimizer=replace(ADAM, foreach=True),
        compile=compiler,
    )


def _s1(raf: bool, checkpoint: bool) -> Case:
    layers = layer_names(3)
    return make(
        transformer(3),
        train(10, fresh=True),
        token_inputs(2, 16),
        4,
        each(*layers, raf=raf, root=raf),
        ties=TIED,
        checkpoints=checkpointed(layers, checkpoint),
        engines=WITH_REPLICATE,
        optimizer=ADAM,
    )


ROWS = (
    Row(
        "K1",
        TRAINING,
        "TestFullyShard1DTrainingCompose.test_train_parity_with_activation_checkpointing",
        grid(_k1, raf=RESHARDS, implementation=IMPLEMENTATIONS)
        + grid(_k1, folder="dropout", raf=(True,), implementation=IMPLEMENTATIONS, dropout=(0.1,))
        + grid(_k1, folder="wide", raf=(2,), implementation=IMPLEMENTATIONS, ranks=(4,))
        + grid(
            _k1,
            folder="compiled",
            raf=RESHARDS,
            implementation=("utils", "wrapper"),
            compiler=("aot_eager", "inductor"),
        ),
        differs=(POSITIONS,),
        folders=(
            ("dropout", "dropout 0.1, as an earlier revision had"),
            ("wide", "4 ranks, where reshard_after_forward=2 is not True"),
            ("compiled", "the wrapped root is compiled; upstream's backend is inductor"),
        ),
    ),
    Row(
        "S1",
        TRAINING,
        "TestFullyShardSharedParams.test_train_parity_with_shared_params",
        grid(_s1, raf=BOTH, checkpoint=BOTH),
        differs=(POSITIONS,),
    ),
)
