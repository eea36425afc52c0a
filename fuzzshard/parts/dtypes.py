"""The dtypes of values and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Dtype = Literal["bfloat16", "float16", "float32", "float64"]
LOW_PRECISION: tuple[Dtype, ...] = ("bfloat16", "float16")
DIGITS: Mapping[Dtype, int] = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""The bits of the significand."""


def promote(a: Dtype, b: Dtype) -> Dtype:
    """Return the dtype of ``a + b`` of tensors, as ``torch.promote_types`` has it."""
    if a == b:
        return a
    if a in LOW_PRECISION and b in LOW_PRECISION:
        return "float32"
    return max(a, b, key=(*LOW_PRECISION, "float32", "float64").index)
