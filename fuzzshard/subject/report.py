"""What a check says of each training, and of all together. No torch import."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import msgspec

from fuzzshard.errors import EXIT_CLEAN, EXIT_FINDING, EXIT_INCONCLUSIVE
from fuzzshard.subject.subject import Outline, Training, Variation

Kind = Literal["outputs", "loss", "gradients", "parameters", "buffers", "state dict"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Reached = Literal["bitwise", "rounding", "different"]
ORDER: tuple[Reached, ...] = get_args(Reached)
MOST_WARNED, MOST_OF_WARNING = 3, 300
"""How many warnings a report has, and how many characters of each."""
MOST_LOST = 4
"""How many states a report names that did not come back."""
Direction = Literal["forward", "backward", "recomputed"]
How = Literal["outputs", "missing", "extra", "inputs", "none", "hidden"]
HOWS: tuple[How, ...] = get_args(How)
Outcome = Literal["equal", "different", "error", "hang", "not judged"]


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


def module_of(output: str) -> str:
    """Return the module that gives an output of this name; "" for the model."""
    name = re.sub(r"( \(call \d+\))?(\[\d+\])?$", "", output)
    return "" if name == "output" else name


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


class FirstOperator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator of a step when both models are trained once more: the first one that differs.

    ``outputs``: it takes what is equal in both and gives what is not. If there is none, it is the
    first that takes what is not equal (``inputs``), or that one model alone runs, the plain one
    (``missing``) or the other (``extra``). ``none``: all that were ``compared`` are equal;
    ``hidden``: so is what differed before. ``line`` is the user's that calls it, or called the
    operator whose backward it is in.
    ``position`` counts the operators of the plain model before it.
    """

    how: How = "none"
    position: int = 0
    compared: int = 0
    name: str = ""
    direction: Direction = "forward"
    module: str = ""
    call: int = 0
    line: str = ""
    rank: int = 0
    observed: str = ""
    expected: str = ""

    def lines(self) -> Iterator[str]:
        """Yield what it is in three lines at most."""
        if not self.name:
            yield f"first operator that differs: none of {self.compared}, forward and backward"
            yield (
                "  nothing differs where they are recorded, which runs what is compiled eagerly"
                if self.how == "hidden"
                else "  each rank's own are right: what reduces, weighs or changes gradients isn't"
            )
            return
        again = " in the backward" * (self.direction == "recomputed")
        call = f" (call {self.call})" if self.call > 1 else ""
        of = f" of {self.module or 'the model itself'}{call}"
        if not self.call and not again:
            of = ", outside of the model"
        yield (
            f"first operator that differs: {self.name}, {self.direction}{again}{of}, "
            f"rank {self.rank}"
        )
        yield f"  called by   {self.line or 'no line of your own'}"
        match self.how:
            case "outputs":
                due = "in the forward" if again else "expected"
                yield f"  equal inputs give {self.observed}, {due} {self.expected}"
            case "inputs":
                yield (
                    f"  takes {self.observed}, expected {self.expected}: no operator before it "
                    "made that of equal inputs"
                )
            case "missing":
                yield "  the plain model alone runs it"
            case _:
                yield "  the parallelised model alone runs it"


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one training of the parallelised model compares with that of the plain one, on one rank
    or on all.

    ``message`` says what an engine raised, where ranks hang, or why nothing was judged; ``place``
    is what was being done then. ``operator`` is the first one that differs, where the difference
    is one of outputs, losses or gradients; ``side_by_side`` are all operators of that step on its
    rank. ``lost`` are the states that were not the same after
    the training was resumed, ``races`` accesses to one memory that nothing orders, ``warned`` what
    the parallelised model alone was warned of. ``stacks`` are
    those of all threads of ranks that hang. ``limits`` say what could not be compared and why.
    """

    training: Training
    outcome: Outcome
    rows: tuple[Row, ...] = ()
    difference: Difference | None = None
    operator: FirstOperator | None = None
    side_by_side: tuple[FirstOperator, ...] = ()
    lost: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
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
    def brief(self) -> TrainingReport:
        """The report without what only ranks, fuzzing and the page need."""
        return msgspec.structs.replace(self, outline=Outline(), side_by_side=())

    @property
    def signature(self) -> str:
        """A name for the kind of finding: no step, no name of a parameter, no number."""
        if self.difference is not None:
            like = re.sub(r" \(.+\)", "", self.difference.looks_like)  # other gradients say that
            like = re.sub(r"\d[\d.]*((, | and )\d[\d.]*)*", "#", like)
            return "/".join(filter(None, (self.outcome, self.difference.kind, like)))
        if self.races:
            return f"{self.outcome}/race"
        raised = re.sub(r"[\d.,]+", "#", self.message.partition(":")[0])
        return "/".join(filter(None, (self.outcome, raised if self.outcome == "error" else "")))

    @property
    def result(self) -> str:
        """What came of it, in a line."""
        if (first := self.difference) is not None:
            what = f"{first.kind} {first.name}".strip()
            like = f": {first.looks_like}" if first.looks_like else ""
            return f"{self.outcome}, {what}, {first.place}{like}"
        if self.races:
            return f"{self.outcome}, a race: {self.races[0]}"
        if self.outcome == "equal":
            return "equal" if self.reached == "bitwise" else f"equal within {self.reached}"
        return ": ".join(filter(None, (self.outcome, self.place, *self.message.splitlines()[:1])))

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
        if training.resume:
            other = f" in the mesh {training.resume_mesh}" * (training.resume_mesh is not None)
            whole = ", by full state dicts" * training.full_state_dicts
            yield f"  saved, built anew{other} and loaded before step {training.resume}{whole}"
        if training.global_batch:
            yield "  the plain model on the batches of all ranks as one"
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
        if self.operator is not None:
            yield from (f"  {line}" for line in self.operator.lines())
        if self.lost:
            more = f" and {len(self.lost) - MOST_LOST} more" * (len(self.lost) > MOST_LOST)
            yield f"  lost when resumed: {', '.join(self.lost[:MOST_LOST])}{more}"
        for race in self.races:
            yield f"  race: {race}"
        if self.message:
            text = f"{self.place}: {self.message}" if self.place else self.message
            yield from (f"  {line}" for line in text.splitlines())
        for warning in self.warned[:MOST_WARNED] if self.is_finding else ():
            yield f"  warned: {warning[:MOST_OF_WARNING]}"
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

    def table(self) -> Iterator[str]:
        """Yield a line for each training."""
        width = max((len(report.training.label) for report in self.trainings), default=0)
        for report in self.trainings:
            label = report.training.label
            yield f"{label:<{width}}  {report.result}  ({report.seconds:.1f} s)"

    def __str__(self) -> str:
        return "\n".join(line for training in self.trainings for line in training.lines())


def merged(ranks: Sequence[TrainingReport]) -> TrainingReport:
    """Return what all ranks say together of a training that has ended on each."""
    rows = weakest([report.rows for report in ranks])
    limits = tuple(dict.fromkeys(limit for report in ranks for limit in report.limits))
    whole = msgspec.structs.replace(ranks[0], rows=rows, limits=limits)
    blind = any(row.kind == "gradients" and row.left_out and not row.compared for row in rows)
    if whole.outcome != "equal" or not blind:
        return whole
    why = "no gradient can be compared"
    return msgspec.structs.replace(whole, outcome="not judged", message=why)


def weakest(ranks: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """Return one row for each kind, from what all ranks say."""
    of_kind = ([row for rows in ranks for row in rows if row.kind == kind] for kind in KINDS)
    return tuple(
        msgspec.structs.replace(
            max(rows, key=lambda row: (ORDER.index(row.reached), row.worst)),
            compared=max(rows, key=lambda row: (row.left_out, row.compared)).compared,
            left_out=max(row.left_out for row in rows),
            differing=max(row.differing for row in rows),
        )
        for rows in of_kind
        if rows
    )
