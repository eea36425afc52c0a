"""Where a dropout gives a rank without rows another graph than the other ranks.

``dropout`` returns its input itself where that has no elements (aten/src/ATen/native/Dropout.cpp,
``_dropout_impl``). What hooks of the graph do there comes elsewhere than on other ranks, or not at
all.
"""

from __future__ import annotations

from collections.abc import Collection

from fuzzshard.case.batches import only_some_ranks_have_rows
from fuzzshard.case.case import Case
from fuzzshard.case.facts import facts
from fuzzshard.case.graph import Block, Call, join, modules_below
from fuzzshard.case.in_place import returned_by


def has_other_graph_without_rows(case: Case, wrapped: Collection[str]) -> bool:
    """Whether hooks on the outputs of the ``wrapped`` modules may run otherwise on a rank without
    rows.
    """
    return only_some_ranks_have_rows(case) and (
        _drops_without_grad(case) or _moves_hooks(case, wrapped)
    )


def _drops_without_grad(case: Case) -> bool:
    """Whether a dropout is called under ``torch.no_grad()``: there its result has the graph of its
    input.
    """
    return any(
        _is_dropout(case, below)
        for path, module in facts(case).modules.items()
        if isinstance(module, Block)
        for node in module.nodes
        if isinstance(node, Call) and not node.grad
        for child in node.modules
        for below in modules_below(case.model, join(path, child))
    )


def _moves_hooks(case: Case, wrapped: Collection[str]) -> bool:
    """Whether hooks of a module are on the result of a dropout, and so behind those of others
    without it.
    """
    modules = facts(case).modules
    outputs = (
        (path, value)
        for path in wrapped
        if isinstance(block := modules[path], Block)
        for value in block.outputs
    )
    return len(wrapped) > 1 and any(
        _is_dropout(case, p) for p in (*wrapped, *returned_by(case, outputs))
    )


def _is_dropout(case: Case, path: str) -> bool:
    leaf = facts(case).leaves.get(path)
    return leaf is not None and leaf.drops
