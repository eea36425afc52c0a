"""What must not be left behind by a run: memory, pending communication, hooks, misplaced optimizer
states.

Sharded parameters have no unsharded memory: ``fully_shard`` frees it when it reshards (its
docstring) unless it is told to keep it, and the last backward waits for all reductions
(``set_is_last_backward``). The output of an all-gather is kept until the next one is copied out,
and the last of a forward is freed "to avoid holding onto memory after forward" (note on the
overlap of all-gathers, ``_fsdp_param_group.py``). What may be left follows from the schedule:
groups that stay unsharded (:mod:`fuzzshard.oracles.registration`), all-gathers that were issued
ahead, sums over shards that wait for their all-reduce. An optimizer's states lie where their
parameter does: they are made like it (``torch.zeros_like``), and a checkpoint is loaded into the
same layout. So do gradients that ``fully_shard`` has reduced.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set

from fuzzshard.analysis.communication import told_late
from fuzzshard.analysis.passed_roots import passed_roots
from fuzzshard.analysis.schedule_state import follow
from fuzzshard.case.case import Case
from fuzzshard.engines.fully_shard.state import GroupState
from fuzzshard.engines.registry import engine_of
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.oracles.registration import SHARDED, RegistrationModel
from fuzzshard.parts.ops.set_flag import flags_set
from fuzzshard.parts.options.wrap_group import When
from fuzzshard.parts.oracles.leak import IDLE, NOTHING, PARTIAL, Leak, Left
from fuzzshard.training.leftovers import Leftovers
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def leak_findings(
    case: Case, engine: str, trace: Trace, reference: Trace, rank: int
) -> list[Finding]:
    """Return what the run of ``engine`` has left; nothing is said of a run that an expected error
    has ended.

    An engine is not blamed for outliving its run where the plain model of ``reference`` does as
    well.
    """
    if trace.leftovers is None:
        return []
    leaks = [
        *(() if engine_of(engine).outlives_run or reference.leaked else _outliving(trace)),
        *_of_any_engine(trace.leftovers),
        *_of_groups(case, trace, trace.leftovers, rank),
    ]
    return _findings(case, engine, leaks, rank)


def memory_findings(case: Case, engine: str, after: Sequence[int], rank: int) -> list[Finding]:
    """Return findings of ``after``, the bytes that the device held after each of several equal
    runs (training/memory.py).
    """
    grown = {b - a for a, b in itertools.pairwise(after)}
    if len(grown) != 1 or min(grown) <= 0:
        return []
    more, expected = f"{grown.pop()} bytes more after every run", "as many as after the run before"
    left = Left("device_memory", "memory of the device", more, expected)
    return _findings(case, engine, [left], rank)


def growth_findings(case: Case, engine: str, grown: Mapping[str, int], rank: int) -> list[Finding]:
    """Return findings of ``grown``, what every repetition of the schedule added, by its type."""
    more, expected = "{} more after every repetition of the schedule", "as many as before it"
    leaks = [
        Left("growth", f"objects of the type {kind}", more.format(count), expected)
        for kind, count in sorted(grown.items())
    ]
    return _findings(case, engine, leaks, rank)


def _findings(case: Case, engine: str, leaks: Sequence[Left], rank: int) -> list[Finding]:
    return [
        Finding(
            oracle=Leak.name,
            engine=engine,
            observed=leak.observed,
            expected=leak.expected,
            op=len(case.schedule) - 1,
            name=leak.name,
            rank=rank,
            detail=leak.kind,
        )
        for leak in leaks[:MOST_FINDINGS]
    ]


def _outliving(trace: Trace) -> Iterator[Left]:
    """Yield what is still there when the engine is not: something refers to it for ever."""
    if trace.leaked:
        kept = (
            f"{', '.join(trace.leaked[:3])} and others"
            if trace.leaked[3:]
            else ", ".join(trace.leaked)
        )
        yield Left(
            "survivor", "the model", f"{kept} outlive it", "freed with the last reference to it"
        )


def _of_any_engine(leftovers: Leftovers) -> Iterator[Left]:
    for name, (before, after) in leftovers.hooks.items():
        yield Left("hook", name, f"{after} after the run", f"{before}, as before it")
    for name, (state, parameter) in leftovers.states.items():
        yield Left("layout", name, str(state), f"{parameter}, as its parameter")


def _of_groups(case: Case, trace: Trace, leftovers: Leftovers, rank: int) -> Iterator[Left]:
    """Yield what ``fully_shard`` holds; other engines show nothing of the kind."""
    if not leftovers.groups:
        return
    registration = RegistrationModel(case, rank)
    for index in range(len(case.schedule)):
        registration.advance(skipped=index in trace.skipped)
    flags, settled = flags_set(case.schedule), settled_groups(case, rank)
    states = leftovers.groups.values()
    if all(held.idle for held in states) and any(held.keeps_buffer for held in states):
        yield Left(
            "buffer",
            "the last all-gather",
            "its output, which was copied out",
            "freed after forward",
        )
    for index, held in leftovers.groups.items():
        name = ", ".join(module or "the root" for module in case.wrap[index].modules)
        if told_late(case, "keeps"):
            pass  # it may not have been unsharded, or sharded, since
        elif case.wrap[index].does("keeps"):
            yield from _lost(held)
        elif registration.groups[index].state == SHARDED:
            yield from _unsharded(held)
        yield from _communication(held, name, flags)
        if index in settled:
            yield from _hooks(held, name)


def settled_groups(case: Case, rank: int) -> frozenset[int]:
    """Return the groups of which nothing may be under way after the last op.

    A forward may leave what it gathers ahead, and a group of which not all modules have run. A
    backward may leave what it gathers ahead for other FSDP roots, and ends everything below those
    that it passes (``set_is_last_backward``).
    """
    if "is_last_backward" in flags_set(case.schedule):
        return frozenset()
    every = frozenset(range(len(case.wrap)))
    of_forwards = _ahead(case, "forward") | {i for i in every if len(case.wrap[i].modules) > 1}
    of_backwards = _ahead(case, "backward") | {i for i in every if case.wrap[i].does("shares")}
    settled, passed = every, passed_roots(case, rank)
    for at in follow(case, rank):
        if at.op.call:
            settled -= of_forwards
        if "op:unshard_async" in at.op.features(at):
            settled = frozenset()
        if at.op.takes:
            ended = {i for i in every if at.roots[i] in passed[at.index]}
            settled = (settled - of_backwards) | ended
        if at.op.aborts or at.op.rebuilds is not None:
            settled = every
    return settled


def _ahead(case: Case, when: When) -> set[int]:
    """Return the groups that some group is told to gather ahead."""
    modules = {module for group in case.wrap for module in group.prefetched(when)}
    return {i for i, group in enumerate(case.wrap) if not modules.isdisjoint(group.modules)}


def _unsharded(held: GroupState) -> Iterator[Left]:
    for fqn, elements in held.unsharded.items():
        if elements:
            yield Left("memory", f"unsharded {fqn}", f"memory of {elements} elements", "freed")


def _lost(held: GroupState) -> Iterator[Left]:
    """ "Keeping the storage preserves its data pointers" (``set_keep_unsharded_storage``)."""
    for fqn in held.freed:
        yield Left("memory", f"unsharded {fqn}", "no memory", "kept")


def _communication(held: GroupState, name: str, flags: Set[str]) -> Iterator[Left]:
    if held.reduces and "is_last_backward" not in flags:
        expected = "freed at the end of the last backward"
        yield Left("reduction", f"reduction of {name}", "its input or event", expected)
    if held.partial and "requires_all_reduce" not in flags:
        yield Left("reduction", f"reduction of {name}", PARTIAL, NOTHING)


def _hooks(held: GroupState, name: str) -> Iterator[Left]:
    if held.gathers:
        yield Left("gather", f"all-gather of {name}", "issued and never used", NOTHING)
    if not held.idle:
        yield Left("state", f"state of {name}", "within a forward or backward", IDLE)


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    return leak_findings(run.case, run.engine, run.trace, run.reference, run.mesh.global_rank)
