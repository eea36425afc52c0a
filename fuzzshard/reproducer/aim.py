"""What a script has to show: from a finding, or from a signature where the finding is not at hand."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.schedule import Cast, CorruptState
from fuzzshard.errors import UsageError
from fuzzshard.oracles.association import adds_in_another_order
from fuzzshard.verdict import MISSING, TENSOR_ORACLES, UNEXPECTED, Finding

Kind = Literal[
    "compare",
    "relation",
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
"""How parameters and inputs get values. ``seeded``: as anyone would write it, from ``torch.manual_seed``.
``named``: the very values that the finding was seen with, which its bound is for.
"""

VALUES: tuple[Values, ...] = ("seeded", "named")

LEAST_MARGIN = 1e3
"""How many times larger than its bound a difference must be for values of another seed to show it: rounding
moves them by another amount, of the same order."""

ROUNDING = {"float32": 1e-6, "float64": 1e-15}
"""What sums in another order may differ by where the finding was compared bit for bit."""

OF_TYPE = "a tensor of shape"
"""How the text of what was expected begins where shapes or dtypes differ."""

LARGEST_BITWISE_MESH = 2
"""Sums of two terms are the same in any order (the bitwise rung of the ladder)."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """``compare`` tensors with the reference, or one of the kinds that need no reference.

    A ``relation`` compares with the same engine, as :mod:`fuzzshard.case.relations` changes the case.
    ``error`` is an error that the case expects and that does not come, ``warning`` one that does or does not.
    ``presence`` is of a gradient or an optimizer state that is there or not, ``type`` the shape and dtype of
    a tensor. ``held`` is what an engine keeps within (``detail`` says of which kind), ``outlives`` what is
    not freed with it.

    ``oracles`` are compared after op ``op``, or after every op if it is None; with a ``name`` only that
    tensor. The difference may be ``bound``, in the unit of the tensor; None means that no bound is known.
    It was ``error``. ``values`` that are ``seeded`` make a script that looks at one tensor.
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
        """Whether another model trains next to the engine's, the plain one or that of a relation."""
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
        """Whether sums in another order do no harm: the difference is far above what rounding explains."""
        return self.kind == "compare" and self.seeded and self.error > 0


def aim_of(case: Case, signature: str, finding: Finding | None, values: Values = "named") -> Aim:
    """Raises :class:`UsageError` where the signature alone does not say what is expected.

    Also where ``values`` of another seed need not show the ``finding``.
    """
    if finding is not None:
        aim = _from_finding(case, finding)
        return _seeded(case, aim, finding) if values == "seeded" else aim
    kind, _, rest = signature.partition("/")
    engine, _, oracle = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Aim("desync" if kind == "desync" else "raise", engine)
    oracle = oracle.partition("/")[0]
    engine = engine or ("fully_shard" if "fully_shard" in case.engines else case.engines[0])
    match oracle:
        case (
            "registration"
            | "communication"
            | "hooks"
            | "warning"
            | "expectation"
            | "unreduced_gradient"
            | "leak"
        ):
            raise UsageError("a script for this signature needs the finding", "pass the finding of its entry")
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case _:
            oracles = (oracle,) if oracle else _judged_everywhere(engine)
            return Aim("compare", engine, oracles, bound=0.0 if adds_in_order(case) else None)


def _from_finding(case: Case, finding: Finding) -> Aim:
    engine, op = finding.engine, finding.op
    match finding.oracle:
        case "deadline":
            return Aim("desync", engine)
        case "exit":
            return Aim("desync" if finding.detail in ("desync", "SIGABRT") else "raise", engine)
        case "exception":
            return Aim("desync", engine) if finding.detail == "desync" else Aim("raise", engine, op=op)
        case "registration":
            return Aim("registration", engine, op=op, name=finding.name, expected=finding.expected)
        case "communication":
            return Aim("communication", engine, op=op, name=finding.name, expected=finding.expected)
        case "hooks":
            return Aim("hooks", engine, op=op, name=finding.name, expected=finding.expected)
        case "warning":
            return Aim("warning", engine)
        case "expectation":
            errors = [e.op for e in case.expect if e.engine == engine and e.kind == "error"]
            return Aim("error", engine, op=errors[0]) if errors else Aim("warning", engine)
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case "leak":
            kind: Kind = "outlives" if finding.detail == "survivor" else "held"
            held = Aim(kind, engine, op=op, name=finding.name, expected=finding.expected)
            return dataclasses.replace(held, observed=finding.observed, detail=finding.detail)
        case "unreduced_gradient":
            held = Aim("held", engine, op=op, name=finding.name, detail="unreduced")
            if finding.detail in (MISSING, UNEXPECTED):
                return dataclasses.replace(held, expected=finding.detail)
            if finding.expected.startswith(OF_TYPE):
                return dataclasses.replace(held, expected=finding.expected)
    if finding.rung == "relation":
        return Aim("relation", engine, (finding.oracle,), op)
    if finding.oracle == "resume" and finding.detail in (MISSING, UNEXPECTED) and engine != "fsdp1":
        return Aim("presence", engine, ("resume",), op, finding.name, expected=finding.detail)
    bounded = finding.rung in ("bounded", "precision")
    bound = finding.bound if bounded else 0.0
    if bounded and finding.detail in (MISSING, UNEXPECTED):
        bound = None
    alone = (
        bounded
        or finding.oracle == "unreduced_gradient"
        or finding.engine in _SOMETIMES_ALLOWED.get(finding.oracle, ())
    )
    if finding.engine == "reference":
        raise UsageError("the finding is about the case itself, not about an engine", "mend the case")
    return Aim("compare", engine, (finding.oracle,), op, finding.name if alone else "", bound)


