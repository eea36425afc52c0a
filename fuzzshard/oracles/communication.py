"""What ``fully_shard`` communicates, by rules that every correct implementation keeps.

- A group gathers its parameters once, and again only when something has sharded them since: a
  forward or a post-backward that reshards, or an op of the schedule. It gathers all of them, and
  nobody else gathers anything.
- Where synchronisation is on, a backward reduces every gradient that has arrived and was not
  reduced yet, once, and nothing else; in the dtype of ``MixedPrecisionPolicy``.
- Equal iterations communicate alike.

When it does so is left open: prefetching and overlap may change from release to release.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from fuzzshard.analysis.arrivals import arrivals
from fuzzshard.analysis.communication import some
from fuzzshard.analysis.dtypes import promoted_reduction
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.passed_roots import passed_roots
from fuzzshard.analysis.schedule_state import ScheduleState, follow, ops_that_run
from fuzzshard.analysis.tensor_parallel import tensor_dims
from fuzzshard.case.case import Case, Mesh
from fuzzshard.engines.registry import engine_of
from fuzzshard.instruments import POST_BACKWARDS, works
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.oracles.registration import registered
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.ops.set_flag import flags_set
from fuzzshard.parts.oracles.communication import (
    GATHERS,
    KINDS,
    SUMS,
    AtMost,
    Communication,
    Dtypes,
    Elements,
    Sizes,
    extent_of,
)
from fuzzshard.training.collectives import Collective
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding

_COMMUNICATING = ("forward", "backward", "sharding")
"""The lanes of ops that gather or reduce."""


class Wrong(NamedTuple):
    """An op that communicates otherwise than is due."""

    op: int
    name: str
    observed: object
    expected: object


class Groups:
    """The wrap groups of a case that manage parameters, which the collectives of a run are of."""

    def __init__(self, case: Case) -> None:
        self.case, self.found = case, inferred(case)
        self.parameters: dict[int, list[str]] = defaultdict(list)
        for fqn, owner in self.found.owners.items():
            if owner is not None:
                self.parameters[owner].append(fqn)
        self.order = sorted(self.parameters)
        policies = [group.precision for group in case.wrap]
        keeping = any(policy is not None and policy.keep for policy in policies)
        self.sizes_known = not (case.dtypes or case.tensor_parallel or keeping)
        """Parameters of several dtypes travel as bytes, those of tensor-parallel modules in
        parts.
        """

    def numbered(self, number: int) -> int | None:
        """Return the group that was made as the so many-th; a model built anew has later
        numbers.
        """
        if number < 0 or not self.order:
            return None
        return self.order[number % len(self.order)]

    def elements(self, fqns: Iterable[str], shards: int) -> int:
        """Return the elements of one rank's shards, padded to equal sizes."""
        total = 0
        for fqn in fqns:
            shape, owner = self.found.parameters[fqn], self.found.owners[fqn]
            assert owner is not None
            dim = self.case.wrap[owner].dim_of(shape)
            total += math.prod(shape) // shape[dim] * -(-shape[dim] // shards)
        return total


Event = tuple[int | None, str | int]
"""A group, and the hook by which it is done or the elements that it gathers."""


def wrong_gathers(case: Case, trace: Trace, rank: int) -> Iterator[Wrong]:
    """Yield the ops in which a group gathers what it holds, or other than its parameters."""
    groups = Groups(case)
    known = groups.sizes_known and not any(g.does("gathers_several") for g in case.wrap)
    events, whole, spec = _events(trace, groups), set[int](), spec_of(trace.engine)
    for at in follow(case, rank, skipped=trace.skipped):
        op, shards, gathers, again, due = at.op, at.case.mesh.shard, list[int](), 0, 0
        for group, event in events[at.index]:
            if isinstance(event, str):
                if group is not None and _is_sharded_by(event, group, at):
                    whole.discard(group)
                continue
            gathers.append(event)
            again += group is None or group in whole or spec.keeps_whole
            if group is not None:
                whole.add(group)
                due += groups.elements(groups.parameters[group], shards) * shards
        if op.lane in _COMMUNICATING:
            if again:
                yield Wrong(at.index, GATHERS, len(gathers), AtMost(len(gathers) - again))
            elif known and due != sum(gathers):
                observed = sum(gathers)
                yield Wrong(at.index, GATHERS, Elements(observed, observed), Elements(due, due))
        if op.aborts or op.casts_to or op.takes_state or op.rebuilds is not None:
            whole.clear()
        whole = {g for g in groups.order if _is_whole(trace, groups, g, at.index, g in whole)}


