"""Options of the engines ``ddp`` and ``replicate``."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.arrivals import arrivals, graph_is_static, replicated
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.case.facts import facts, has_batch_norm
from fuzzshard.case.options import DDP
from fuzzshard.parts.engines import specs
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.op import Op
from fuzzshard.parts.part import off_default
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_ALONE = 50
"""Percent of the cases with options that have one of them."""


def ddp(tape: Tape, swarm: Swarm, case: Case) -> Case:
    """The finished ``case`` with options of DDP, if that is one of its engines.

    What DDP does with buffers, no other engine does: where there are any, none is judged then.
    """
    ours = [
        spec for spec in specs(case.engines) if spec.options == DistributedDataParallel.options
    ]
    if not ours or has_precision(case) or any(map(_is_foreign, case.schedule)):
        return case
    if any(spec.ignores_modules for spec in ours) and any(
        path in facts(case).modules for path in case.ignored
    ):
        case = replace(case, ddp=DDP(ignored_modules=tape.chance(70)))
    if "ddp_options" not in swarm:
        return case
    by_replicate = not any(spec.wrapper for spec in ours)
    trained = replicated(case, by_replicate=by_replicate)
    arrived = {some & trained for some in arrivals(case).values()}
    options = DDP(
        find_unused_parameters=not tape.chance(60 if arrived == {trained} else 2),
        buckets=tape.weighted((("default", 6), ("one_each", 4), ("few_each", 3), ("listed", 3))),
        gradient_as_bucket_view=tape.chance(35),
        static_graph=tape.chance(25 if graph_is_static(case) else 2),
        hook=tape.weighted(((None, 6), ("allreduce", 2), ("average", 2))),
        skip_all_reduce_unused_params=tape.chance(25 if len(arrived) <= 1 else 2),
        batched_grad_copy=tape.chance(30),
        lazy_bucket_allocation=tape.chance(25),
        initial=tape.weighted((("equal", 8), ("first_rank", 3), ("unsynced", 2))),
        device_mesh=case.mesh.replicate is None and case.mesh.tensor is None and tape.chance(40),
        join=None
        if by_replicate
        else tape.weighted(
            ((None, 6), ("initial", 2), ("effective", 2), ("throwing", 2), ("off", 2))
        ),
        manual_finalization=not by_replicate and tape.chance(30),
        buffers="local"
        if by_replicate
        else tape.weighted(
            (("local", 6), ("broadcast", 3), ("forward_broadcast", 3), ("forward_local", 3))
        ),
        ignored_modules=case.ddp.ignored_modules,
    )
    if (
        told := [name for name in off_default(options) if name != "ignored_modules"]
    ) and tape.chance(_ALONE):
        name = tape.pick(told)
        options = replace(case.ddp, **{name: getattr(options, name)})
    if not (options.broadcasts_buffers and has_batch_norm(case, "")):
        return replace(case, ddp=options)
    return replace(case, ddp=options, engines=(DistributedDataParallel.name,), relation=None)


def _is_foreign(op: Op) -> bool:
    """Whether DDP has nothing for an op, so that it does not run."""
    elsewhere = (op.call and op.call.target) or (op.switch and op.switch.below.target)
    return bool(elsewhere or op.factor is not None or op.casts_to)
