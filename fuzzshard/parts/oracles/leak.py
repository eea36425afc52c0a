"""What a run leaves behind: :mod:`fuzzshard.oracles.after_run` says what is due.

Scripts say it by names that are private to torch, those of
:mod:`fuzzshard.engines.fully_shard_state`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from typing_extensions import override

from fuzzshard.errors import UsageError
from fuzzshard.parts import oracle

Kind = Literal[
    "survivor",
    "memory",
    "device_memory",
    "growth",
    "buffer",
    "reduction",
    "gather",
    "state",
    "hook",
    "layout",
]
"""Details of findings."""

PARTIAL = "a sum over shards that was not all-reduced"
NOTHING = "none"
IDLE = "idle"
"""What is left of a group, or is due."""

_INTERNAL = ("reduction", "gather", "state")
_COUNTED = [
    "while gc.collect():",
    "    pass",
    "things = (*gc.get_objects(), *contextvars.copy_context())",
    "counts.append(collections.Counter(type(thing).__name__ for thing in things))",
]


class Left(NamedTuple):
    """One thing that is left: its kind, its name, what is there, and what should be."""

    kind: Kind
    name: str
    observed: str
    expected: str


class Leak(oracle.Oracle):
    """What is left after a run: memory, pending communication, hooks, misplaced states.

    A user sees memory that stays allocated, models that outlive their last reference, and hooks
    that accumulate in public registries; other kinds are internal.

    It cannot see memory that torch keeps in caches of its own, such as compiled graphs.
    """

    name = "leak"
    place = 190
    of_values = False
    tells_apart = True
    needs_finding = True
    title = "{name}: {observed}; {expected} is due"
    basis = "what a run leaves behind does not depend on rounding; expected: {expected}."

    @override
    def severity(self, detail: str) -> oracle.Severity:
        """States and gradients that lie elsewhere than their parameters are a wrong result."""
        if detail == "layout":
            return oracle.Severity.SILENT
        return oracle.Severity.INTERNAL if detail in _INTERNAL else oracle.Severity.LEAK

    @override
    def instrument(self, detail: str) -> str:
        if detail in _INTERNAL:
            return "group states"
        return "unsharded memory" if detail in ("memory", "buffer") else ""

    @override
    def assertion(
        self, case: oracle.Case, finding: oracle.Finding, assertion: oracle.Assertion
    ) -> oracle.Assertion:
        return assertion.at(finding).but(observed=finding.observed, detail=finding.detail)

    @override
    def within(self, scope: oracle.Scope, built: list[str], lines: list[str]) -> list[str]:
        """Return lines in a function perhaps, after which nothing of the model is there."""
        hooks = scope.assertion.detail == "hook"
        if scope.assertion.detail == "growth":
            inner = (f"    {line}" for line in (*lines, *_COUNTED))
            lines = ["counts = []", "for _ in range(6):", *inner]
        lines = [*built, *([f"before = {_hook_count(scope)}"] if hooks else []), *lines]
        if scope.assertion.detail != "survivor":
            return lines
        aborts = any(op.aborts for op in scope.case.schedule)
        watched = "[*model.named_modules(), *model.named_parameters()]"
        lines = [*lines, f"return {{name: weakref.ref(thing) for name, thing in {watched}}}"]
        return [
            "",
            "",
            "def run():",
            *(f"    {line}" for line in lines),
            "",
            "",
            "watched = run()",
            *(["torch.ones((), requires_grad=True).backward()  # drops an aborted one"] * aborts),
            "while gc.collect():",
            "    pass",
            "left = [name or 'the root' for name, thing in watched.items() if thing() is not "
            "None]",
            'assert not left, f"rank {rank}: {left} outlive the model"',
        ]

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        """Return the assertion; raises :class:`UsageError` for what a script cannot name."""
        assertion = scope.assertion
        match assertion.detail:
            case "survivor":
                return []
            case "hook":
                text = f"{{before}} {assertion.name} before the run, {{after}} after it"
                return [
                    f"after = {_hook_count(scope)}",
                    f'text = f"rank {{rank}}: {text}"',
                    "assert after == before, text",
                ]
            case "layout":
                return _layout(scope)
            case "growth":
                kind = assertion.name.rpartition(" ")[2]
                return [
                    f'found = [count["{kind}"] for count in counts][2:]',
                    "grows = all(a < b for a, b in zip(found, found[1:]))",
                    f'assert not grows, f"rank {{rank}}: {{found}} {assertion.name}"',
                ]
            case "buffer":
                found = f"[g.comm_ctx.all_gather_state for g in groups({scope.model})]"
                return _nothing(found, "an all-gather that was copied out is kept")
            case "memory":
                return [
                    f"held = {scope.part(assertion.name.removeprefix('unsharded '))}",
                    "tensors = (*held.all_gather_outputs, *held._unsharded_inner_tensors)",
                    "size = sum(t.untyped_storage().size() for t in tensors)",
                    f'assert size == 0, f"rank {{rank}}: {{size}} bytes of {assertion.name} are '
                    'not freed"',
                ]
            case _:
                return _of_group(scope)


def _of_group(scope: oracle.Scope) -> list[str]:
    """Return what one group holds; the name ends with one of its modules, or with several."""
    assertion = scope.assertion
    what, _, modules = assertion.name.partition(" of ")
    first = modules.split(", ")[0].replace("the root", "")
    mine = f"for g in groups({scope.model}) if {scope.at(first)} in g.modules"
    match assertion.detail:
        case "gather" if assertion.expected == NOTHING:
            return _nothing(
                f"[g._all_gather_result {mine}]", f"an {what} was issued and is not used"
            )
        case "reduction" if assertion.observed == PARTIAL:
            return _nothing(
                f"[g._partial_reduce_output {mine}]", "a sum over shards was not all-reduced"
            )
        case "reduction":
            inputs = '*getattr(g.comm_ctx, "reduce_scatter_states", [])'
            kept = f"[s {mine} for s in (g._post_reduce_event, g._all_reduce_state, {inputs})]"
            return _nothing(kept, "inputs or events of a reduction are kept")
        case "state" if assertion.expected == IDLE:
            states = f"{{g._training_state.name {mine}}}"
            return [
                f"states = {states}",
                'assert states == {"IDLE"}, f"rank {rank}: after the run the group is in '
                '{states}"',
            ]
    raise UsageError(f"no script looks at {assertion.name}", "replay the case")


def _nothing(found: str, text: str) -> list[str]:
    return [
        f"kept = {found}",
        f'assert kept == [None] * len(kept), f"rank {{rank}}: {text}"',
    ]


def _layout(scope: oracle.Scope) -> list[str]:
    kind, _, fqn = scope.assertion.name.partition(" of ")
    made = f'state = optimizer.state[parameter]["{kind}"]'
    if kind == "gradient":
        made = "grad = parameter.grad"
    known = "(t.dtype, t.device, t.shape, t.placements if isinstance(t, DTensor) else None)"
    if oracle.IN_SPEC in scope.assertion.observed + scope.assertion.expected:
        known = "(t.dtype, t._spec.tensor_meta.dtype, t.device, t.shape, t.placements)"
    return [
        f"parameter = {scope.at(fqn)}",
        made,
        "layouts = [",
        f"    {known}",
        f"    for t in ({made.partition(' ')[0]}, parameter)",
        "]",
        f'text = f"rank {{rank}}: the {kind} is {{layouts[0]}}, its parameter {{layouts[1]}}"',
        "assert layouts[0] == layouts[1], text",
    ]


def _hook_count(scope: oracle.Scope) -> str:
    kind, _, name = scope.assertion.name.partition(" of ")
    return f'len(getattr({scope.at(name.replace("the root", ""))}, "{kind}", None) or ())'
