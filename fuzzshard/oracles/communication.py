"""How much ``fully_shard`` communicates: the collectives of every op against what it documents.

A group is gathered where it is used and not unsharded, and reduces the gradients of its trainable
parameters once for every time that they are complete. Upstream asserts such counts in
``test_gradient_accumulation`` and the sizes in ``test_train_mixed_requires_grad_per_group``
(test/distributed/_composable/fsdp). Backward also gathers ahead in the reverse order of forward;
where that guess is wrong there may be more all-gathers than needed, so their number is a range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fuzzshard.case.case import Case
from fuzzshard.case.schedule_state import ops_that_run
from fuzzshard.instruments import POST_BACKWARDS, works
from fuzzshard.oracles.fully_shard_model import followed
from fuzzshard.oracles.group_model import Issued
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.oracles.communication import (
    ENTRY_POINTS,
    GATHERS,
    SUMS,
    Communication,
    Dtypes,
    Number,
    of_sizes,
)
from fuzzshard.training.collectives import Collective
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding

REDUCTIONS = ("reduce_scatter", "all_reduce")


class Expected(NamedTuple):
    """The collectives of one op: the fewest and the most all-gathers (None: unknown), and the
    rest.
    """

    gathers: tuple[int, int] | None
    gathered: frozenset[int | None]
    reductions: tuple[Issued, ...]


def expected_communication(case: Case, rank: int) -> list[Expected | None]:
    """For every op of the schedule; None where nothing is predicted."""
    eager = followed(case, rank).predictions
    needed = followed(case, rank, prefetches=False).predictions
    expected: list[Expected | None] = []
    for most, fewest in zip(eager, needed, strict=True):
        if most is None or fewest is None:
            expected.append(None)
            continue
        gathers = [i for i in most.issued if i.kind == "all_gather"]
        possible = [i for i in fewest.issued if i.kind == "all_gather"]
        counts = [
            sum(i.sure for i in gathers),
            len(gathers),
            sum(i.sure for i in possible),
            len(possible),
        ]
        certain = most.gathers_certain and fewest.gathers_certain
        expected.append(
            Expected(
                gathers=(min(counts), max(counts)) if certain else None,
                gathered=frozenset(i.size for i in gathers),
                reductions=tuple(i for i in most.issued if i.kind in REDUCTIONS),
            )
        )
    return expected


def communication_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Where ``fully_shard`` communicated otherwise than it documents, in order."""
    seen: dict[int, list[Collective]] = {}
    for collective in trace.collectives:
        if not collective.explicit:
            seen.setdefault(collective.op, []).append(collective)
    expected = expected_communication(case, rank)
    found = [
        Finding(
            oracle=Communication.name,
            engine=trace.engine,
            observed=observed,
            expected=wanted,
            op=op,
            name=name,
            rank=rank,
        )
        for op in ops_that_run(case, trace.engine)
        if (collectives := expected[op]) is not None
        for name, observed, wanted in _disagreements(collectives, seen.get(op, []))
    ]
    return found[:MOST_FINDINGS]


def sum_findings(case: Case, trace: Trace, rank: int) -> Iterator[Finding]:
    """Yield where a group adds up gradients over the tensor-parallel axis in another dtype than
    its ``reduce_dtype``: "the dtype for gradient reduction (reduce-scatter or all-reduce)"
    (``MixedPrecisionPolicy``).
    """
    groups = [group for group in followed(case, rank).after.groups if group.parameters]
    for done in trace.post_backwards:
        policy = groups[done.number % len(groups)].spec.policy
        due = policy and policy.dtype_of("gradients")
        if due and {*done.sums} - {due}:
            yield Finding(
                oracle=Communication.name,
                engine=trace.engine,
                observed=str(Dtypes(tuple(sorted({*done.sums})))),
                expected=str(Dtypes((due,))),
                op=done.op,
                name=SUMS,
                rank=rank,
            )


def _disagreements(expected: Expected, seen: list[Collective]) -> Iterator[tuple[str, str, str]]:
    """(what, observed, expected) of everything that is wrong in one op."""
    gathers = [max(c.sizes) for c in seen if c.kind == "all_gather"]
    if (
        expected.gathers is not None
        and not expected.gathers[0] <= len(gathers) <= expected.gathers[1]
    ):
        yield GATHERS, str(len(gathers)), str(Number(*expected.gathers))
    elif (
        expected.gathers is not None
        and None not in expected.gathered
        and set(gathers) - expected.gathered
    ):
        yield GATHERS, str(of_sizes(gathers)), str(of_sizes(expected.gathered))
    for kind, name in zip(REDUCTIONS, (n for n in ENTRY_POINTS if n != GATHERS), strict=True):
        observed = [c for c in seen if c.kind == kind]
        wanted = [i for i in expected.reductions if i.kind == kind]
        if len(observed) != len(wanted):
            yield name, str(len(observed)), str(len(wanted))
            continue
        sizes = [min(c.sizes) for c in observed]
        if all(i.size is not None for i in wanted) and Counter(sizes) != Counter(
            i.size for i in wanted
        ):
            yield name, str(of_sizes(sizes)), str(of_sizes(i.size for i in wanted))
        dtypes, due = {c.dtype for c in observed}, {i.dtype for i in wanted}
        if None not in due and dtypes != due:
            yield (
                name,
                str(Dtypes(tuple(sorted(dtypes)))),
                str(Dtypes(tuple(sorted(map(str, due))))),
            )


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    if not spec_of(run.engine).predicts_groups:
        return []
    rank = run.mesh.global_rank
    found = communication_findings(run.case, run.trace, rank)
    if works(POST_BACKWARDS):
        found += sum_findings(run.case, run.trace, rank)
    return found[:MOST_FINDINGS]
