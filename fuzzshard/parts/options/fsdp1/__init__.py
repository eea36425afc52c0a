"""Options of ``FullyShardedDataParallel``. To add one: its file, and its field here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from fuzzshard.parts.option import (
    Case,
    DrawingFSDP1,
    Mapping,
    Option,
    Tape,
    WithOptions,
    options_of,
)
from fuzzshard.parts.options.precision import Precision

Trait = Literal[
    "replicates",
    "hybrid",
    "takes_mesh",
    "has_originals",
    "wraps_by_policy",
    "checks_order",
    "offloads",
    "spoils",
    "starts_halved",
    "starts_on_meta",
    "torch_hook",
    "own_hook",
    "summons",
    "doubles",
    "zeroes",
]
"""What values do that somebody else has to know: nothing is sharded, or over one axis of two; it
is given a device mesh; the optimizer has original parameters; an auto-wrap policy makes the units;
orders of execution are checked; parameters are on the CPU; only the first rank has the right
values, or all have half of them, or the model is on the meta device; which hook there is; full
parameters are summoned after a step, and doubled or zeroed.
"""


class FSDP1(WithOptions["FSDP1Option", Trait], frozen=True, kw_only=True):
    """Options of the engine ``fsdp1``, for all its units."""

    strategy: Literal[
        "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"
    ] = "full_shard"
    use_orig_params: bool = False
    wrapping: Literal["manual", "policy"] = "manual"
    forward_prefetch: bool = False
    backward_prefetch: Literal["pre", "post"] | None = "pre"
    limit_all_gathers: bool = True
    offload: bool = False
    precision: Precision | None = None
    debug: Literal["off", "detail"] = "off"
    initial: Literal["equal", "first_rank", "applied", "meta"] = "equal"
    hook: Literal["torch", "average"] | None = None
    summon: (
        Literal["written", "discarded", "on_host", "first_rank", "gradients", "root"] | None
    ) = None
    device_mesh: bool = False

    def summoned(self) -> tuple[str, ...]:
        """Return the arguments of ``summon_full_params()`` after a step."""
        return tuple(text for option, value in self.told() if (text := option.summoned(value)))


class FSDP1Option(Option):
    """One of them."""

    def __init_subclass__(cls) -> None:
        cls.prefix = f"fsdp1:{cls.name}_"

    traits: ClassVar[Mapping[Any, tuple[Trait, ...]]] = {}
    further: ClassVar[bool] = False
    """Whether half of the cases leave it at its default."""

    def draw(self, drawing: DrawingFSDP1) -> Any:
        """Return a value for a case that has the options of lower places."""
        return self.default

    def draw_for_orders(self, tape: Tape) -> Any:
        """Return a value for a case of ranks that run other modules than their peers."""
        return self.default

    def features(self, value: Any, case: Case) -> Iterator[str]:
        """Yield the features of a value."""
        return self.named(value)

    def summoned(self, value: Any) -> str:
        """Return its arguments of ``summon_full_params()``."""
        return ""


def shards(case: Case) -> bool:
    """Whether a rank has parts of FSDP1's parameters: over all ranks, or over one axis if it is
    hybrid.

    It takes ``NO_SHARD`` for every strategy where these are one rank (``_init_core_state``).
    """
    num_shards = case.mesh.shard if case.fsdp1.does("hybrid") else case.mesh.data_size
    return not case.fsdp1.does("replicates") and num_shards > 1


FSDP1_OPTIONS = options_of(FSDP1, __name__, __path__, FSDP1Option)
"""In the order of their fields."""
