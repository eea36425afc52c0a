"""What must not be left behind by a run: memory, pending communication, hooks, misplaced optimizer states.

Sharded parameters have no unsharded memory: ``fully_shard`` frees it when it reshards (its docstring), and
the last backward waits for all reductions (``set_is_last_backward``). What may be left follows from the
schedule: groups that stay unsharded (:mod:`fuzzshard.oracles.registration`), all-gathers that were
issued ahead (:mod:`fuzzshard.oracles.fully_shard_model`), sums over shards that wait for their all-reduce.
An optimizer's states lie where their parameter does: they are made like it (``torch.zeros_like``), and a
checkpoint is loaded into the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from fuzzshard.case.case import Case
from fuzzshard.case.schedule import SetFlag
from fuzzshard.engines.fully_shard_state import GroupState
from fuzzshard.oracles.fully_shard_model import FullyShardModel
from fuzzshard.oracles.group_model import Group, Phase
from fuzzshard.oracles.judge import MOST_FINDINGS
from fuzzshard.oracles.registration import SHARDED, RegistrationModel
from fuzzshard.training.remains import Remains
from fuzzshard.training.trace import Trace
from fuzzshard.verdict import Finding

Leak = tuple[str, str, str]
"""The name of what is left, what is there, and what should be."""


def leak_findings(case: Case, engine: str, trace: Trace, rank: int) -> list[Finding]:
    """What the run of ``engine`` has left; nothing is said of a run that an expected error has ended."""
    if trace.remains is None:
        return []
    leaks = [*_of_any_engine(trace.remains), *_of_groups(case, trace, trace.remains, rank)]
    return [
        Finding(
            oracle="leak",
            engine=engine,
            observed=observed,
            expected=expected,
            op=len(case.schedule) - 1,
            name=name,
            rank=rank,
        )
        for name, observed, expected in leaks[:MOST_FINDINGS]
    ]


def _of_any_engine(remains: Remains) -> Iterator[Leak]:
    for name, (before, after) in remains.hooks.items():
        yield name, f"{after} after the run", f"{before}, as before it"
    for name, (state, parameter) in remains.states.items():
        yield name, str(state), f"{parameter}, as its parameter"


def _of_groups(case: Case, trace: Trace, remains: Remains, rank: int) -> Iterator[Leak]:
    """What ``fully_shard`` holds; other engines show nothing of the kind."""
    if not remains.groups:
        return
    registration, model, certain = RegistrationModel(case, rank), FullyShardModel(case, rank), True
    for index in range(len(case.schedule)):
        registration.advance(index, index in trace.skipped)
        prediction = model.advance()
        certain &= prediction is not None and prediction.gathers_certain
    flags = {op.flag for op in case.schedule if isinstance(op, SetFlag)}
    for index, held in remains.groups.items():
        group = model.groups[index]
        if registration.groups[index].state == SHARDED:
            yield from _unsharded(held)
        yield from _communication(held, group, flags)
        if certain:
            yield from _hooks(held, group)


def _unsharded(held: GroupState) -> Iterator[Leak]:
    for fqn, elements in held.unsharded.items():
        if elements:
            yield f"unsharded {fqn}", f"memory of {elements} elements", "freed"


def _communication(held: GroupState, group: Group, flags: Set[str]) -> Iterator[Leak]:
    name = _name(group)
    if held.keeps_buffer:
        yield f"all-gather of {name}", "its output, which was copied out", "freed"
    if held.reduces and "is_last_backward" not in flags:
        yield f"reduction of {name}", "its input or event", "freed at the end of the last backward"
    if held.partial and "requires_all_reduce" not in flags:
        yield f"reduction of {name}", "a sum over shards that was not all-reduced", "none"


def _hooks(held: GroupState, group: Group) -> Iterator[Leak]:
    """What the model of the hooks knows; it has to follow every one of them for that."""
    name = _name(group)
    if held.gathers != group.gathering:
        words = {True: "issued and never used", False: "none"}
        yield f"all-gather of {name}", words[held.gathers], words[group.gathering]
    if held.idle != (group.phase is Phase.IDLE):
        yield f"state of {name}", "idle" if held.idle else "within a forward or backward", group.phase.value


def _name(group: Group) -> str:
    return ", ".join(module or "the root" for module in group.spec.modules)
