"""Dims of size 1 whose strides are not those of a contiguous tensor, and what goes by such strides.

A convolution, and a batch norm over sequences, has the features second, and its result is transposed. Strides
of dims of size 1 mean nothing, but ``matmul`` decides by them whether it folds a batch into rows where its
second argument requires no gradient (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp).
``fully_shard`` passes the inputs of a wrapped module on as views, with strides as if contiguous, but not in a
recomputation (``_pre_forward`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
"""

from __future__ import annotations

import functools

from fuzzshard.case.batches import all_rows
from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts, facts


def leaves_with_free_strides(case: Case, found: Facts) -> frozenset[str]:
    """The leaves that return a dim of size 1 with a stride of its own: one row, one position or one patch."""
    one_row, seq = 1 in all_rows(case), case.inputs.seq
    leaves = set()
    for path, leaf in found.leaves.items():
        (result,) = found.output_values[path]
        length = leaf.free_axis(result, seq)
        if length is not None and (one_row or length == 1) and result.size > 1:
            leaves.add(path)
    return frozenset(leaves)


@functools.lru_cache(maxsize=64)  # asked for every tensor that differs
def strides_are_free(case: Case) -> bool:
    """Whether something goes by the stride of a dimension of size 1, which means nothing and is not kept.

    What passes a module boundary is a view with strides of its own there, and torch takes the memory format
    of a convolution from strides (``determine_backend_memory_format``, aten/src/ATen/native/Convolution.cpp).
    Of a frozen matrix :func:`folds_by_strides`.
    """
    found = facts(case)
    leading = 1 in (*all_rows(case), case.inputs.seq)

    return folds_by_strides(case) or any(
        leaf.convolves and (leading or leaf.goes_by_strides(found.width(path)))
        for path, leaf in found.leaves.items()
    )


@functools.lru_cache(maxsize=64)
def folds_by_strides(case: Case) -> bool:
    """Whether a frozen matrix may meet a stride of a dimension of size 1 that a module boundary changes.

    What requires no gradient has ``matmul`` fold a batch into the rows only where strides allow it
    (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp).
    """
    freezes = bool(case.freezes) or any(op.toggle and not op.toggle.value for op in case.schedule)
    return freezes and bool(leaves_with_free_strides(case, facts(case)))
