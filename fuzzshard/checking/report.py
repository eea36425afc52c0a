"""What a check says of each training, and of all together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE
from fuzzshard.subject.report import KINDS, Difference, Reached, Row
from fuzzshard.subject.subject import Outline, Training, Variation

Outcome = Literal["equal", "different", "error", "hang", "not judged"]
ORDER: tuple[Reached, ...] = ("bitwise", "rounding", "different")


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one training of the parallelised model compares with that of the plain one.

    ``message`` says what an engine raised, where ranks hang, or why nothing was judged; ``place``
    is what was being done then. ``stacks`` are those of all threads of ranks that hang.
    """

    training: Training
    outcome: Outcome
    rows: tuple[Row, ...] = ()
    difference: Difference | None = None
    message: str = ""
    place: str = ""
    stacks: str = ""
    limits: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    outline: Outline = Outline()
    seconds: float = 0.0

    @property
    def is_finding(self) -> bool:
        """Whether it accuses how the model is parallelised."""
        return self.outcome in ("different", "error", "hang")

    @property
    def signature(self) -> str:
        """A name for the kind of finding: no step, no name of a parameter, no number."""
        if self.difference is not None:
            like = re.sub(r" \(.+\)", "", self.difference.looks_like)  # other gradients say that
            like = re.sub(r"\d[\d.]*((, | and )\d[\d.]*)*", "#", like)
            return "/".join(filter(None, (self.outcome, self.difference.kind, like)))
        raised = re.sub(r"[\d.,]+", "#", self.message.partition(":")[0])
        return "/".join(filter(None, (self.outcome, raised if self.outcome == "error" else "")))

    @property
    def reached(self) -> Reached:
        """The weakest comparison among all kinds."""
        return max((row.reached for row in self.rows), key=ORDER.index, default="bitwise")

    def lines(self) -> Iterator[str]:
        """Yield the report as people read it."""
        training = self.training
        who = training.engine or "parallelize"
        number = len(self.blocks)
        blocks = f", {number} blocks and the root" if number else ""
        partly = self.outcome == "equal" and any(row.left_out for row in self.rows)
        found = f"{self.outcome}{' where compared' if partly else ''}"
        yield f"mesh {training.mesh}, {who}{blocks}: {found}  ({self.seconds:.1f} s)"
        if training.variation != Variation():
            yield f"  with steps: {training.steps}, microbatches: {training.microbatches}"
        for words in training.variation.words():
            yield f"  with {words}"
        for row in self.rows:
            yield f"  {row.kind:<11} {row}"
        if (first := self.difference) is not None:
            what = f" {first.name}" if first.name else ""
            yield f"  first difference: {first.kind}{what}, {first.place}"
            yield f"    observed    {first.observed}"
            yield f"    expected    {first.expected}"
            if first.looks_like:
                yield f"    looks like  {first.looks_like}"
        if self.message:
            text = f"{self.place}: {self.message}" if self.place else self.message
            yield from (f"  {line}" for line in text.splitlines())
        for limit in self.limits:
            yield f"  limit: {limit}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a check says of all trainings."""

    trainings: tuple[TrainingReport, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 for a difference, an error or a hang, 3 where something was not judged, else 0."""
        outcomes = {training.outcome for training in self.trainings}
        if any(training.is_finding for training in self.trainings):
            return EXIT_FINDING
        return EXIT_INCONCLUSIVE if "not judged" in outcomes or not outcomes else EXIT_CLEAN

    def require(self, least: Literal["bitwise", "rounding"] = "rounding") -> None:
        """Raise :class:`AssertionError` with the whole report unless all trainings are equal: bit
        for bit, or but for rounding.
        """
        __tracebackhide__ = True  # pytest shows the report and no code of ours
        good = all(
            training.outcome == "equal" and ORDER.index(training.reached) <= ORDER.index(least)
            for training in self.trainings
        )
        if not good or not self.trainings:
            due = "bitwise equal" if least == "bitwise" else "equal but for rounding"
            raise AssertionError(f"not {due}\n{self}")

    def __str__(self) -> str:
        return "\n".join(line for training in self.trainings for line in training.lines())


def weakest(ranks: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """Return one row for each kind, from what all ranks say."""
    return tuple(_weakest([row for rows in ranks for row in rows if row.kind == k]) for k in KINDS)


def _weakest(rows: Sequence[Row]) -> Row:
    worst = max(rows, key=lambda row: (ORDER.index(row.reached), row.worst), default=None)
    if worst is None:
        return Row(kind="outputs")
    least = max(rows, key=lambda row: (row.left_out, row.compared))
    return msgspec.structs.replace(
        worst,
        compared=least.compared,
        left_out=least.left_out,
        differing=max(row.differing for row in rows),
    )
