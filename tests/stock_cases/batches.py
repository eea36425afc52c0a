"""Batches of other sizes on some ranks: gradients are averages of the ranks' own, whatever rows
they had.
"""

from __future__ import annotations

from cases import chain, float_inputs
from msgspec.structs import replace

from fuzzshard.case.case import ALL_ENGINES, Inputs, RankBatch, TensorSpec
from fuzzshard.parts.leaves.embedding import Embedding
from fuzzshard.parts.leaves.experts import Experts
from fuzzshard.parts.leaves.linear import Linear
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

BATCHES = {
    "a rank is short": of_all(sized(SHORT)),
    "a rank's last batch is short": of_all(sized(LAST)),
    "every rank has another size": of_all(sized(*GROWING), mesh=4, build=bounded),
    "a rank has nothing": of_all(sized(EMPTY)),
    "nothing to look up": of_all(_IDS, Embedding(vocab=5, dim=4), Linear(out=3)),
    "nothing for any expert": of_all(
        sized(EMPTY), Experts(out=4, experts=3, idle=True), Linear(out=3), build=bounded
    ),
}
