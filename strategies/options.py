"""What a model is wrapped with beyond groups, what perturbs its run, and which engines run it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal, get_args

from msgspec.structs import replace

from fuzzshard.analysis.check_options import fits_options
from fuzzshard.analysis.exclusions import exclusion
from fuzzshard.analysis.inferred import Inferred
from fuzzshard.analysis.stages import shared_by_stages, stages
from fuzzshard.analysis.validate import is_valid
from fuzzshard.case.adapters import adapters
from fuzzshard.case.case import ALL_ENGINES, ENGINES, Case, EngineName
from fuzzshard.case.options import SPMD, ContextParallel, Delay, DelaySite, Pipelining
from fuzzshard.parts.engines import ENGINES as SPECS
from fuzzshard.parts.engines import implementation, specs
from fuzzshard.parts.options.pipelining import PIPELINING_OPTIONS
from fuzzshard.parts.part import default_of
from fuzzshard.strategies.freezing import below, pick_target
from fuzzshard.strategies.swarm import Swarm
from fuzzshard.strategies.tape import ByteTape, Tape

_VARIANTS: Mapping[str, type[ContextParallel | SPMD]] = {
    "context_parallel": ContextParallel,
    "spmd": SPMD,
}
_SITES: tuple[DelaySite, ...] = get_args(DelaySite)
_MILLISECONDS = (1.0, 2.0, 5.0)
"""Those that some cases have nothing for; ``reshard`` can be asked of nearly every case."""

_TRIES = 3
"""How often options of a pipeline are drawn until there are modules for all its stages."""
_ALL_OF_PIPELINE = 60
"""Percent of the pipelines that may have options which earlier releases of torch have not."""
_JOINS = 60
"""Percent of the cases that get one more engine, if any runs them: three runs of the reference,
which measure rounding, serve all engines.
"""
_IGNORED_BY_REPLICATE = 10
"""Percent of its cases that ignore something, beyond those of the extension: it alone is told so
itself.
"""


def engines(tape: Tape, swarm: Swarm, allowed: tuple[EngineName, ...]) -> tuple[EngineName, ...]:
    """Return engines among those that the caller allows; ``replicate`` often takes the place of
    ``ddp``: they run the same code.
    """
    chosen = [e for e in allowed if e in ENGINES or e in swarm]
    for spec in specs(chosen):
        other = implementation(spec.name)
        if other != spec.name and other in chosen and tape.chance(40):
            chosen.remove(other)
    return tuple(e for e in ALL_ENGINES if e in (chosen or allowed))


def that_run(case: Case, allowed: tuple[EngineName, ...]) -> Case:
    """Return ``case`` with those of its engines that run it, as their tables say, and maybe with
    one more of those that are ``allowed``; without any where none runs it.

    An engine that its own options alone keep from running has them at their defaults. The seed of
    the case says which one joins, with which options: a draw would make the simplest case longer
    than odd ones.
    """
    chosen: list[EngineName] = []
    for spec in specs(case.engines):
        option = {spec.options: default_of(case, spec.options)} if spec.options else {}
        for drawn in (case, replace(case, **option)):
            fits = drawn == case or is_valid(drawn)  # the schedule is for what was drawn
            if spec.name not in chosen and fits and exclusion(drawn, spec.name) is None:
                case = drawn
                chosen.append(spec.name)
    others = [name for name in allowed if name not in chosen]
    rng = random.Random(case.seed)
    if chosen and case.seed % 100 < 100 - _JOINS:
        others = []
    else:
        rng.shuffle(others)
        last = {spec.name for spec in specs(others) if spec.spreads}  # CUDA may lack their kernels
        others.sort(key=last.__contains__)
    for name in others:
        joined = replace(case, engines=tuple(e for e in ALL_ENGINES if e in (*chosen, name)))
        if exclusion(joined, name) is None and is_valid(joined):
            told = of_variants(ByteTape(rng.randbytes(8)), joined)
            return told if is_valid(told) else joined
    return replace(case, engines=tuple(chosen))


def pipelining(tape: Tape, case: Case) -> Case:
    """Return the case with options of an engine that runs stages, or without it where the model
    has too few modules for any.
    """
    in_stages = [spec.name for spec in specs(case.engines) if spec.in_stages]
    if not in_stages:
        return case
    if case.mesh.pipeline is None:  # of somebody who wants such an engine on a mesh of their own
        case = replace(case, mesh=replace(case.mesh, pipeline=1))
    drawn = (_with_pipelining(tape, case) for _ in range(_TRIES))
    for cut in (*drawn, replace(case, pipelining=Pipelining())):
        if stages(cut):
            groups = case.wrap
            if any(shared_by_stages(cut)):
                groups = tuple(group.prefetching({}) for group in groups)
            kept = tuple(c for c in case.checkpoints if c.module)
            return replace(cut, wrap=groups, checkpoints=kept)
    others = tuple(name for name in case.engines if name not in in_stages)
    return replace(case, engines=others) if others else case


def whole_after_forward(case: Case) -> Case:
    """Return the case with groups that stay whole after forward, if an engine needs that."""
    if not any(spec.keeps_whole for spec in specs(case.engines)):
        return case
    groups = (replace(group, reshard_after_forward=False) for group in case.wrap)
    return replace(case, wrap=tuple(groups))


def _with_pipelining(tape: Tape, case: Case) -> Case:
    """Return the case with options of a pipeline, each of which is drawn with those before it."""
    every = tape.chance(_ALL_OF_PIPELINE)
    for option in PIPELINING_OPTIONS:
        if every or not option.weights:
            drawn = {option.name: option.draw(tape, case)}
            case = replace(case, pipelining=replace(case.pipelining, **drawn))
    return case


def of_variants(tape: Tape, case: Case) -> Case:
    """Draw options of the engines ``context_parallel`` and ``spmd``, if the case has these."""
    for spec in specs(case.engines):
        options: type[ContextParallel | SPMD] | None = _VARIANTS.get(spec.options)
        if options is not None:
            drawn = options(**{o.name: o.draw(tape, case) for o in options.options})
            told = replace(case, **{spec.options: drawn})
            case = case if exclusion(told, spec.name) else told
    return case


def ignored(tape: Tape, swarm: Swarm, case: Case, found: Inferred) -> Case:
    """Return the case with adapters that its model gets when it is wrapped, or with something else
    that its groups do not manage.
    """
    may_add = "meta" not in swarm and not any(spec.in_stages for spec in specs(case.engines))
    around = tuple(path for _, *paths in adapters(case.model) for path in paths)
    if around and may_add and tape.chance(50):
        groups = (g.of(m for m in g.modules if m not in around) for g in case.wrap)
        wrap = tuple(group for group in groups if group.modules)
        later = replace(case, wrap=wrap, ignored=around, ignored_by="adding")
        if wrap and fits_options(later, found):
            return later
    case = replace(case, ignored=_ignored(tape, swarm, found))
    later = replace(case, ignored_by="adding")
    if case.ignored and may_add and fits_options(later, found) and tape.chance(30):
        return later
    return case


def _ignored(tape: Tape, swarm: Swarm, found: Inferred) -> tuple[str, ...]:
    """Return a parameter or a module, of which the groups have others; ``replicate`` ignores
    modules only.
    """
    told = any(name in swarm for name, spec in SPECS.items() if spec.ignores_modules)
    if "ignored" not in swarm and not (told and tape.chance(_IGNORED_BY_REPLICATE)):
        return ()
    everything = frozenset(found.parameters)
    target = pick_target(tape, found, everything, module=tape.chance(80 if told else 35))
    return (target,) if target and below(everything, target, inside=False) else ()


def options(tape: Tape, swarm: Swarm, case: Case, *, cuda: bool) -> Case:
    """Return the options that fit every case."""
    compiler = None
    if "compile" in swarm:
        compiler = tape.weighted(
            (("eager", 3), ("aot_eager", 2), *((("inductor", 2),) if cuda else ()))
        )
    return replace(
        case,
        init="meta" if "meta" in swarm else "device",
        compile=compiler,
        finalize=_finalize(tape, swarm, case),
        delays=_delays(tape, swarm) if cuda else (),
    )


def _finalize(tape: Tape, swarm: Swarm, case: Case) -> Literal["wait", "async"] | None:
    """How backward is finalized by hand, if it is: that is for a case with one FSDP root."""
    applies_groups = any(spec.applies_groups for spec in specs(case.engines))
    if "finalize" not in swarm or not case.root_is_wrapped or not applies_groups:
        return None
    return "async" if tape.chance(50) else "wait"


def _delays(tape: Tape, swarm: Swarm) -> tuple[Delay, ...]:
    if "delays" not in swarm:
        return ()
    sites = dict.fromkeys(
        tape.pick(_SITES) for _ in range(tape.weighted(((1, 4), (2, 2), (4, 1))))
    )
    return tuple(
        Delay(
            site=site,
            milliseconds=tape.pick(_MILLISECONDS),
            ranks="others" if tape.chance(40) else "all",
        )
        for site in sites
    )
