"""What a script has to show."""

from __future__ import annotations

import dataclasses
from typing import Literal

Kind = Literal[
    "compare",
    "relation",
    "accumulation",
    "presence",
    "type",
    "registration",
    "communication",
    "hooks",
    "collectives",
    "replicas",
    "error",
    "warning",
    "raise",
    "desync",
    "held",
    "outlives",
]

Values = Literal["seeded", "named"]
"""How parameters and inputs get values. ``seeded``: as anyone would write it, from
``torch.manual_seed``. ``named``: the very values that the finding was seen with, which its bound
is for.
"""

VALUES: tuple[Values, ...] = ("seeded", "named")

ROUNDING = {"float32": 1e-6, "float64": 1e-15}
"""What sums in another order may differ by where the finding was compared bit for bit."""

OF_TYPE = "a tensor of shape"
"""How the text of what was expected begins where shapes or dtypes differ."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """``compare`` tensors with the reference, or one of the kinds that need no reference.

    A ``relation`` compares with the same engine, as :mod:`fuzzshard.case.relations` changes the
    case, an ``accumulation`` of microbatches with each of them. ``error`` is an error that the
    case expects and that does not come, ``warning`` one that does or does not. ``presence`` is of
    a gradient or an optimizer state that is there or not, ``type`` the shape and dtype of a
    tensor. ``held`` is what an engine keeps within (``detail`` says of which kind), ``outlives``
    what is not freed with it.

    ``oracles`` are compared after op ``op``, or after every op if it is None; with a ``name`` only
    that tensor. The difference may be ``bound``, in the unit of the tensor; None means that no
    bound is known. It was ``error``. ``values`` that are ``seeded`` make a script that looks at
    one tensor.
    """

    kind: Kind
    engine: str
    oracles: tuple[str, ...] = ()
    op: int | None = None
    name: str = ""
    bound: float | None = 0.0
    expected: str = ""
    observed: str = ""
    detail: str = ""
    error: float = 0.0
    values: Values = "named"

    @property
    def trains_reference(self) -> bool:
        """Whether another model trains next to the engine's, the plain one or that of a
        relation.
        """
        return self.kind in ("compare", "relation")

    def watches(self, oracle: str, index: int) -> bool:
        """Whether what ``oracle`` looks at is wanted after op ``index``."""
        return oracle in self.oracles and self.op in (None, index)

    @property
    def seeded(self) -> bool:
        """Whether the values are those of ``torch.manual_seed``."""
        return self.values == "seeded"

    @property
    def tolerant(self) -> bool:
        """Whether sums in another order do no harm: the difference is far above what rounding
        explains.
        """
        return self.kind == "compare" and self.seeded and self.error > 0
