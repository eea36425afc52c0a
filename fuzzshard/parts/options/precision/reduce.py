"""``reduce_dtype``."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.precision import DtypeOption, Precision


class Reduce(DtypeOption):
    """The dtype that gradients are reduced in, and accumulated in until then."""

    name, place, of, variation = "reduce", 2, "gradients", 1
    meanings = {
        "precision:reduce": "a dtype of its own for reduced gradients, beside that of parameters",
        "precision:reduce_as_param": "gradients reduced in the dtype of the parameters",
        "precision:reduce_only": "a dtype for reduced gradients only",
    }

    @override
    def draw(self, tape: Tape, case: Case) -> Dtype | None:
        return tape.weighted(((None, 4), ("float32", 4), ("bfloat16", 2)))

    @override
    def mutated(self, rng: Random, case: Case) -> Dtype | None:
        return rng.choice((None, "float32", "bfloat16"))

    @override
    def features(self, value: Dtype | None, policy: Precision) -> Iterator[str]:
        if policy.dtype_of("parameters"):
            yield "precision:reduce" if value else "precision:reduce_as_param"
        elif value:
            yield "precision:reduce_only"