def _events(trace: Trace, groups: Groups) -> Mapping[int, list[Event]]:
    """Return what groups gather and where they are done, by op."""
    hooks = [(h.place, 0, h.op, groups.numbered(h.number), h.kind) for h in trace.hooks]
    gathers = [
        (place, 1, c.op, groups.numbered(c.group), max(c.sizes))
        for place, c in enumerate(trace.collectives)
        if c.kind == "all_gather" and not c.explicit
    ]
    events: dict[int, list[Event]] = defaultdict(list)
    for _, _, op, group, event in sorted([*hooks, *gathers], key=lambda each: each[:2]):
        events[op].append((group, event))
    return events


def _is_sharded_by(hook: str, group: int, at: ScheduleState) -> bool:
    """Return whether a group that is done with a forward or a backward is sharded then.

    A module that is recomputed in a backward is not done.
    """
    if hook == "post_backward":
        return at.off["reshard_after_backward"].isdisjoint(at.case.wrap[group].modules)
    whole, whole_as_root, _ = at.after_forward(group)
    return not (at.op.takes or whole or (whole_as_root and at.roots[group] == group))


def _is_whole(trace: Trace, groups: Groups, group: int, index: int, before: bool) -> bool:
    """Return whether parameters of a group are registered unsharded after an op; if nobody looked,
    as ``before``.
    """
    parallel = tensor_dims(groups.case, groups.found)
    for fqn in groups.parameters[group]:
        if (there := registered(trace, index, fqn)) is not None:
            return len(there.placements) == (fqn in parallel)
    return before


class Due(NamedTuple):
    """The gradients that a group reduces: those from ``before`` a backward, and its ``new``
    ones.
    """

    before: set[str]
    new: set[str]


class Reducing(NamedTuple):
    """What an op has to reduce, by the kind of collective and group.

    A sum over shards that waits for its all-reduce takes part in every reduction of its group, so
    that the number of elements is not ``known``.
    """

    at: ScheduleState
    due: dict[str, list[Due]]
    known: bool


def reductions_due(groups: Groups, trace: Trace, rank: int) -> Iterator[Reducing]:
    """Yield what each op has to reduce, up to a cast of gradients that wait, which may have any
    dtype then.
    """
    case, passed = groups.case, passed_roots(groups.case, rank)
    pending: dict[int, set[str]] = {group: set() for group in groups.order}
    partial: set[int] = set()
    for at in follow(case, rank, skipped=trace.skipped):
        op, mesh, known = at.op, _axes(trace, at), groups.sizes_known
        if op.aborts or op.rebuilds is not None:
            pending, partial = {group: set() for group in groups.order}, set()
        if op.casts_to and any(pending.values()):
            return
        arrived = arrivals(case).get(at.index, frozenset())
        due: dict[str, list[Due]] = {"reduce_scatter": [], "all_reduce": []}
        for group, before in pending.items() if op.takes else ():
            new = {*arrived.intersection(groups.parameters[group])}
            pending[group] = before | new
            reduces = at.flags.reduce[group] and at.roots[group] in passed[at.index]
            if not reduces or not pending[group]:
                continue
            if mesh.shard > 1:
                due["reduce_scatter"].append(Due(before, new))
            if at.flags.synced(group):
                known &= group not in partial
                if mesh.replicate is not None:
                    due["all_reduce"].append(Due(before, new))
                partial.discard(group)
                pending[group] = set()
            else:
                known = False
                partial.add(group)
        if not op.aborts:
            yield Reducing(at, due, known)


def _axes(trace: Trace, at: ScheduleState) -> Mesh:
    """Return the axes that groups reduce over."""
    mesh = at.case.mesh
    if not spec_of(trace.engine).keeps_whole:
        return mesh
    return Mesh(replicate=mesh.data_size, shard=1)


def wrong_reductions(case: Case, trace: Trace, rank: int) -> Iterator[Wrong]:
    """Yield the ops that reduce other gradients than those that arrived, or in other dtypes.

    What has waited since an earlier backward may be reduced by itself, in a post-backward of its
    own. Groups that fill in zeros reduce more.
    """
    groups = Groups(case)
    for at, due, known in reductions_due(groups, trace, rank) if not some(case, "fills") else ():
        shards, index = spec_of(trace.engine).shards(at.case), at.index
        done = sum(hook.op == index and hook.kind == "post_backward" for hook in trace.hooks)
        for kind, parts in due.items():
            name, seen = KINDS[kind], _issued(trace, index, kind)
            elements = sum(_sizes(trace, index, kind))
            fewest = sum(groups.elements(each.before | each.new, shards) for each in parts)
            most = fewest + sum(groups.elements(each.before & each.new, shards) for each in parts)
            if known and not fewest <= elements <= most:
                yield Wrong(index, name, Elements(elements, elements), Elements(fewest, most))
            elif at.op.takes and works(POST_BACKWARDS) and len(seen) > done:
                yield Wrong(index, name, len(seen), AtMost(done))
            dtypes, allowed = {c.dtype for c in seen}, _allowed(at, parts, len(seen))
            if allowed and not dtypes <= allowed:
                yield Wrong(index, name, _said(dtypes), _said(allowed))


