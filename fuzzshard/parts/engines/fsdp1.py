"""``FullyShardedDataParallel`` (FSDP1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from fuzzshard.errors import InvalidCase
from fuzzshard.parts.engine import EngineSpec
from fuzzshard.parts.op import Choice
from fuzzshard.parts.ops import OPS
from fuzzshard.parts.part import Part
from fuzzshard.parts.precision import Precision

if TYPE_CHECKING:
    from fuzzshard.case.case import Case
    from fuzzshard.case.facts import Facts


class FSDP1(Part, frozen=True, kw_only=True):
    """Options of the engine ``fsdp1`` (``FullyShardedDataParallel``), for all its units.

    ``wrapping``: each unit by itself bottom-up, or by an auto-wrap policy. ``precision`` with
    ``buffer`` following ``param``. ``debug="detail"`` sets ``torch.distributed``'s debug level.

    - ``initial``: how the units come to the case's values: they have them; only the first rank has
      (``sync_module_states``); by ``apply()`` of what doubles halves; by ``param_init_fn``.
    - ``hook``: torch's communication hook, or one that divides after the sum.
    - ``summon``: after every step, ``summon_full_params()``: doubles everything and halves the
    shards;
      with ``writeback=False``, zeroes everything; reads it on the host, on the first rank, with
      gradients, or in the root's unit alone.
    - ``device_mesh``: in place of the process group.
    """

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

    @property
    def is_hybrid(self) -> bool:
        """Return whether it shards over one axis and replicates over the other."""
        return self.strategy.startswith("hybrid")

    @property
    def takes_mesh(self) -> bool:
        """Return whether it is given a device mesh."""
        return self.is_hybrid or self.device_mesh


def shards(case: Case) -> bool:
    """Whether a rank has parts of FSDP1's parameters: over all ranks, or over one axis if it is
    hybrid.

    It takes ``NO_SHARD`` for every strategy where these are one rank (``_init_core_state``).
    """
    num_shards = case.mesh.shard if case.fsdp1.is_hybrid else case.mesh.data_size
    return case.fsdp1.strategy != "no_shard" and num_shards > 1


MEANINGS = {
    "fsdp1:full_shard": "FULL_SHARD",
    "fsdp1:shard_grad_op": "SHARD_GRAD_OP",
    "fsdp1:no_shard": "NO_SHARD",
    "fsdp1:unsharded": "NO_SHARD, or a strategy that becomes NO_SHARD as it shards over one rank",
    "fsdp1:hybrid": "HYBRID_SHARD or _HYBRID_SHARD_ZERO2",
    "fsdp1:hybrid_shard": "HYBRID_SHARD",
    "fsdp1:hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2",
    "fsdp1:orig_params": "use_orig_params=True",
    "fsdp1:flat_params": "use_orig_params=False",
    "fsdp1:backward_prefetch_pre": "BACKWARD_PRE",
    "fsdp1:backward_prefetch_post": "BACKWARD_POST",
    "fsdp1:backward_prefetch_none": "backward_prefetch=None",
    "fsdp1:policy": "units by an auto-wrap policy",
    "fsdp1:forward_prefetch": "forward_prefetch=True",
    "fsdp1:all_gathers_unlimited": "limit_all_gathers=False",
    "fsdp1:offload": "parameters offloaded to the CPU",
    "fsdp1:precision": "mixed precision of FSDP1",
    "fsdp1:detail": "the debug level DETAIL",
    "fsdp1:device_mesh": "FSDP1 is given a device mesh",
    "fsdp1:initial_first_rank": "sync_module_states=True, and only the first rank has the right "
    "values",
    "fsdp1:initial_applied": "values that FSDP1's apply() makes right",
    "fsdp1:initial_meta": "a model on the meta device, and param_init_fn",
    "fsdp1:hook_torch": "torch's own communication hook for FSDP1",
    "fsdp1:hook_average": "a communication hook that divides after the sum",
    "fsdp1:summon_written": "full parameters are changed after every step",
    "fsdp1:summon_discarded": "full parameters are changed with writeback=False",
    "fsdp1:summon_on_host": "full parameters are read on the host",
    "fsdp1:summon_first_rank": "full parameters are read on the first rank",
    "fsdp1:summon_gradients": "full parameters are read with their gradients",
    "fsdp1:summon_root": "the full parameters of the root's unit alone are read",
}


class FullyShardedDataParallel(EngineSpec):
    """Every wrapped module is a unit with one flat parameter, and so is the root."""

    name = "fsdp1"
    title = "`FullyShardedDataParallel`"
    tag = "FSDP1"
    meaning = "FSDP1 runs"
    options = "fsdp1"
    meanings = MEANINGS
    choice = Choice(
        "fsdp1",
        23,
        place=1,
        # what it has nothing for, or has not documented: a case with it would run without it
        excludes=(
            *("list_group", "tensor", "meta", "compile", "other_dtypes", "method"),
            *(choice.name for op in OPS for choice in op.choices if choice.new),
            *("non_root_forward", "partial_sync", "backward_order"),
        ),
    )
    wrapper = "FullyShardedDataParallel"
    keeps_order = True
    has_units = True
    differs_in = ("reduced", "local")
    outlives_run = (
        "two modules of six of the smallest model with two units do, on torch 2.13 as it is "
        "(measured without fuzzshard); why is not known"
    )

    @override
    def has_flat_parameters(self, case: Case) -> bool:
        return not case.fsdp1.use_orig_params

    @override
    def policy(self, case: Case) -> Precision | None:
        return case.fsdp1.precision

    @override
    def features(self, case: Case, found: Facts) -> Iterator[str]:
        options = case.fsdp1
        yield f"fsdp1:{options.strategy}"
        yield f"fsdp1:{'orig_params' if options.use_orig_params else 'flat_params'}"
        yield f"fsdp1:backward_prefetch_{options.backward_prefetch or 'none'}"
        for name, present in (
            ("unsharded", not shards(case)),
            ("hybrid", options.is_hybrid),
            ("policy", options.wrapping == "policy"),
            ("forward_prefetch", options.forward_prefetch),
            ("all_gathers_unlimited", not options.limit_all_gathers),
            ("offload", options.offload),
            ("precision", options.precision is not None),
            ("detail", options.debug == "detail"),
            ("device_mesh", options.takes_mesh),
            (f"initial_{options.initial}", options.initial != "equal"),
            (f"hook_{options.hook}", options.hook is not None),
            (f"summon_{options.summon}", options.summon is not None),
        ):
            if present:
                yield f"fsdp1:{name}"

    @override
    def needs_cuda(self, case: Case) -> str | None:
        if case.fsdp1.offload:
            return "FSDP1's CPU offload needs CUDA"
        if case.fsdp1.initial == "first_rank":
            return "FSDP1's sync_module_states needs parameters on CUDA devices"
        if case.fsdp1.summon == "on_host":
            return "summon_full_params(offload_to_cpu=True) needs CUDA to offload from"
        return None

    @override
    def check(self, case: Case, found: Facts) -> None:
        options, runs = case.fsdp1, self.name in case.engines
        if options.precision is not None and options.precision.keep is not None:
            raise InvalidCase(
                "FSDP1 has no param_dtype_override_fn", "remove keep from its precision"
            )
        if (
            runs
            and options.precision is not None
            and any(group.precision is not None for group in case.wrap)
        ):
            raise InvalidCase(
                "both FSDP1 and wrap groups have mixed precision, and there is one reference",
                "keep one of the two",
            )
        if runs and options.is_hybrid and case.mesh.replicate is None:
            raise InvalidCase(
                f"FSDP1 strategy {options.strategy} needs a replicate axis", "set mesh.replicate"
            )
