"""What a check finds out: comparisons, the first difference, limits. No torch import."""

from __future__ import annotations

from typing import Literal

import msgspec

from fuzzshard.subject.subject import Outline

Kind = Literal["outputs", "loss", "gradients", "parameters", "buffers", "state dict"]
KINDS: tuple[Kind, ...] = (
    "outputs",
    "loss",
    "gradients",
    "parameters",
    "buffers",
    "state dict",
)
Reached = Literal["bitwise", "rounding", "different"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """How tensors of one kind compare.

    ``worst`` is the largest part of its bound that a difference takes, where ``reached`` is
    "rounding"; ``precision`` names what was rounded. ``compared`` counts tensors, and ``left_out``
    those that should have been compared and could not.
    """

    kind: Kind
    compared: int = 0
    left_out: int = 0
    differing: int = 0
    reached: Reached = "bitwise"
    worst: float = 0.0
    precision: str = ""

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.left_out} not compared" if self.left_out else "none"
        left_out = f", {self.left_out} not compared" if self.left_out else ""
        match self.reached:
            case "bitwise":
                return f"{self.compared} bitwise equal{left_out}"
            case "rounding":
                part = f"{self.worst:.1f}" if self.worst >= 0.05 else "less than 0.1"
                return (
                    f"{self.compared} within rounding of {self.precision}, worst {part} of the "
                    f"bound{left_out}"
                )
            case "different":
                return f"{self.differing} of {self.compared} differ{left_out}"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parallelised model first differs from the plain one.

    ``name`` is that of the parameter, buffer or module in the plain model, ``step`` counts from 0,
    -1: before training. ``looks_like`` says what that looks like, if it is known.
    """

    kind: Kind
    name: str
    step: int
    observed: str
    expected: str
    rank: int = 0
    microbatch: int = -1
    looks_like: str = ""

    @property
    def place(self) -> str:
        """When and where, in words."""
        when = "before training" if self.step < 0 else f"step {self.step}"
        if self.microbatch >= 0:
            when += f", microbatch {self.microbatch}"
        return f"{when}, rank {self.rank}"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank found out in one training.

    ``limits`` say what could not be compared and why. ``unequal_runs`` names where the plain model
    differs from itself, and ``refused`` why an engine takes no such model: both end the check.
    """

    rows: tuple[Row, ...] = ()
    difference: Difference | None = None
    limits: tuple[str, ...] = ()
    unequal_runs: str = ""
    refused: str = ""
    blocks: tuple[str, ...] = ()
    outline: Outline = Outline()
