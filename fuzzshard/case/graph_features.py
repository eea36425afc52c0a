"""Features that only the autograd graph of a case shows: when list groups get their hooks, what accumulates.

``fully_shard([a, b])`` has one group for two modules. Its post-forward, which registers the hooks that
unshard it in backward, runs after the forward of the last of them, on the outputs of that one
(torch/distributed/fsdp/_fully_shard/_fsdp_state.py, ``_register_group_forward_hooks``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fuzzshard.case.autograd import Node, Tape, Value, reached
from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import Block, modules_below
from fuzzshard.case.groups import root_groups
from fuzzshard.case.held_gradients import HeldGradients
from fuzzshard.case.in_place import changed_outputs
from fuzzshard.case.progress import Progress, modules_named
from fuzzshard.case.schedule import Backward, Forward, LoadState, SetFlag, SetMode, Step, Unshard
from fuzzshard.case.units import units

_Run = tuple[int, int]
"""A wrap group, and which of its runs it is: a run of a list group ends when all its modules have run."""


def graph_features(case: Case, found: Facts) -> Iterator[str]:
    """What the forwards and backwards of the schedule meet."""
    changed = changed_outputs(case)
    if any(module in changed for group in case.wrap for module in group.modules):
        yield "graph:iadd_to_wrapped"
    calls, held = _Calls(case, found), HeldGradients(case, found)
    if calls.parts_a_list_group():
        yield "graph:list_group_apart"
    progress, training = Progress(case), True
    losses: dict[int, list[Node]] = {}
    runs: dict[int, set[_Run]] = {}
    for index, op in enumerate(case.schedule):
        held.lookups.before(op, progress)
        match op:
            case SetMode():
                training = op.train
            case SetFlag():
                held.flags.set(op)
            case Forward():
                losses[index] = calls.tape.loss(op, progress, training=training)
                runs[index], calls.runs = calls.runs, set()
                uneven, in_part = calls.ran_unevenly(), any(calls.to_run[i] for i in calls.list_groups)
                if in_part:
                    yield "graph:list_group_in_part"
                if uneven or in_part:
                    yield "graph:list_group_apart"
                if calls.returns_input:
                    yield "graph:unit_returns_input"
            case Unshard() if not op.waits:
                calls.begin(modules_named(case, calls.of_module, op.target, recurse=op.recurse))
            case Step() | LoadState() if calls.gathering:
                yield "graph:unshard_then_change"
            case Backward():
                taken = [i for i, _, _ in progress.taken_by(op)]
                nodes = reached(node for i in taken for node in losses.pop(i))
                ran = {run for i in taken for run in runs.pop(i)}
                if calls.comes_late(nodes):
                    yield "graph:list_group_late"
                if calls.misses_a_first_run(nodes, ran):
                    yield "graph:first_run_missed"
                if calls.filled_with_zeros(nodes) - progress.frozen:
                    yield "graph:zeros_for_none"
                calls.end_backward(nodes)
                arrived = {fqn for node in nodes for fqn in node.parameters} - progress.frozen
                if calls.misses_a_unit(arrived):
                    yield "graph:unit_missed"
                yield from held.backward(arrived, Counter(group for group, _ in ran))
            case _:
                pass
        progress.advance()


class _Calls:
    """Counts which modules of a group have run, and hooks the outputs of the last of them."""

    def __init__(self, case: Case, found: Facts) -> None:
        self.case, self.found = case, found
        self.members = [group.modules for group in case.wrap]
        self.list_groups = {i for i, modules in enumerate(self.members) if len(modules) > 1}
        self.of_module = {module: i for i, modules in enumerate(self.members) for module in modules}
        self.to_run: list[set[str]] = [set() for _ in self.members]
        self.num_runs = [0] * len(self.members)
        self.runs: set[_Run] = set()
        """What ran in this forward."""
        self.times: Counter[str] = Counter()
        """How often each module of a group ran in this forward."""
        self.outputs: dict[_Run, set[int]] = {}
        self.gathering: set[int] = set()
        """Groups whose all-gather was begun, and which have not run since."""
        self.siblings: dict[int, list[Node]] = {}
        """The inputs of one call: a gradient of one of them gives all of them one."""
        self.units = units(case) if "fsdp1" in case.engines else {}
        self.units_run: set[str] = set()
        """The units of FSDP1 that ran since the last backward."""
        self.given: list[list[Value]] = []
        """The inputs of the units of FSDP1 that run now."""
        self.returns_input = False
        self.tape = Tape(case, found, self)

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """The first call of a module of a group makes the group wait for all of them."""
        inputs = self._begin_run(path, args, grad=grad)
        if grad and path in self.units:
            self.units_run.add(path)
            self.given.append(inputs)
        return inputs

    def _begin_run(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        index = self.of_module.get(path)
        if index is not None:
            self.times[path] += 1
            is_first = not self.to_run[index]
            if is_first:
                self.to_run[index] = set(self.members[index])
                self.num_runs[index] += 1
            self.runs.add((index, self.num_runs[index]))
            self.gathering.discard(index)
            self.begin(self.case.wrap[index].forward_prefetch)
            inputs_of = index if is_first and index in self.list_groups else None
            if grad and (inputs_of is not None or sum(arg is not None for arg in args) > 1):
                return self._bind(args, inputs_of)
        return args

    def _bind(self, args: list[Value], inputs_of: int | None) -> list[Value]:
        """Inputs of a wrapped module pass through one function (``RegisterPostBackwardFunction``).

        The group ``inputs_of`` has its post-backward there: a list group at the inputs of the first of its
        modules that runs (``FSDPParamGroup.pre_forward``).
        """
        bound = [None if arg is None else self.tape.node((arg,)) for arg in args]
        made = [node for node in bound if node is not None]
        for node in made:
            node.inputs_of = inputs_of
        self.siblings |= {node.number: made for node in made}
        return list(bound)

    def begin(self, modules: Iterable[str]) -> None:
        """An all-gather of the groups of ``modules`` begins."""
        self.gathering.update(self.of_module[module] for module in modules)

    def leave(self, path: str, results: list[Value], *, grad: bool) -> None:
        """The last module to run brings the hooks."""
        if grad and path in self.units:
            given = self.given.pop()
            self.returns_input |= any(node is not None and node in given for node in results)
        index = self.of_module.get(path)
        if index is None or path not in self.to_run[index]:
            return
        self.to_run[index].discard(path)
        if not self.to_run[index]:
            made = [node for node in results if node is not None]
            self.outputs[index, self.num_runs[index]] = {node.number for node in made}
            for node in made:
                node.hooks.append(index)

    def end_backward(self, nodes: list[Node]) -> None:
        """What ran in part begins anew, as do all-gathers below the FSDP roots that ``nodes`` come to."""
        self.to_run = [set() for _ in self.members]
        if self.gathering:
            roots = root_groups(self.case)
            came_to = {roots[index] for node in nodes for index in node.hooks}
            self.gathering = {index for index in self.gathering if roots[index] not in came_to}

    def ran_unevenly(self) -> bool:
        """Whether some module of a list group ran more often than another in the forward that ends here."""
        times, self.times = self.times, Counter()
        return any(len({times[module] for module in self.members[i]}) > 1 for i in self.list_groups)

    def parts_a_list_group(self) -> bool:
        """Whether some module of a list group, and not all, is recomputed or called without its hooks."""
        if not self.list_groups:
            return False
        apart = [modules_below(self.case.model, checkpoint.module) for checkpoint in self.case.checkpoints]
        modules = self.found.modules.items()
        apart.append(frozenset(p for p, m in modules if isinstance(m, Block) and m.method != "forward"))
        members = [set(self.members[i]) for i in self.list_groups]
        return any(paths & group and group - paths for paths in apart for group in members)

    def comes_late(self, nodes: list[Node]) -> bool:
        """Whether one of ``nodes``, in their order, comes to a list group that is not in its backward.

        That begins with the hooks of each of its runs, and ends with the post-backward of any.
        """
        ready: set[int | None] = set()
        for node in nodes:
            ready.update(node.hooks)
            ready.discard(node.inputs_of)
            owners = {self.found.owners[fqn] for fqn in node.reads}
            if not owners.intersection(self.list_groups) <= ready:
                return True
        return False

    def misses_a_unit(self, arrived: set[str]) -> bool:
        """Whether gradients for ``arrived`` end the backward, and a unit that ran has none of them."""
        ran, self.units_run = self.units_run, set()
        return any(arrived.isdisjoint(self.units[unit]) for unit in ran)

    def filled_with_zeros(self, nodes: list[Node]) -> set[str]:
        """The parameters that get zeros because another input of some call has a gradient."""
        seen = {node.number: node for node in nodes}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            for other in (*node.inputs, *self.siblings.get(node.number, ())):
                if other.number not in seen:
                    seen[other.number] = other
                    stack.append(other)
        plain = {fqn for node in nodes for fqn in node.parameters}
        return {fqn for node in seen.values() for fqn in node.parameters} - plain

    def misses_a_first_run(self, nodes: list[Node], runs: set[_Run]) -> bool:
        """Whether a group has run several times, and ``nodes`` come to its outputs, but not to the first."""
        numbers = {node.number for node in nodes}
        first = {group: (group, number) for group, number in sorted(runs, reverse=True)}
        reached_runs = {run for run in runs if not numbers.isdisjoint(self.outputs.get(run, ()))}
        return any(self.outputs.get(first[g]) and first[g] not in reached_runs for g, _ in reached_runs)
