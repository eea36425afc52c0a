"""Mixed precision, as ``fully_shard`` and FSDP1 have it. To add an option: its file, and its field
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, ClassVar, Literal

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import Case, Option, Tape, WithOptions, options_of
from fuzzshard.parts.part import Shape

Trait = Literal["casts_inputs", "keeps_vectors"]
"""What somebody else has to know of a policy: that inputs are cast to the dtype of parameters,
that parameters of one dimension keep theirs.
"""
Role = Literal["parameters", "gradients", "outputs"]


class Precision(WithOptions["PrecisionOption", Trait], frozen=True, kw_only=True):
    """Mixed precision: ``MixedPrecisionPolicy``, or that of FSDP1."""

    param: Dtype | None = None
    reduce: Dtype | None = None
    output: Dtype | None = None
    cast_inputs: bool = True
    keep: Literal["vectors"] | None = None

    def dtype_of(self, what: Role) -> Dtype | None:
        """Return the dtype that it names for computing with parameters, reducing gradients, or
        outputs.
        """
        dtype: Dtype | None = next(value for o, value in self.told() if o.of == what)
        return dtype

    def computes(self, shape: Shape) -> Dtype | None:
        """Return the dtype that a parameter is computed with; None: its own."""
        keeps = self.does("keeps_vectors") and len(shape) == 1
        return None if keeps else self.dtype_of("parameters")

    @property
    def dtypes(self) -> frozenset[Dtype]:
        """All dtypes that it names."""
        return frozenset(value for option, value in self.told() if option.of and value)

    def with_dtypes(self, dtypes: Mapping[Role, Dtype | None]) -> Precision:
        """Return it with other dtypes."""
        return replace(self, **{o.name: dtypes[o.of] for o in self.options if o.of in dtypes})

    def within(self, dtypes: Mapping[Dtype, Dtype]) -> Precision:
        """Return it with each dtype replaced by another one."""
        named = {o.of: value and dtypes[value] for o, value in self.told() if o.of}
        return self.with_dtypes(named)

    def keeping(self) -> Precision:
        """Return it for a model that computes with vectors in their own dtype, too."""
        return replace(self, **{o.name: o.kept for o in self.options if o.kept is not None})

    def without_casts(self) -> Precision:
        """Return it with inputs and outputs treated as by default."""
        return replace(self, **{o.name: o.default for o in self.options if o.of_activations})

    def new_fields(self) -> Iterator[str]:
        """Yield the fields of torch's policy that it needs, and that not every supported torch
        has.
        """
        return (o.new_field for o, v in self.told() if o.new_field and v != o.default)

    def features(self) -> Iterator[str]:
        """Yield the features of its options."""
        for option, value in self.told():
            yield from option.features(value, self)


class PrecisionOption(Option):
    """One of them."""

    prefix = "precision:"
    of: ClassVar[Role | None] = None
    """What it names the dtype of."""
    kept: ClassVar[Any] = None
    """The value by which vectors keep their dtype."""
    of_activations: ClassVar[bool] = False
    """Whether it says what becomes of inputs or outputs."""
    new_field: ClassVar[str] = ""
    """The field of torch's policy that it needs, where not every supported torch has that."""
    variation: ClassVar[int] = 0
    """Its place among those in which the policies of groups differ, from 1; 0: they do not."""

    def draw(self, tape: Tape, case: Case) -> Any:
        """Return a value for a policy of ``case``."""
        return self.default

    def varied(self, tape: Tape, case: Case, value: Any) -> Any:
        """Return another value for one group."""
        return self.draw(tape, case)

    def mutated(self, rng: Random, case: Case) -> Any:
        """Return a value for a mutant."""
        return self.default

    def features(self, value: Any, policy: Precision) -> Iterator[str]:
        """Yield the features of a value."""
        return self.named(value)


class DtypeOption(PrecisionOption):
    """A dtype, under the name of its field."""

    @override
    def arguments(self, value: Dtype | None) -> tuple[str, ...]:
        return (f"{self.name}_dtype=torch.{value}",) if value else ()


PRECISION_OPTIONS = options_of(Precision, __name__, __path__, PrecisionOption)
"""In the order of their fields."""
