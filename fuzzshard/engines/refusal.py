"""What a documented error of an engine is, and where a case announces it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fuzzshard.case.case import Case


class Due(NamedTuple):
    """An op at which an error is announced (-1: construction), and whether it is certain to
    come.
    """

    op: int
    certain: bool = True


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One documented error of an engine: its type, a pattern of its text, and where it is
    announced.

    ``due`` says at which ops of a case. ``quote`` is what the documentation says, ``source`` where
    it does. ``doubt`` is why an error that is announced may not come. A ``UserWarning`` is made an
    error where it is due, and stays a warning elsewhere.
    """

    error: str
    pattern: str
    due: Callable[[Case, str], Iterator[Due]]
    quote: str
    source: str
    doubt: str = ""

    def says(self, error: BaseException) -> bool:
        """Whether ``error`` is of the type, and has the text."""
        return (
            type(error).__name__ == self.error and re.search(self.pattern, str(error)) is not None
        )
