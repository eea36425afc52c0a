"""Post-backwards must run within the backward, as soon as a group's gradients are complete.

A group whose inputs require gradients is done when these have been computed, and shards and
reduces then; only what has no such inputs may wait for the end of the whole backward. Upstream
counts the hooks: ``test_train_mixed_requires_grad_per_group`` and ``..._across_groups``
(test/distributed/_composable/fsdp/test_fully_shard_frozen.py) for ``fully_shard``,
``test_backward_reshard_hooks`` (test/distributed/fsdp/test_fsdp_fine_tune.py) for FSDP1, where a
frozen unit is done when the gradients of its inputs are and a trainable one when its own is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from typing_extensions import override

from fuzzshard.analysis.autograd import AutogradGraph, Node, Value, Watcher, reached
from fuzzshard.analysis.inferred import inferred
from fuzzshard.analysis.passed_roots import done_within
from fuzzshard.analysis.schedule_state import follow, ops_that_run
from fuzzshard.analysis.units import parameter_units, units
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block
from fuzzshard.oracles.communication import Groups
from fuzzshard.oracles.judge import MOST_FINDINGS, Run
from fuzzshard.parts.engines import spec_of
from fuzzshard.parts.oracles.hooks import Hooks, InBackward
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding


def fully_shard_hook_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Return findings where a group is not done in a backward that brings its inputs gradients."""
    numbers = Groups(case)
    timely = {
        (hook.op, numbers.numbered(hook.number))
        for hook in trace.hooks
        if hook.kind == "post_backward" and not hook.deferred
    }
    runs, found = ops_that_run(case, trace.engine), []
    for op, groups in done_within(case, rank).items() if case.compile is None else ():
        for group in sorted(groups):
            if op in runs and (op, group) not in timely:
                name = case.wrap[group].modules[0] or "the root"
                observed, due = str(InBackward(0)), str(InBackward(1))
                found.append(_finding(trace.engine, op, rank, name, observed, due))
    return found[:MOST_FINDINGS]


def _finding(engine: str, op: int, rank: int, name: str, observed: str, expected: str) -> Finding:
    return Finding(
        oracle=Hooks.name,
        engine=engine,
        observed=observed,
        expected=expected,
        op=op,
        name=name,
        rank=rank,
    )


def fsdp1_hook_findings(case: Case, trace: Trace, rank: int) -> list[Finding]:
    """Return findings where FSDP1 resharded other units within a backward than are done there."""
    seen = Counter(h.op for h in trace.hooks if not h.deferred)
    return [
        _finding(
            trace.engine,
            op,
            rank,
            "",
            *(str(InBackward(n, of_units=True)) for n in (seen[op], wanted)),
        )
        for op, wanted in resharded_units(case, rank)
        if wanted is not None and op in ops_that_run(case, trace.engine) and seen[op] != wanted
    ][:MOST_FINDINGS]


def resharded_units(case: Case, rank: int) -> Iterator[tuple[int, int | None]]:
    """Yield for every backward of the schedule, how many units of FSDP1 reshard within it; None
    where unknown.

    Known where every unit runs once between two backwards, is trainable or frozen as a whole, and
    gets its inputs by themselves: FSDP1 finds none in a dataclass
    (``_register_post_backward_reshard_only_hook``).
    """
    found, calls = inferred(case), _Calls(case)
    autograd = AutogradGraph(case, found, calls)
    plain = not case.checkpoints and case.compile is None
    plain &= all(len(names) == 1 for names in parameter_units(case).values())
    called = [found.modules[unit] for unit in units(case)]
    plain &= all(
        not isinstance(module, Block) or module.passing != "dataclass" for module in called
    )
    last = -1
    for at in follow(case, rank):
        losses = autograd.follow(at)
        if at.op.takes:
            once = len(at.pending) == 1 and at.pending[0].place > last
            known = plain and once and max(calls.counts.values(), default=1) == 1
            last = at.index
            if losses:
                yield at.index, calls.done(reached(losses), at.frozen) if known else None
            calls.clear()


class _Calls(Watcher):
    """The calls of units since the last backward."""

    def __init__(self, case: Case) -> None:
        self.units = units(case)
        self.clear()

    def clear(self) -> None:
        """Forgets them."""
        self.counts: Counter[str] = Counter()
        self.inputs: dict[str, list[Node]] = {}

    @override
    def enter(self, path: str, args: tuple[Value, ...], *, grad: bool) -> tuple[Value, ...]:
        """Keeps the inputs of a unit that require gradients."""
        if path in self.units and grad:
            self.counts[path] += 1
            self.inputs[path] = [a for a in args if a is not None]
        return args

    def done(self, nodes: list[Node], frozen: set[str]) -> int | None:
        """How many units reshard in a backward through ``nodes``; None where one is partly frozen.

        A frozen one does when the gradients of its inputs are there; an input that the backward
        does not come to "will be ignored" (``torch.autograd.graph.register_multi_grad_hook``).
        """
        used = {fqn for node in nodes for fqn in node.parameters}
        count = 0
        for unit, fqns in self.units.items():
            if 0 < len(frozen.intersection(fqns)) < len(fqns):
                return None
            if frozen.issuperset(fqns):
                count += any(node in nodes for node in self.inputs.get(unit, []))
            else:
                count += not used.isdisjoint(fqns)
        return count


def judge(run: Run) -> list[Finding]:
    """Return the findings in one run."""
    spec, findings = spec_of(run.engine), list[Finding]()
    if spec.applies_groups:
        findings += fully_shard_hook_findings(run.case, run.trace, run.mesh.global_rank)
    if spec.has_units:
        findings += fsdp1_hook_findings(run.case, run.trace, run.mesh.global_rank)
    return findings
