"""``output.square().mean()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss, Term


class MeanSquare(Loss):
    """The mean square of the outputs."""

    name, meaning = "mean_square", "the mean square of the outputs"
    place, percent = 2, 60
    least_rows, why = 1, "the mean of nothing is NaN"

    @override
    def text(self, term: Term) -> str:
        return f"{term.output}.square().mean()"
