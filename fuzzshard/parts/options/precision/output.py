"""``output_dtype``."""

from __future__ import annotations

from random import Random

from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.precision import DtypeOption


class Output(DtypeOption):
    """The dtype that the outputs of a wrapped module are cast to."""

    name, place, of, variation, of_activations = "output", 0, "outputs", 2, True
    meanings = {"precision:output": "a dtype for outputs"}

    @override
    def draw(self, tape: Tape, case: Case) -> Dtype | None:
        return tape.weighted(((None, 5), (case.dtype, 4), ("bfloat16", 1)))

    @override
    def varied(self, tape: Tape, case: Case, value: Dtype | None) -> Dtype | None:
        return None if value else case.dtype

    @override
    def mutated(self, rng: Random, case: Case) -> Dtype | None:
        return rng.choice((None, case.dtype))
