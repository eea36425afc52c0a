"""Cases that the documentation of an engine does not cover: they are not run under it."""

from __future__ import annotations

from typing import NamedTuple


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
    "is; "
    "collectives are issued by hooks of the graph, which is to be the same on all ranks "
    "(pytorch issue 152964: 'I would recommend requiring users to make their programs SPMD')",
)
