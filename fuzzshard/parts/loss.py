"""What every loss says of itself; generic code asks this, and never which loss it is."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from fuzzshard.parts.op import Choice


class Term(NamedTuple):
    """What one output adds to a loss.

    ``output`` is its expression, ``target`` that of a tensor of the same shape, or empty;
    ``tokens`` are the rows of its last axis on every data-parallel rank. ``rank`` is the
    expression for the rank whose data it is: that is rank 0 where all have equal data. ``inputs``
    are the variables of inputs of the forward that require gradients. ``mesh`` is that of
    tensor-parallel ranks, which share a model that is parallelised; empty for a plain one.
    """

    output: str
    target: str
    tokens: tuple[int, ...]
    rank: str
    inputs: tuple[str, ...] = ()
    mesh: str = ""

    @property
    def same_on_ranks(self) -> bool:
        """Whether all ranks have equal data."""
        return self.rank == "0"


class Loss:
    """One loss: a number made of the outputs of a forward, one term after another."""

    name: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    """What the feature ``loss:<name>`` means."""
    place: ClassVar[int]
    """Its place among the losses when one is drawn."""
    percent: ClassVar[int] = 100
    """How often it is drawn where none before it was; the last one is what is left."""
    is_simpler: ClassVar[bool] = True
    """Whether it is simpler than those after it."""
    is_exact: ClassVar[bool] = False
    """Whether it rounds nothing of small integers."""
    least_rows: ClassVar[int] = 0
    """The fewest rows that a batch may have."""
    why: ClassVar[str] = ""
    """Why it needs these."""
    extension: ClassVar[Choice | None] = None
    """The choice of swarms that it is drawn for, where its case is drawn but for that."""
    late_percent: ClassVar[int] = 0
    """How often it takes the place of another in a case that it fits, once all else is drawn."""
    differentiates_twice: ClassVar[bool] = False
    """Whether it is made of gradients of inputs, so that a backward goes through a backward."""
    changes_outputs: ClassVar[bool] = False
    """Whether it changes outputs in place, of which no backward may need the old values."""
    context: ClassVar[str] = ""
    """What it and its backward have to be in, where tensor-parallel ranks share it: it is drawn
    with a plan.
    """
    sources: ClassVar[str] = ""
    """The functions that its terms call (:attr:`fuzzshard.parts.op.Op.sources`)."""

    def text(self, term: Term) -> str:
        """Return the expression of a term."""
        raise NotImplementedError
