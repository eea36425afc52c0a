"""Batches of other sizes on some ranks: gradients are averages of the ranks' own, whatever rows
they had.
"""

from __future__ import annotations

from cases import AGAIN, BACKWARD, FORWARD, STEP, ZERO, chain, colwise, float_inputs, rowwise
from msgspec.structs import replace

from fuzzshard.case.case import ALL_ENGINES, Inputs, Mesh, RankBatch, TensorSpec
from fuzzshard.parts.leaves.attention import Attention
from fuzzshard.parts.leaves.convolutions import Conv1d, Conv2d
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.leaves.mlp import MLP
from fuzzshard.parts.leaves.norms import BatchNorm, LayerNorm
from stock_cases.stock import Stock, bitwise, bounded

SHORT = RankBatch(rank=1, rows=1)
LAST = RankBatch(rank=1, rows=1, batch=1)
EMPTY = RankBatch(rank=0, rows=0)
GROWING = tuple(RankBatch(rank=rank, rows=2 + rank) for rank in range(4))


def sized(*items: RankBatch, inputs: Inputs | None = None) -> Inputs:
    """Two rows, but for some ranks."""
    return replace(inputs or float_inputs(), rank_batches=items)


def of_all(inputs: Inputs, *modules: object, **options: object) -> Stock:
    """A chain of modules under every engine that takes batches of several sizes."""
    named = {f"m{i}": module for i, module in enumerate(modules)}
    build = options.pop("build", bitwise)
    model = chain(**named) if modules else None  # type: ignore[arg-type]
    others = ("pipelining", "expert_parallel", "context_parallel", "replicate_with_fsdp", "spmd")
    engines = tuple(name for name in ALL_ENGINES if name not in others)
    return build(model, inputs=inputs, engines=engines, **options)  # type: ignore[operator,no-any-return]


_IDS = Inputs(batch=2, tensors=(TensorSpec(kind="ids", size=5),), rank_batches=(EMPTY,))
_IMAGES = Inputs(batch=2, tensors=(TensorSpec(size=16),), rank_batches=(EMPTY,))

BATCHES = {
    "a rank is short": of_all(sized(SHORT)),
    "a rank's last batch is short": of_all(sized(LAST)),
    "every rank has another size": of_all(sized(*GROWING), mesh=4, build=bounded),
    "a rank has nothing": of_all(sized(EMPTY)),
    "a rank has nothing of the first of two microbatches": of_all(
        sized(RankBatch(rank=1, rows=0, batch=0)),
        schedule=(FORWARD, BACKWARD, AGAIN, BACKWARD, STEP, ZERO, AGAIN, BACKWARD, STEP),
        build=bounded,
    ),
    "nothing to look up": of_all(_IDS, Embedding(vocab=5, dim=4), Linear(out=3)),
    "nothing to attend to": of_all(
        sized(EMPTY, inputs=float_inputs(4, seq=2)), Attention(heads=2), LayerNorm(), MLP(hidden=3)
    ),
    "nothing for any expert": of_all(
        sized(EMPTY), Experts(out=4, experts=3, idle=True), Linear(out=3), build=bounded
    ),
    "nothing to convolve": of_all(
        sized(EMPTY, inputs=float_inputs(seq=3)), Conv1d(out=4), build=bounded
    ),
    "no images": of_all(
        _IMAGES, Conv2d(channels=1, kernel=2, out=3), Linear(out=2), build=bounded
    ),
    "statistics of another number of rows": of_all(
        sized(RankBatch(rank=1, rows=3)), Linear(out=4), BatchNorm(), Linear(out=2)
    ),
    "replicas of another size": of_all(
        sized(SHORT), mesh=Mesh(replicate=2, shard=2), build=bounded
    ),
    "tensor-parallel ranks share what is left": bounded(
        mesh=Mesh(shard=2, tensor=2),
        tensor_parallel=(colwise("a"), rowwise("b")),
        inputs=sized(EMPTY),
    ),
}
