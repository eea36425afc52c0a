"""Options of ``FullyShardedDataParallel``. To add one: its class, and its field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from msgspec.structs import replace
from typing_extensions import override

from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.option import (
    Case,
    DrawingFSDP1,
    Option,
    Tape,
    WithOptions,
    options_of,
)
from fuzzshard.parts.options.precision import Precision

Summoned = Literal[
    "written", "discarded", "on_host", "first_rank", "root", "gradients", "discarded_gradients"
]


_HALVES: dict[str, Dtype] = {"fp16": "float16", "bf16": "bfloat16"}
"""In what hooks that compress gradients average them."""


class FSDP1(WithOptions["FSDP1Option"], frozen=True, kw_only=True):
    """Options of the engine ``fsdp1``, for all its units."""

    strategy: Literal[
        "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "mixed"
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
    hook: Literal["torch", "average", "fp16", "bf16"] | None = None
    summon: Summoned | None = None
    device_mesh: bool = False

    exact_hook: ClassVar = "torch"
    """The hook that averages gradients as they are."""

    @property
    def is_hybrid(self) -> bool:
        """Whether it shards over one axis of two."""
        return self.strategy.startswith("hybrid")

    @property
    def summons_gradients(self) -> bool:
        """Whether gradients are summoned with their parameters."""
        return self.summon in ("gradients", "discarded_gradients")

    @property
    def averages_in_half(self) -> Dtype | None:
        """The half precision that gradients are cast to, divided and added up in."""
        return _HALVES.get(self.hook or "")

    @property
    def takes_mesh(self) -> bool:
        """Whether it is given a device mesh."""
        return self.is_hybrid or self.device_mesh


class FSDP1Option(Option):
    """One of them."""

    def __init_subclass__(cls) -> None:
        cls.prefix = f"fsdp1:{cls.name}_"

    further: ClassVar[bool] = False
    """Whether many cases leave it at its default."""
    in_orders: ClassVar[tuple[Any, int] | None] = None
    """The value that it has in so many percent of the cases of ranks that run other modules."""

    def draw(self, drawing: DrawingFSDP1) -> Any:
        """Return a value for a case that has the options of lower places."""
        return self.by_chance(drawing.tape)

    def draw_for_orders(self, tape: Tape) -> Any:
        """Return a value for a case of ranks that run other modules than their peers."""
        if self.in_orders is None:
            return self.default
        value, percent = self.in_orders
        return value if tape.chance(percent) else self.default

    def features(self, value: Any, case: Case) -> Iterator[str]:
        """Yield the features of a value."""
        return self.named(value)


def shards(case: Case) -> bool:
    """Return whether a rank has parts of all of FSDP1's parameters: over all ranks, or over one
    axis if it is hybrid.

    It takes ``NO_SHARD`` for every strategy where these are one rank (``_init_core_state``).
    """
    num_shards = case.mesh.shard if case.fsdp1.is_hybrid else case.mesh.data_size
    return case.fsdp1.strategy not in ("no_shard", "mixed") and num_shards > 1


class Strategy(FSDP1Option):
    """What is sharded, and when it is resharded. If it is mixed, every second unit that has
    parameters is not, as in torch/test/distributed/fsdp/test_fsdp_clip_grad_norm.py
    (``mixed_strategy``).
    """

    name, place, argument, in_orders = "strategy", 0, 0, ("shard_grad_op", 50)
    texts = {
        "shard_grad_op": "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
        "no_shard": "sharding_strategy=ShardingStrategy.NO_SHARD",
        "hybrid_shard": "sharding_strategy=ShardingStrategy.HYBRID_SHARD",
        "hybrid_shard_zero2": "sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2",
    }
    meanings = {
        "fsdp1:full_shard": "FULL_SHARD",
        "fsdp1:shard_grad_op": "SHARD_GRAD_OP",
        "fsdp1:no_shard": "NO_SHARD",
        "fsdp1:unsharded": "NO_SHARD for some units or all, or a strategy that becomes NO_SHARD "
        "as it shards over one rank",
        "fsdp1:mixed": "NO_SHARD for every second unit, and FULL_SHARD for the others",
        "fsdp1:hybrid": "HYBRID_SHARD or _HYBRID_SHARD_ZERO2",
        "fsdp1:hybrid_shard": "HYBRID_SHARD",
        "fsdp1:hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        hybrid = drawing.case.mesh.replicate is not None
        drawn: str = drawing.tape.weighted(
            (
                *(("full_shard", 5), ("shard_grad_op", 4), ("no_shard", 3), ("mixed", 4)),
                *((("hybrid_shard", 5), ("hybrid_shard_zero2", 4)) if hybrid else ()),
            )
        )
        return drawn

    @override
    def features(self, value: str, case: Case) -> Iterator[str]:
        yield f"fsdp1:{value}"
        if not shards(case):
            yield "fsdp1:unsharded"
        if case.fsdp1.is_hybrid:
            yield "fsdp1:hybrid"


class UseOrigParams(FSDP1Option):
    """Whether the optimizer gets the original parameters or flat ones."""

    name, place, argument, in_orders = "use_orig_params", 1, 6, (True, 40)
    texts = {True: "use_orig_params=True"}
    meanings = {
        "fsdp1:orig_params": "use_orig_params=True",
        "fsdp1:flat_params": "use_orig_params=False",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return drawing.tape.chance(45 if drawing.uniform else 90)

    @override
    def features(self, value: bool, case: Case) -> Iterator[str]:
        yield f"fsdp1:{'orig_params' if value else 'flat_params'}"


class Wrapping(FSDP1Option):
    """Whether units are wrapped one by one, bottom-up, or by an auto-wrap policy."""

    name, place, rare = "wrapping", 2, ("policy", 30)
    in_orders = "policy", 40
    meanings = {"fsdp1:policy": "units by an auto-wrap policy"}


class ForwardPrefetch(FSDP1Option):
    """Whether the next unit is gathered before a forward computes."""

    name, place, argument, rare = "forward_prefetch", 3, 3, (True, 30)
    texts = {True: "forward_prefetch=True"}
    meanings = {"fsdp1:forward_prefetch": "forward_prefetch=True"}


class BackwardPrefetch(FSDP1Option):
    """When the next unit is gathered in a backward."""

    name, place, argument = "backward_prefetch", 4, 2
    weights = (("pre", 4), ("post", 3), (None, 2))
    texts = {
        "post": "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
        None: "backward_prefetch=None",
    }
    meanings = {
        "fsdp1:backward_prefetch_pre": "BACKWARD_PRE",
        "fsdp1:backward_prefetch_post": "BACKWARD_POST",
        "fsdp1:backward_prefetch_none": "backward_prefetch=None",
    }


class LimitAllGathers(FSDP1Option):
    """Whether the host waits before it gathers many units ahead."""

    name, place, argument, rare = "limit_all_gathers", 5, 5, (False, 20)
    texts = {False: "limit_all_gathers=False"}
    meanings = {"fsdp1:all_gathers_unlimited": "limit_all_gathers=False"}


class Offload(FSDP1Option):
    """Whether parameters are offloaded to the CPU."""

    name, place, argument = "offload", 6, 1
    texts = {True: "cpu_offload=CPUOffload(offload_params=True)"}
    meanings = {"fsdp1:offload": "parameters offloaded to the CPU"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return drawing.cuda and drawing.tape.chance(10)

    @override
    def needs_cuda(self, value: bool) -> str | None:
        return "FSDP1's CPU offload needs CUDA" if value else None


class MixedPrecision(FSDP1Option):
    """The policy of all units. "FSDP casts [buffers] to ``buffer_dtype`` in the first forward pass
    and keeps them in that dtype thereafter. For model checkpointing, the buffers are saved in full
    precision".
    """

    name, argument, place = "precision", 4, 12
    meanings = {
        "fsdp1:precision": "mixed precision of FSDP1",
        "fsdp1:buffer_dtype": "mixed precision of FSDP1 with a dtype for buffers",
    }

    @override
    def arguments(self, value: Precision | None) -> tuple[str, ...]:
        if value is None:
            return ()
        named = {name: getattr(value, name) for name in ("param", "reduce", "buffer")}
        told = [f"{name}_dtype=torch.{dtype}" for name, dtype in named.items() if dtype]
        told += [] if value.cast_inputs else ["cast_root_forward_inputs=False"]
        return (f"mixed_precision=MixedPrecision({', '.join(told)})",)

    @override
    def features(self, value: Precision | None, case: Case) -> Iterator[str]:
        if value is not None:
            yield "fsdp1:precision"
            if value.buffer:
                yield "fsdp1:buffer_dtype"


def draw_policy(tape: Tape, *, buffers: bool) -> Precision:
    """Draw a policy with parameters in half precision, and maybe ``buffers``, if there are any;
    or these alone.
    """
    dtype: Dtype = "float16" if tape.chance(35) else "bfloat16"
    reduced: tuple[tuple[Dtype | None, int], ...] = ((dtype, 3), (None, 2), ("float32", 2))
    policy = Precision(param=dtype, reduce=tape.weighted(reduced))
    if not buffers or tape.chance(30):
        return policy
    cast: Dtype = "float16" if tape.chance(50) else "bfloat16"
    return Precision(buffer=cast) if tape.chance(15) else replace(policy, buffer=cast)


class Debug(FSDP1Option):
    """The debug level; ``DETAIL`` checks that ranks and iterations have the same order."""

    name, place, rare = "debug", 7, ("detail", 20)
    meanings = {"fsdp1:detail": "the debug level DETAIL"}

    @override
    def draw_for_orders(self, tape: Tape) -> str:
        return "detail"


class Initial(FSDP1Option):
    """How parameters get their values: all ranks have them; only the first rank has them; half of
    them, which ``apply()`` doubles; from ``param_init_fn`` on the meta device.
    """

    name, place, argument, further = "initial", 8, 7, True
    texts = {"first_rank": "sync_module_states=True", "meta": "param_init_fn=initialize"}
    meanings = {
        "fsdp1:initial_first_rank": "sync_module_states=True, and only the first rank has the "
        "right values",
        "fsdp1:initial_applied": "values that FSDP1's apply() makes right",
        "fsdp1:initial_meta": "a model on the meta device, and param_init_fn",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str:
        drawn: str = drawing.tape.weighted(
            (
                *(("equal", 8), ("applied", 3)),
                ("meta", 3),
                *((("first_rank", 3),) if drawing.cuda else ()),
            )
        )
        return drawn

    @override
    def needs_cuda(self, value: str) -> str | None:
        if value == "first_rank":
            return "FSDP1's sync_module_states needs parameters on CUDA devices"
        return None


class Hook(FSDP1Option):
    """One of torch's communication hooks, or one that divides after the sum.

    ``fp16_compress_hook`` "casts ``grad`` to half-precision floating-point format
    (``torch.float16``)", divides it before and after "a communication step (``all_reduce`` or
    ``reduce_scatter``)", and then "compressed gradients are casted back to parameters' precision".
    """

    name, place, further = "hook", 10, True
    meanings = {
        "fsdp1:hook_torch": "torch's own communication hook for FSDP1",
        "fsdp1:hook_average": "a communication hook that divides after the sum",
        "fsdp1:hook_fp16": "gradients that fp16_compress_hook averages in float16",
        "fsdp1:hook_bf16": "gradients that bf16_compress_hook averages in bfloat16",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str | None:
        if drawing.case.fsdp1.is_hybrid or drawing.case.fsdp1.strategy == "mixed":
            return None
        return drawing.tape.weighted(
            ((None, 5), ("average", 3), ("torch", 3), ("fp16", 4), ("bf16", 4))
        )


class Summon(FSDP1Option):
    """What happens in ``summon_full_params`` after every step: full parameters are doubled and
    shards halved; or they are zeroed with ``writeback=False``; or they are read on the host, on
    the first rank, or in the root's unit alone. With gradients the same happens to both, before
    every step, which shows it.
    """

    name, place, further = "summon", 9, True
    meanings = {
        "fsdp1:summon_written": "full parameters are changed after every step",
        "fsdp1:summon_discarded": "full parameters are changed with writeback=False",
        "fsdp1:summon_on_host": "full parameters are read on the host",
        "fsdp1:summon_first_rank": "full parameters are read on the first rank",
        "fsdp1:summon_gradients": "full gradients are changed with their parameters",
        "fsdp1:summon_discarded_gradients": "the same with writeback=False",
        "fsdp1:summon_root": "the full parameters of the root's unit alone are read",
    }

    @override
    def draw(self, drawing: DrawingFSDP1) -> str | None:
        case = drawing.case
        # in float64 it overruns a buffer of float32, and spoils the ranks for whatever comes
        # next (unshard_grad in torch/distributed/fsdp/_flat_param.py; corpus/findings has it)
        gradients = case.fsdp1.use_orig_params and case.dtype == "float32"
        drawn: str | None = drawing.tape.weighted(
            (
                *((None, 4), ("written", 3), ("root", 2), ("first_rank", 2)),
                ("discarded", 5 if shards(case) else 1),  # nothing is changed where it is whole
                *((("gradients", 36), ("discarded_gradients", 8)) if gradients else ()),
                *((("on_host", 2),) if drawing.cuda and shards(case) else ()),
            )
        )
        return drawn

    @override
    def needs_cuda(self, value: str | None) -> str | None:
        if value == "on_host":
            return "summon_full_params(offload_to_cpu=True) needs CUDA to offload from"
        return None


class DeviceMesh(FSDP1Option):
    """FSDP1 gets a mesh instead of the process group."""

    name, place, further = "device_mesh", 11, True
    meanings = {"fsdp1:device_mesh": "FSDP1 is given a device mesh"}

    @override
    def draw(self, drawing: DrawingFSDP1) -> bool:
        return not drawing.case.fsdp1.is_hybrid and drawing.tape.chance(30)

    @override
    def features(self, value: bool, case: Case) -> Iterator[str]:
        if case.fsdp1.takes_mesh:
            yield from self.meanings


FSDP1_OPTIONS = options_of(FSDP1, FSDP1Option)
"""In the order of their fields."""
