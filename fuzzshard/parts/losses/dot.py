"""``(output * target).sum()``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.loss import Loss, Term


class Dot(Loss):
    """A dot product with a target, whose gradient differs everywhere; a sum without a target."""

    name, meaning = "dot", "a dot product with a target"
    place, percent, is_exact, has_target = 1, 55, True, True

    @override
    def text(self, term: Term) -> str:
        return f"({term.output} * {term.target}).sum()" if term.target else f"{term.output}.sum()"
