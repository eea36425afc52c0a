"""What a script asserts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal, Self

from fuzzshard.errors import UsageError
from fuzzshard.parts.names import check_name
from fuzzshard.parts.oracle import Oracle, TensorOracle
from fuzzshard.verdict import Finding

Kind = Literal["compare", "presence", "type", "alone", "raise", "desync"]

SEEDS = range(8)
"""Those of the values that scripts of a finding have, in the order in which they are tried: it may
be that some values do not show it.
"""

ROUNDING = {"float32": 1e-6, "float64": 1e-15}
"""What sums in another order may differ by where the finding was compared bit for bit."""

_ENDS_QUOTES = re.compile(r"""["'{}\\\n]""")


@dataclasses.dataclass(frozen=True)
class Assertion:
    """``compare`` tensors with the reference, or one of the kinds that need no reference. What
    stands ``alone`` is asserted by the ``rule`` itself.

    ``presence`` is of a gradient or an optimizer state that is there or not, ``type`` the shape
    and dtype of a tensor. An error that is due has a ``pattern``.

    The tensor ``name`` of an oracle is compared after op ``op``, or everything that ``oracles``
    have after every op if that is None. The difference may be ``bound``, in the unit of the
    tensor; None means that no bound is known. It was ``error``.
    """

    kind: Kind
    engine: str
    oracles: tuple[TensorOracle, ...] = ()
    op: int | None = None
    name: str = ""
    bound: float | None = 0.0
    expected: str = ""
    observed: str = ""
    detail: str = ""
    pattern: str = ""
    error: float = 0.0
    seed: int = 0
    rule: Oracle = Oracle()  # noqa: RUF009 (a value)

    def __post_init__(self) -> None:
        """Nothing that was loaded comes into a script as source: not by any oracle.

        A name is one (:func:`check_name`). What is due and what was seen cannot end what they are
        quoted in. A pattern may have anything; it is written as a literal alone.
        """
        check_name(self.name)
        for text in (self.observed, self.expected):
            if _ENDS_QUOTES.search(text):
                raise UsageError(f"no script can say {text!r}", "replay the case")

    def but(self, **changes: Any) -> Self:
        """Return the same assertion with other fields."""
        return dataclasses.replace(self, **changes)

    def at(self, finding: Finding) -> Self:
        """Return the assertion for the op, tensor and due value of ``finding``."""
        return self.but(op=finding.op, name=finding.name, expected=finding.expected)

    @property
    def trains_reference(self) -> bool:
        """Whether the plain model trains next to the engine's."""
        return self.kind == "compare"

    def watched(self, index: int) -> tuple[TensorOracle, ...]:
        """Return whose tensors are wanted after op ``index``."""
        return self.oracles if self.op in (None, index) else ()

    def wants_reduced(self, index: int) -> bool:
        """Return whether reduced gradients are wanted after op ``index``."""
        return any(oracle.gradient == "reduced" for oracle in self.watched(index))

    @property
    def stops_at_op(self) -> bool:
        """Whether it looks at what an op does, not at what it leaves behind."""
        return self.kind == "alone" and self.rule.stops_at_op
