"""``_composable/fsdp/test_fully_shard_training.py``: resuming a 2D transformer from a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzshard.case.case import Case, Mesh, Optimizer
from fuzzshard.case.options import TensorParallel
from fuzzshard.parts.ops import (
    Backward,
    CorruptState,
    Forward,
    LoadState,
    Op,
    SaveState,
    Step,
    TakeStateDict,
    ZeroGrad,
)
from upstream.cell import Row, grid
from upstream.models import TIED, layer_names, token_inputs, transformer
from upstream.setup import BOTH, FULLY_SHARD, POSITIONS, TRAINING, each, make

ITERATION: tuple[Op, ...] = (Forward(), Backward(), Step(), ZeroGrad())


def _plan(sequence: bool) -> Iterator[TensorParallel]:
    """``Transformer.parallelize(..., local_output_for_attn=True)`` of common_dtensor.py, leaf by
    leaf.
    """
    split: Any = "sequence" if sequence else "default"
    for name in ("tok_embeddings", "pos_embeddings"):
        outside: Any = "sequence" if sequence else "replicate"
        yield TensorParallel(module=name, style="rowwise", input="replicate", output=outside)
    for layer in layer_names():
        if sequence:
            yield TensorParallel(
                module=f"{layer}.attention_norm", style="sequence", local_output=False
            )
            yield TensorParallel(module=f"{layer}.ffn_norm", style="sequence", local_output=False)
        for name in ("wq", "wk", "wv"):
            yield TensorParallel(module=f"{layer}.attention.{name}", style="colwise", input=split)
        yield TensorParallel(module=f"{layer}.attention.wo", style="rowwise", output=split)
        yield TensorParallel(module=f"{layer}.feed_forward.w1", style="colwise", input=split)
        yield TensorParallel(module=f"{layer}.feed_forward.w2", style="rowwise", output=split)
    if sequence:
        yield TensorParallel(module="norm", style="sequence", local_output=False)
    yield TensorParallel(module="output", style="colwise", input=split, output="replicate")


def _d3(sequence_parallel: bool, reuse: bool, optimizer: Any) -> Case:
    schedule = (
        *ITERATION,
        *(SaveState(), CorruptState(how="zero" if reuse else "rebuild")),
        *ITERATION,
        *(TakeStateDict(), LoadState()),
        *ITERATION,
    )
    decay = 1e-2 if optimizer == "adamw" else 0.0
    return make(
        transformer(),
        schedule,
        token_inputs(3, 16),
        Mesh(shard=2, tensor=2),
        each(*layer_names()),
        ties=TIED,
        tensor_parallel=tuple(_plan(sequence_parallel)),
        engines=FULLY_SHARD,
        optimizer=Optimizer(kind=optimizer, lr=1e-2, weight_decay=decay, foreach=False),
    )


ROWS = (
    Row(
        "D3",
        TRAINING,
        "TestFullyShard2DTraining.test_train_parity_2d_transformer_checkpoint_resume",
        grid(_d3, sequence_parallel=BOTH, reuse=BOTH, optimizer=("adam", "adamw")),
        differs=(
            POSITIONS,
            "attention works on local tensors, as flash attention on a CPU knows no DTensors",
            "wq, wk and wv each gather the sequence; upstream gathers it once before them",
            "the plain reference goes through the same ops with copied states; upstream trains a "
            "second time without a checkpoint",
        ),
    ),
)