def _seeded(case: Case, aim: Aim, finding: Finding) -> Aim:
    """The aim of a script with values of its own: at one tensor, whether it is there, or its type."""
    if case.init == "meta" or case.dtypes or any(isinstance(op, Cast) for op in case.schedule):
        raise UsageError("the values of this case are copied into its model", "use the named ones")
    rebuilds = any(isinstance(op, CorruptState) and op.how == "rebuild" for op in case.schedule)
    if rebuilds and aim.kind != "presence":
        raise UsageError("the model of this case is built anew with other values", "use the named ones")
    seeded = dataclasses.replace(aim, values="seeded", name=finding.name or aim.name)
    if aim.kind == "registration" and _class(finding.observed) != _class(finding.expected):
        return dataclasses.replace(seeded, expected=_class(finding.expected))
    if aim.kind == "relation":
        return seeded
    if aim.kind != "compare":
        return dataclasses.replace(seeded, name=aim.name)
    if finding.detail in (MISSING, UNEXPECTED) and _is_attribute(case, aim, finding):
        return dataclasses.replace(seeded, kind="presence", expected=finding.detail)
    if finding.expected.startswith(OF_TYPE) and aim.oracles[0] in ("output", "loss"):
        return dataclasses.replace(seeded, kind="type", expected=finding.expected)
    if finding.error is None:
        return seeded
    if has_precision(case) and finding.rung != "precision":
        raise UsageError("nobody has measured what low precision explains here", "replay the case")
    rounding = aim.bound or ROUNDING[case.dtype]
    if aim.bound is None or not finding.error > LEAST_MARGIN * rounding:
        raise UsageError("the difference is not far above its bound", "use the named values")
    return dataclasses.replace(seeded, error=finding.error, bound=aim.bound)


def _class(text: str) -> str:
    """``"DTensor[2, 2] float32 S(0) on mesh [2]"`` -> ``"DTensor"``."""
    return text.partition("[")[0]


def _is_attribute(case: Case, aim: Aim, finding: Finding) -> bool:
    """Whether what is missing can be read from a parameter or an input.

    Under FSDP1 a rank has a part of the elements, or none: a gradient is missing where all ranks lack it.
    """
    if aim.engine == "fsdp1":
        missing = finding.detail == MISSING and aim.oracles[0] == "gradient"
        return missing and case.fsdp1.use_orig_params
    return aim.oracles[0] in ("gradient", "input_gradient")


_SOMETIMES_ALLOWED = {
    "input_gradient": ("fully_shard",),
    "buffer": ("ddp", "replicate"),
    "gradient": ("fsdp1",),
    "local_gradient": ("fsdp1",),
}
"""What an engine may do otherwise for a documented reason (:mod:`fuzzshard.oracles.allowed`)."""


_NOT_GATHERED = ("registered_parameter", "resume")
"""What FSDP1 has in flat parameters only."""


def _judged_everywhere(engine: str) -> tuple[str, ...]:
    skipped = _NOT_GATHERED if engine == "fsdp1" else ()
    return tuple(
        oracle
        for oracle in TENSOR_ORACLES
        if engine not in _SOMETIMES_ALLOWED.get(oracle, ()) and oracle not in skipped
    )


def adds_in_order(case: Case, engine: str = "") -> bool:
    """Whether any engine, or ``engine``, adds the same numbers in the same order as plain training does."""
    return case.mesh.size <= LARGEST_BITWISE_MESH and not adds_in_another_order(case, engine)
