"""Options of the engines ``ddp`` and ``replicate``."""

from __future__ import annotations

from msgspec.structs import replace

from fuzzshard.case.arrivals import Replicated
from fuzzshard.case.case import Case
from fuzzshard.case.dtypes import has_precision
from fuzzshard.parts.engines import specs
from fuzzshard.parts.engines.ddp import DistributedDataParallel
from fuzzshard.parts.op import Op
from fuzzshard.parts.options.ddp import DDP, DDP_OPTIONS
from fuzzshard.parts.part import off_default
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import Tape

_ALONE = 40
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
    seen = Replicated(case, by_replicate=not any(spec.wrapper for spec in ours))
    drawn = [
        option
        for option in sorted(DDP_OPTIONS, key=lambda option: option.place)
        if not (option.of_wrapper and seen.by_replicate)
    ]
    always = {o.name: o.draw(tape, seen) for o in drawn if o.in_every_case}
    case = replace(case, ddp=DDP(**always))
    seen = Replicated(case, seen.by_replicate)
    if "ddp_options" in swarm:
        values = {o.name: o.draw(tape, seen) for o in drawn if not o.in_every_case}
        options = DDP(**always, **values)
        told = [name for name in off_default(options) if name in values]
        if told and tape.chance(_ALONE):
            name = tape.pick(told)
            options = replace(case.ddp, **{name: getattr(options, name)})
        case = replace(case, ddp=options)
    if case.ddp.does("broadcasts_buffers") and seen.has_batch_norm:
        return replace(case, engines=(DistributedDataParallel.name,))
    return case


def _is_foreign(op: Op) -> bool:
    """Whether DDP has nothing for an op, so that it does not run."""
    elsewhere = (op.call and op.call.target) or (op.switch and op.switch.below.target)
    return bool(elsewhere or op.factor is not None or op.casts_to)
