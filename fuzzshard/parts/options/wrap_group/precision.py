"""``mp_policy``."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.parts.op import Choice, Reasons
from fuzzshard.parts.option import Told, meanings_of
from fuzzshard.parts.options.precision import PRECISION_OPTIONS, Precision
from fuzzshard.parts.options.wrap_group import GroupOption


class MixedPrecision(GroupOption):
    """The policy of a group; :mod:`fuzzshard.strategies.precision` draws those of all groups."""

    name = "precision"
    extension = Choice("precision", 30, place=0, needed_by=("other_dtypes",))
    meanings = meanings_of(PRECISION_OPTIONS)

    @override
    def arguments(self, value: Precision | None) -> tuple[str, ...]:
        if value is None:
            return ()
        return (f"mp_policy=MixedPrecisionPolicy({', '.join(value.arguments())})",)

    @override
    def misfits(self, value: Precision | None, told: Told) -> Reasons:
        if value is not None and value.buffer:
            yield "MixedPrecisionPolicy has no buffer_dtype", "remove buffer from its precision"

    @override
    def features(self, value: Precision | None) -> Iterator[str]:
        return iter(()) if value is None else value.features()
