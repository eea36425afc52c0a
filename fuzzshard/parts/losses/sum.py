"""``output.sum()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss, Term


class Sum(Loss):
    """The sum of the outputs, whose gradient is 1 everywhere."""

    name, meaning = "sum", "the sum of the outputs"
    place, percent, is_simpler, is_exact = 0, 30, False, True

    @override
    def text(self, term: Term) -> str:
        return f"{term.output}.sum()"
