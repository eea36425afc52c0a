"""``param_dtype``."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.precision import DtypeOption, Precision


class Param(DtypeOption):
    """The dtype that parameters are computed in, and inputs are cast to."""

    name, place, of = "param", 1, "parameters"
    meanings = {
        "precision:param": "parameters computed in another dtype",
        "precision:bfloat16": "parameters computed in bfloat16",
        "precision:float16": "parameters computed in float16",
    }

    @override
    def draw(self, tape: Tape, case: Case) -> Dtype | None:
        return tape.weighted((("bfloat16", 8), ("float16", 3), (None, 2)))

    @override
    def mutated(self, rng: Random, case: Case) -> Dtype | None:
        return rng.choice(("bfloat16", "bfloat16", "float16", None))

    @override
    def features(self, value: Dtype | None, policy: Precision) -> Iterator[str]:
        """A case that is judged again in finer dtypes has others than those of half precision."""
        if value is not None:
            yield "precision:param"
        yield from self.named(value)
