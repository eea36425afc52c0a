"""What a script has to show: from a finding, or from a signature where the finding is not at hand."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.oracles.association import adds_in_another_order
from fuzzshard.verdict import MISSING, UNEXPECTED, Finding

Kind = Literal[
    "compare",
    "relation",
    "registration",
    "communication",
    "hooks",
    "collectives",
    "replicas",
    "error",
    "warning",
    "raise",
    "desync",
]

TENSOR_ORACLES = (
    "output",
    "loss",
    "input_gradient",
    "gradient",
    "local_gradient",
    "resume",
    "parameter",
    "state_dict",
    "registered_parameter",
    "buffer",
)
LARGEST_BITWISE_MESH = 2
"""Sums of two terms are the same in any order (the bitwise rung of the ladder)."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """``compare`` tensors with the reference, or one of the kinds that need no reference.

    A ``relation`` compares with the same engine, as :mod:`fuzzshard.case.relations` changes the case.
    ``error`` is an error that the case expects and that does not come, ``warning`` one that does or does not.

    ``oracles`` are compared after op ``op``, or after every op if it is None; with a ``name`` only that
    tensor. The difference may be ``bound``, in the unit of the tensor; None means that no bound is known.
    """

    kind: Kind
    engine: str
    oracles: tuple[str, ...] = ()
    op: int | None = None
    name: str = ""
    bound: float | None = 0.0
    expected: str = ""

    @property
    def trains_reference(self) -> bool:
        """Whether another model trains next to the engine's, the plain one or that of a relation."""
        return self.kind in ("compare", "relation")

    def watches(self, oracle: str, index: int) -> bool:
        """Whether what ``oracle`` looks at is compared after op ``index``."""
        return self.trains_reference and oracle in self.oracles and self.op in (None, index)


def aim_of(case: Case, signature: str, finding: Finding | None) -> Aim:
    """Raises :class:`UsageError` where the signature alone does not say what is expected."""
    if finding is not None:
        return _from_finding(case, finding)
    kind, _, rest = signature.partition("/")
    engine, _, oracle = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Aim("desync" if kind == "desync" else "raise", engine)
    oracle = oracle.partition("/")[0]
    engine = engine or ("fully_shard" if "fully_shard" in case.engines else case.engines[0])
    match oracle:
        case "unreduced_gradient" | "leak":
            raise UsageError("no script looks at what an engine holds within", "replay the case")
        case "registration" | "communication" | "hooks" | "warning" | "expectation":
            raise UsageError("a script for this signature needs the finding", "pass the finding of its entry")
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case _:
            oracles = (oracle,) if oracle else _judged_everywhere(engine)
            return Aim("compare", engine, oracles, bound=0.0 if _is_bitwise(case) else None)


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
        case "unreduced_gradient" | "leak":
            raise UsageError("no script looks at what an engine holds within", "replay the case")
    if finding.rung == "relation":
        return Aim("relation", engine, (finding.oracle,), op)
    bounded = finding.rung in ("bounded", "precision")
    bound = finding.bound if bounded else 0.0
    if bounded and finding.detail in (MISSING, UNEXPECTED):
        bound = None
    alone = bounded or finding.engine in _SOMETIMES_ALLOWED.get(finding.oracle, ())
    if finding.engine == "reference":
        raise UsageError("the finding is about the case itself, not about an engine", "mend the case")
    return Aim("compare", engine, (finding.oracle,), op, finding.name if alone else "", bound)


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


def _is_bitwise(case: Case) -> bool:
    return case.mesh.size <= LARGEST_BITWISE_MESH and not adds_in_another_order(case)
