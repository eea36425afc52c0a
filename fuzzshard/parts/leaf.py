"""What every leaf module says of itself; generic code asks this, and never which leaf it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.op import Reasons
from fuzzshard.parts.part import Part, Shape

T = TypeVar("T")

Style = Literal["colwise", "rowwise", "sequence", "dtensor"]
"""The styles of ``parallelize_module``; and a module that ``distribute_module`` gives DTensors."""
Form = Literal["ids", "sequence", "channels"]
"""What a module wants of its argument: ids, a sequence axis, or the features as channels, before
the sequence axis where there is one.
"""
Role = Literal["ids", "images", "norm", "operators", "experts", "attention"]
"""What asks for a leaf of one kind: an input, tensor parallelism between two layers, an engine."""


@dataclasses.dataclass(frozen=True)
class Value:
    """The type of one value: a float tensor with ``size`` features, or ids below ``size``.

    ``patches`` is the length of the axis that a two-dimensional convolution puts before the
    features.
    """

    size: int
    ids: bool = False
    patches: int = 0

    def dims(self, seq: int) -> int:
        """Return how many dimensions it has, in sequences of ``seq``."""
        return 1 + (seq > 0) + (self.patches > 0) + (not self.ids)

    def __str__(self) -> str:
        patches = f" in {self.patches} patches" if self.patches else ""
        return f"ids below {self.size}" if self.ids else f"width {self.size}{patches}"


class Decisions(Protocol):
    """Where drawn leaves get their decisions from: :class:`fuzzshard.strategies.tape.Tape`."""

    def chance(self, percent: int) -> bool:
        """Return True with this probability; False is the simpler one."""

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, simplest first."""


class DrawingLeaf(NamedTuple):
    """What a leaf is drawn for: values of ``width`` features, a result of ``out`` (where it can be
    chosen).

    ``widths`` are those that the case uses; ``exact``: values have to stay small integers;
    ``sharing`` ranks are to have as many experts each; ``sequence``: values have an axis of that.
    """

    tape: Decisions
    width: int
    out: int
    widths: tuple[int, ...]
    exact: bool
    sharing: int = 1
    sequence: bool = False


class Kind(NamedTuple):
    """What leaves of a class may be ``of``, with an input of some width: the feature
    ``leaf:<name>`` of cases that have one. And one way to draw such a leaf: a choice of swarms.

    ``place`` orders the choices of swarms; -1: such a leaf is drawn in its ``role``, if at all.
    ``exact``: small integers stay small integers. ``resizes``: the width of the result is free.
    ``saves_result``: its backward needs its result, which nobody may change in place then. Swarms
    with a choice that it is ``excluded_by`` do not have it.
    """

    name: str
    meaning: str
    place: int = -1
    draw: Callable[[DrawingLeaf], Leaf] | None = None
    exact: bool = False
    resizes: bool = False
    saves_result: bool = False
    role: Role | None = None
    excluded_by: tuple[str, ...] = ()
    of: Callable[[Any, int], bool] = lambda leaf, width: True

    @property
    def in_swarms(self) -> bool:
        """Whether swarms choose it."""
        return self.place >= 0