def _issued(trace: Trace, index: int, kind: str) -> list[Collective]:
    return [c for c in trace.collectives if c.op == index and c.kind == kind and not c.explicit]


def _sizes(trace: Trace, index: int, kind: str) -> tuple[int, ...]:
    extent = extent_of(KINDS[kind])
    return tuple(extent(c.sizes) for c in _issued(trace, index, kind))


def _said(dtypes: Iterable[str]) -> Dtypes:
    return Dtypes(tuple(sorted(dtypes)))


def _allowed(at: ScheduleState, due: Collection[Due], count: int) -> set[str]:
    """Return the dtypes of ``count`` reductions of the gradients that are ``due``, by group; empty
    if any is.

    A group may reduce in several parts.
    """
    found, allowed = inferred(at.case), set[str]()
    for each in due:
        fqns = each.before | each.new
        parts = [fqns]
        if count != len(due):
            parts += [set(pair) for pair in itertools.product(fqns, repeat=2)]
        for part in parts:
            if (dtype := promoted_reduction(at.case, found, part, at.cast)) is None:
                return set()
            allowed.add(dtype)
    return allowed


def wrong_sums(case: Case, trace: Trace) -> Iterator[Wrong]:
    """Yield where a group adds up gradients over the tensor-parallel axis in another dtype than
    its ``reduce_dtype``: "the dtype for gradient reduction (reduce-scatter or all-reduce)"
    (``MixedPrecisionPolicy``).
    """
    groups = Groups(case)
    for hook in trace.hooks if works(POST_BACKWARDS) else ():
        group = groups.numbered(hook.number)
        policy = None if group is None else case.wrap[group].precision
        due = policy and policy.reduce
        if due and {*hook.sums} - {due}:
            yield Wrong(hook.op, SUMS, _said({*hook.sums}), Dtypes((due,)))


def wrong_iterations(case: Case, trace: Trace, rank: int) -> Iterator[Wrong]:
    """Yield where an iteration communicates otherwise than an equal one before it.

    The one before that is equal, too, so that both begin in the same state. An iteration whose end
    ``set_is_last_backward`` leaves out goes on in the next.
    """
    if "is_last_backward" in flags_set(case.schedule):
        return
    iterations: list[list[tuple[object, int]]] = [[]]
    for at in follow(case, rank, skipped=trace.skipped):
        op = at.op
        if op.updates:
            iterations.append([])
        elif op.lane in _COMMUNICATING or op.takes_state or op.aborts:
            iterations[-1].append((_does(at), at.index))
    for first, second, third in zip(iterations, iterations[1:], iterations[2:], strict=False):
        does = [[what for what, _ in iteration] for iteration in (first, second, third)]
        if not does[0] == does[1] == does[2]:
            continue
        for (_, before), (_, now) in zip(second, third, strict=True):
            for kind, name in KINDS.items():
                old, new = (_sizes(trace, index, kind) for index in (before, now))
                if old != new:
                    yield Wrong(now, name, Sizes(new), Sizes(old))


def _does(at: ScheduleState) -> object:
    """Return what an op does, on whatever batch, and all that decides how it communicates."""
    call = at.op.call and at.op.call._replace(batch=0)
    frozen, paths, mesh = frozenset(at.frozen), dict(at.paths), at.case.mesh
    off = {flag: modules for flag, modules in at.off.items() if modules}
    flags = off, dict(at.flags.reduce), dict(at.flags.all_reduce), dict(at.reshards)
    return call or at.op, frozen, paths, mesh, flags, at.unsharded, at.cast, at.wrap


def communication_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Return where a run communicates otherwise than it must, in order."""
    if case.compile is not None or not Groups(case).order:
        return []
    wrong = [
        *wrong_gathers(case, trace, rank),
        *wrong_reductions(case, trace, rank),
        *wrong_sums(case, trace),
        *wrong_iterations(case, trace, rank),
    ]
    runs = ops_that_run(case, trace.engine)
    return [
        Finding(
            oracle=Communication.name,
            engine=trace.engine,
            observed=str(each.observed),
            expected=str(each.expected),
            op=each.op,
            name=each.name,
            rank=rank,
        )
        for each in sorted(wrong, key=lambda each: each.op)
        if each.op in runs
    ][:MOST_FINDINGS]


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    if not engine_of(run.engine).predicts_groups:
        return []
    return communication_findings(run.case, run.trace, run.mesh.global_rank)
