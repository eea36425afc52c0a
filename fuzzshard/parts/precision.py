"""Mixed precision, as ``fully_shard`` and FSDP1 have it."""

from __future__ import annotations

from typing import Literal

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.part import Part


class Precision(Part, frozen=True, kw_only=True):
    """``MixedPrecisionPolicy``: dtypes of parameters in forward, of reduced gradients, of outputs.

    ``keep="vectors"`` is a ``param_dtype_override_fn`` by which parameters of one dimension keep
    their own.
    """

    param: Dtype | None = None
    reduce: Dtype | None = None
    output: Dtype | None = None
    cast_inputs: bool = True
    keep: Literal["vectors"] | None = None