class Leaf(Part, frozen=True, kw_only=True):
    """A module without children in the graph: it takes one value, and returns one.

    A leaf stores only what cannot be inferred: its input width follows from the graph. Widths that
    methods take are those of its argument.
    """

    complexity: ClassVar[int]
    """How much a reader has to know to read it: the place of the leaf in the order of
    simplicity.
    """
    noun: ClassVar[str]
    """What it is called in a sentence."""
    prefix: ClassVar[str]
    """What generated children of its kind are called, before a number."""
    kinds: ClassVar[tuple[Kind, ...]]
    has_parameters: ClassVar[bool] = True
    sizes: ClassVar[tuple[str, ...]] = ()
    """The fields that are sizes of tensors, which shrinking makes smaller."""
    styles: ClassVar[tuple[Style | Literal["elementwise"], ...]] = ()
    """How tensor parallelism may split it; the first is the one by the rows of its weight. An
    elementwise module, each element of whose result is of one element of the value alone, is not
    split: DTensors may pass.
    """
    takes: ClassVar[tuple[Form, ...]] = ()
    buffers: ClassVar[Literal["none", "constant", "updated"]] = "none"
    """Which buffers it has: ``updated`` ones are other values after a forward in training, of the
    rows that this rank has, and after a recomputation again.
    """
    mixes_buffers: ClassVar[bool] = True
    """Whether it computes with buffers of another dtype than its parameters and its argument: no
    policy of mixed precision casts buffers, but that of FSDP1.
    """
    inner: ClassVar[Mapping[Role, str]] = {}
    """The module in it that an engine replaces, by its role. That of ``experts`` has a ``weight``
    with a matrix for each, along its first dim; rows come to it in the order of their experts,
    with the number of rows of each. That of ``attention`` calls ``scaled_dot_product_attention``
    with query, key and value of shape (rows, heads, positions, width).
    """
    helpers: ClassVar[tuple[str, ...]] = ()
    """The classes that :meth:`constructor` may name beside ``torch.nn``, as source."""

    @property
    def saves_result(self) -> bool:
        """Whether its backward needs its result, which nobody may change in place then."""
        return any(kind.saves_result for kind in self.kinds)

    @property
    def drops(self) -> float | None:
        """The share of elements that its masks drop; None: it is no dropout."""
        return None

    @property
    def hides_buffers(self) -> bool:
        """Whether its buffers are in no state dict."""
        return False

    def constructor(self, width: int) -> str:
        """Return the expression that builds it."""
        raise NotImplementedError

    def text(self, width: int) -> str:
        """Return what drawings say of it."""
        return self.constructor(width).removeprefix("nn.")

    def parameters(self, width: int) -> Mapping[str, Shape]:
        """Names and shapes of its parameters."""
        return {}

    def misfits(self, path: str, value: Value, seq: int) -> Reasons:
        """Yield why it cannot be called with ``value``, in sequences of ``seq``."""
        if value.ids:
            yield f"{path!r} is called with {value}", "only an embedding takes ids"
        if "sequence" in self.takes and seq < 1:
            yield f"{path!r} needs a sequence axis", "set inputs.seq to at least 1"
        if value.patches and "channels" in self.takes:
            yield f"{self.noun} {path!r} is called with patches", "put it before the convolution"

    def least_rows(self, width: int, seq: int) -> int:
        """Return the fewest rows that it can be called with."""
        return 0

    def result(self, value: Value) -> Value:
        """Return what it makes of a value."""
        return value

    def example(self, value: Value) -> Value:
        """Return a value that it can be called with: ``value`` where that is its choice."""
        return value

    def result_dtype(
        self, dtype: Dtype | None, own: set[Dtype], *, on_cuda: bool = False
    ) -> Dtype | None:
        """Return the dtype of its result, parameters being of ``own`` dtypes; None: torch refuses
        the call.
        """
        return dtype if own == {dtype} else None

    def lacks_backward(self, *, twice: bool, on_cuda: bool, in_evaluation: bool) -> str:
        """Return why it has no backward, or none of a backward if one comes ``twice``; empty if it
        has.
        """
        return ""

    def simpler(self) -> Leaf:
        """Return the same leaf with its options at their simplest; itself where there are none."""
        return self

    def apart(self, width: int) -> dict[str, Leaf]:
        """Return the leaves it is made of, by the names of their parameters; empty where it is one
        thing.
        """
        return {}


class Biased(Leaf, frozen=True, kw_only=True):
    """A leaf whose weights may have biases, by a field behind its sizes."""

    if TYPE_CHECKING:
        bias: bool

    @property
    def no_bias(self) -> str:
        """The argument that leaves biases out."""
        return "" if self.bias else ", bias=False"

    def with_bias(self, **weights: Shape) -> dict[str, Shape]:
        """Return the ``weights``, and a bias for each row of the first."""
        return weights | {"bias": weights["weight"][:1]} if self.bias else weights

    @override
    def simpler(self) -> Self:
        return replace(self, bias=False)


class Projection(Biased, frozen=True, kw_only=True):
    """A leaf that makes ``out`` features of any number."""

    out: int
    bias: bool = True

    sizes: ClassVar[tuple[str, ...]] = ("out",)

    @override
    def text(self, width: int) -> str:
        return f"{self.noun}({width} → {self.out}{self.no_bias})"

    @override
    def result(self, value: Value) -> Value:
        return dataclasses.replace(value, size=self.out)


def draw_bias(drawing: DrawingLeaf) -> bool:
    """Return whether a drawn leaf has a bias: three of four have."""
    return not drawing.tape.chance(25)
