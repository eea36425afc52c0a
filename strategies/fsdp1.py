"""Options of the engine ``fsdp1``."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.options import FSDP1, Precision
from fuzzshard.case.paths import is_within
from fuzzshard.parts.dtypes import Dtype
from fuzzshard.parts.engines.fsdp1 import FullyShardedDataParallel, shards
from fuzzshard.strategies.precision import computes
from fuzzshard.strategies.swarm import Swarm, may_cast
from fuzzshard.strategies.tape import Tape

_STRATEGIES = (("full_shard", 5), ("shard_grad_op", 4), ("no_shard", 3))
_HYBRID = (("hybrid_shard", 5), ("hybrid_shard_zero2", 4))


def fsdp1(tape: Tape, swarm: Swarm, case: Case, found: Facts, *, cuda: bool) -> Case:
    """The case with options of FSDP1, if that is one of its engines.

    Its mixed precision replaces that of the wrap groups, so no other engine is judged then.
    """
    if FullyShardedDataParallel.name not in case.engines:
        return case
    strategies = (*_STRATEGIES, *(_HYBRID if case.mesh.replicate is not None else ()))
    uniform = "toggle" not in swarm and not _mixes_frozen(case, found)
    options = FSDP1(
        strategy=tape.weighted(strategies),
        use_orig_params=tape.chance(45 if uniform else 90),
        wrapping="policy" if tape.chance(30) else "manual",
        forward_prefetch=tape.chance(30),
        backward_prefetch=tape.weighted((("pre", 4), ("post", 3), (None, 2))),
        limit_all_gathers=not tape.chance(20),
        offload=cuda and tape.chance(10),
        debug="detail" if tape.chance(20) else "off",
    )
    options = _further(tape, case, options, cuda=cuda)
    case = replace(case, fsdp1=options)
    if "precision" not in swarm or not case.root_is_wrapped or not tape.chance(90):
        return case
    dtype: Dtype = "float16" if tape.chance(35) else "bfloat16"
    reduced: tuple[tuple[Dtype | None, int], ...] = ((dtype, 3), (None, 2), ("float32", 2))
    policy = Precision(param=dtype, reduce=tape.weighted(reduced))
    groups = tuple(replace(group, precision=None) for group in case.wrap)
    alone = replace(
        case,
        fsdp1=replace(options, precision=policy),
        engines=(FullyShardedDataParallel.name,),
        wrap=groups,
        dtypes=(),
    )
    return alone if computes(alone, found, casts=may_cast(swarm)) else case


def _further(tape: Tape, case: Case, options: FSDP1, *, cuda: bool) -> FSDP1:
    """``options`` with initial values, hooks and full parameters that go with them; half have
    none.
    """
    if tape.chance(50):
        return options
    hybrid = options.strategy.startswith("hybrid")
    initial = tape.weighted(
        (
            *(("equal", 8), ("applied", 3)),
            *(() if case.ties else (("meta", 3),)),
            *((("first_rank", 2),) if cuda else ()),
        )
    )
    summon = tape.weighted(
        (
            *((None, 6), ("written", 3), ("discarded", 3), ("root", 2), ("first_rank", 2)),
            # in float64 it overruns a buffer of float32, and spoils the ranks for whatever comes
            # next (unshard_grad in torch/distributed/fsdp/_flat_param.py; corpus/findings has it)
            *((("gradients", 3),) if options.use_orig_params and case.dtype == "float32" else ()),
            *((("on_host", 2),) if cuda and shards(replace(case, fsdp1=options)) else ()),
        )
    )
    return replace(
        options,
        initial=initial,
        hook=None if hybrid else tape.weighted(((None, 6), ("average", 3), ("torch", 3))),
        summon=summon,
        device_mesh=not hybrid and case.mesh.replicate is None and tape.chance(30),
    )


def _mixes_frozen(case: Case, found: Facts) -> bool:
    """Whether frozen and trainable parameters share a group, which flattening refuses."""
    kinds: dict[int | None, set[bool]] = {}
    for fqn, owner in found.owners.items():
        kinds.setdefault(owner, set()).add(any(is_within(fqn, f.target) for f in case.freezes))
    return any(len(kind) > 1 for kind in kinds.values())
