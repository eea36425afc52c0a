"""Cases that the documentation of an engine does not cover: they are not run under it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import grad_dtypes_set


class Exclusion(NamedTuple):
    """Why a case is not run under an engine.

    ``source`` is what the documentation says, with its place; or, where it begins with
    "fuzzshard", what an engine is not asked to do here although it could, or what the reference
    does not model.
    """

    reason: str
    source: str


RETYPED = Exclusion(
    "gradients of another dtype than that of the parameter, of which the engine says nothing",
    "torch/_tensor_docs.py, grad_dtype: 'Use with caution. Diverging the dtypes of a tensor and "
    "its gradient may break downstream systems that assume they match.'",
)
OTHER_GRAPH_ON_ONE_RANK = Exclusion(
    "a dropout returns its input, with its graph and hooks, on the rank without rows alone",
    "aten/src/ATen/native/Dropout.cpp, _dropout_impl: an input without elements is returned as it "
    "is; collectives are issued by hooks of the graph, which is to be the same on all ranks "
    "(pytorch issue 152964: 'I would recommend requiring users to make their programs SPMD')",
)
SWAPPED = Exclusion(
    "a hook on a parameter that is cast later, or its grad_dtype: a DTensor is exchanged for "
    "another, which has none",
    "torch/utils/__init__.py, swap_tensors: 'this will make t1 have the content of t2 while "
    "preserving its identity'; torch/nn/modules/module.py, _apply, swaps subclasses of Tensor",
)


def swaps_settings(case: Case, dtensors: Collection[str]) -> bool:
    """Whether one of the parameters ``dtensors`` gets a hook, or a ``grad_dtype``, and is cast
    after that. :data:`SWAPPED` is about it.
    """
    last = max((index for index, op in enumerate(case.schedule) if op.casts_to), default=0)
    before = replace(case, schedule=case.schedule[:last])
    hooked = {op.hooked.parameter for op in before.schedule if op.hooked}
    return not (hooked | grad_dtypes_set(before).keys()).isdisjoint(dtensors)
