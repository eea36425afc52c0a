"""``set_unshard_in_backward(False)``."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts.option import Told
from fuzzshard.parts.options.communication import Word


class NoBackwardUnshard(Word):
    """Backward needs no parameters of the group."""

    name, where_it_fits = "no_backward_unshard", 90
    call = "set_unshard_in_backward(False)"
    meaning = "a group that is not unsharded in backward"
    gives = ("looks_at_unsharded",)

    @override
    def misfit(self, told: Told) -> str | None:
        if told.backward_needs_parameters:
            return "it is for parameters that backward does not need, as those of embeddings"
        return None
