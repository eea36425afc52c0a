"""What a script has to show: from a finding, or from a signature where the finding is not at hand."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fuzzshard.case.case import Case
from fuzzshard.errors import UsageError
from fuzzshard.oracles.association import adds_in_another_order
from fuzzshard.verdict import MISSING, UNEXPECTED, Finding

Kind = Literal["compare", "registration", "collectives", "replicas", "raise", "desync"]

TENSOR_ORACLES = (
    "output",
    "loss",
    "input_gradient",
    "gradient",
    "local_gradient",
    "parameter",
    "registered_parameter",
    "buffer",
)
LARGEST_BITWISE_MESH = 2
"""Sums of two terms are the same in any order (the bitwise rung of the ladder)."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """``compare`` tensors with the reference, or one of the kinds that need no reference.

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
        """Whether the plain model trains next to the engine's."""
        return self.kind == "compare"

    def watches(self, oracle: str, index: int) -> bool:
        """Whether what ``oracle`` looks at is compared after op ``index``."""
        return self.kind == "compare" and oracle in self.oracles and self.op in (None, index)


def aim_of(case: Case, signature: str, finding: Finding | None) -> Aim:
    """Raises :class:`UsageError` where the signature alone does not say what is expected."""
    if finding is not None:
        return _from_finding(finding)
    kind, _, rest = signature.partition("/")
    engine, _, oracle = rest.partition("/")
    if kind in ("crash", "death", "desync"):
        return Aim("desync" if kind == "desync" else "raise", engine)
    oracle = oracle.partition("/")[0]
    engine = engine or ("fully_shard" if "fully_shard" in case.engines else case.engines[0])
    match oracle:
        case "registration":
            raise UsageError("a script for this signature needs the finding", "pass the finding of its entry")
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
        case _:
            oracles = (oracle,) if oracle else _judged_everywhere(engine)
            return Aim("compare", engine, oracles, bound=0.0 if _is_bitwise(case) else None)


def _from_finding(finding: Finding) -> Aim:
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
        case "collectives":
            return Aim("collectives", engine)
        case "replicas":
            return Aim("replicas", engine)
    bounded = finding.rung == "bounded"
    bound = finding.bound if bounded else 0.0
    if bounded and finding.detail in (MISSING, UNEXPECTED):
        bound = None
    alone = bounded or finding.oracle in _SOMETIMES_ALLOWED
    return Aim("compare", engine, (finding.oracle,), op, finding.name if alone else "", bound)


_SOMETIMES_ALLOWED = {"input_gradient": "fully_shard", "buffer": "ddp"}
"""What an engine may do otherwise for a documented reason (:mod:`fuzzshard.oracles.allowed`)."""


def _judged_everywhere(engine: str) -> tuple[str, ...]:
    return tuple(oracle for oracle in TENSOR_ORACLES if _SOMETIMES_ALLOWED.get(oracle) != engine)


def _is_bitwise(case: Case) -> bool:
    return case.mesh.size <= LARGEST_BITWISE_MESH and not adds_in_another_order(case)
