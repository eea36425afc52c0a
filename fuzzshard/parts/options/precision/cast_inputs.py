"""``cast_forward_inputs``."""

from __future__ import annotations

from random import Random

from typing_extensions import override

from fuzzshard.parts.option import Case, Tape
from fuzzshard.parts.options.precision import PrecisionOption


class CastInputs(PrecisionOption):
    """Whether the inputs of a wrapped module are cast to the dtype of its parameters."""

    name, place, variation, of_activations = "cast_inputs", 3, 3, True
    texts = {False: "cast_forward_inputs=False"}
    traits = {True: ("casts_inputs",)}
    meanings = {"precision:no_cast": "mixed precision that does not cast inputs"}

    @override
    def draw(self, tape: Tape, case: Case) -> bool:
        return not tape.chance(20)

    @override
    def varied(self, tape: Tape, case: Case, value: bool) -> bool:
        return not value

    @override
    def mutated(self, rng: Random, case: Case) -> bool:
        return rng.random() < 0.8
