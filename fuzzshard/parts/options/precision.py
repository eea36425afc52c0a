"""Mixed precision, as ``fully_shard`` and FSDP1 have it. To add an option: its class, and its
field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of
from fuzzshard.parts.part import Shape


class Precision(WithOptions["PrecisionOption"], frozen=True, kw_only=True):
    """Mixed precision: ``MixedPrecisionPolicy``, or that of FSDP1."""

    param: Dtype | None = None
    reduce: Dtype | None = None
    output: Dtype | None = None
    cast_inputs: bool = True
    keep: Literal["vectors"] | None = None
    buffer: Dtype | None = None

    def computes(self, shape: Shape) -> Dtype | None:
        """Return the dtype that a parameter is computed with; None: its own."""
        keeps = self.keep is not None and len(shape) == 1
        return None if keeps else self.param

    @property
    def dtypes(self) -> frozenset[Dtype]:
        """All dtypes that it names."""
        return frozenset(dtype for dtype in self._named.values() if dtype)

    @property
    def _named(self) -> dict[str, Dtype | None]:
        """The dtypes, or None, of the fields that have one."""
        return {name: getattr(self, name) for name in ("param", "reduce", "output", "buffer")}

    def within(self, dtypes: Mapping[Dtype, Dtype]) -> Precision:
        """Return the policy with each of its dtypes replaced by what ``dtypes`` maps it to."""
        mapped = {name: dtype and dtypes[dtype] for name, dtype in self._named.items()}
        return replace(self, **mapped)

    def keeping(self) -> Precision:
        """Return the policy for a model that also computes with vectors in their own dtype."""
        return replace(self, keep="vectors")

    def features(self) -> Iterator[str]:
        """Yield the features of its options."""
        for option, value in self.told():
            yield from option.features(value, self)


class PrecisionOption(Option):
    """An option of mixed precision."""

    prefix = "precision:"
    variation: ClassVar[int] = 0
    """Its place among those in which the policies of groups differ, from 1; 0: they do not."""

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a policy of ``case``."""
        return self.by_chance(tape)

    def varied(self, tape: Tape, case: Case, value: Any) -> Any:
        """Return another value for one group."""
        return self.draw(tape, case)

    def features(self, value: Any, policy: Precision) -> Iterator[str]:
        """Yield the features of a value."""
        return self.named(value)


class DtypeOption(PrecisionOption):
    """A dtype, under the name of its field."""

    @override
    def arguments(self, value: Dtype | None) -> tuple[str, ...]:
        return (f"{self.name}_dtype=torch.{value}",) if value else ()


class Param(DtypeOption):
    """The dtype that parameters are computed in, and inputs are cast to."""

    name, place = "param", 1
    weights = (("bfloat16", 8), ("float16", 3), (None, 2))
    meanings = {
        "precision:param": "parameters computed in another dtype",
        "precision:bfloat16": "parameters computed in bfloat16",
        "precision:float16": "parameters computed in float16",
    }

    @override
    def features(self, value: Dtype | None, policy: Precision) -> Iterator[str]:
        """A case that is judged again in finer dtypes has others than those of half precision."""
        if value is not None:
            yield "precision:param"
        yield from self.named(value)


class Reduce(DtypeOption):
    """The dtype that gradients are reduced in, and accumulated in until then."""

    name, place, variation = "reduce", 2, 1
    weights = ((None, 4), ("float32", 4), ("bfloat16", 2))
    meanings = {
        "precision:reduce": "a dtype of its own for reduced gradients, beside that of parameters",
        "precision:reduce_as_param": "gradients reduced in the dtype of the parameters",
        "precision:reduce_only": "a dtype for reduced gradients only",
    }

    @override
    def features(self, value: Dtype | None, policy: Precision) -> Iterator[str]:
        if policy.param:
            yield "precision:reduce" if value else "precision:reduce_as_param"
        elif value:
            yield "precision:reduce_only"


class Output(DtypeOption):
    """The dtype that the outputs of a wrapped module are cast to."""

    name, place, variation = "output", 0, 2
    meanings = {"precision:output": "a dtype for outputs"}

    @override
    def draw(self, tape: Tape, case: Case) -> Dtype | None:
        return tape.weighted(((None, 5), (case.dtype, 4), ("bfloat16", 1)))

    @override
    def varied(self, tape: Tape, case: Case, value: Dtype | None) -> Dtype | None:
        return None if value else case.dtype


class CastInputs(PrecisionOption):
    """Whether the inputs of a wrapped module are cast to the dtype of its parameters."""

    name, place, variation, rare = "cast_inputs", 3, 3, (False, 20)
    texts = {False: "cast_forward_inputs=False"}
    meanings = {"precision:no_cast": "mixed precision that does not cast inputs"}

    @override
    def varied(self, tape: Tape, case: Case, value: bool) -> bool:
        return not value


class Keep(PrecisionOption):
    """Parameters of one dimension keep their dtype; drawn where the model computes with that."""

    name, place = "keep", 4
    texts = {"vectors": "param_dtype_override_fn=lambda p: p.dtype if p.dim() == 1 else None"}
    meanings = {
        "precision:kept": "mixed precision that leaves parameters of one dimension as they are"
    }


class Buffer(DtypeOption):
    """The dtype of buffers from the first forward on, which FSDP1 alone has."""

    name, place = "buffer", 5


PRECISION_OPTIONS = options_of(Precision, PrecisionOption)
"""In the order of their fields."""
