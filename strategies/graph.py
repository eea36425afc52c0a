"""Models: a block is grown from tasks, each of which extends its forward DAG by a node or a few.

The tasks of a case are what its swarm allows. Every task keeps the graph valid: operands of
``add`` and ``mul`` are brought to one width by a projection where they differ, and a value a task
makes is read by the same task unless making an unread one is the task.
"""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from fuzzshard.analysis.groups import group_of, uses_outside_groups
from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case, Inputs, Mesh, Tie
from fuzzshard.case.graph import Block
from fuzzshard.strategies.builder import Growth
from fuzzshard.strategies.leaves import Leaves
from fuzzshard.strategies.swarm import FUSED, IMAGES, MIXTURE, Swarm, is_cut, shards_experts
from fuzzshard.strategies.tape import Tape
from fuzzshard.strategies.tasks import BlockGrower

_EDGE_TASKS = (
    "add",
    "mul",
    "concat",
    "detach",
    "relu",
    "tanh",
    "branch",
    "nested",
    "second_nested",
    "repeat",
    "alias",
    "no_grad_call",
    "unused_module",
    "unused_value",
)
_EXTENSION_TASKS = ("iadd", "attend", "alternatives", "adapter")
"""Tasks of extensions: where the swarm has one, nearly every case does it."""
_INEXACT_TASKS = frozenset(("mul", "tanh", "attend"))
_NUM_LEAVES = ((1, 3), (2, 4), (3, 3), (4, 2), (5, 1))
_NUM_LEAVES_EXACT = ((1, 4), (2, 4), (3, 1))


def model(
    tape: Tape, swarm: Swarm, pool: tuple[int, ...], inputs: Inputs, mesh: Mesh, *, exact: bool
) -> Block:
    """Return a root block for ``inputs``; ``exact`` keeps to operations without rounding and to
    few of them.
    """
    sharing = mesh.shard if shards_experts(swarm) else 1
    leaves = Leaves(tape, swarm, pool, sequence=inputs.seq > 0, exact=exact, sharing=sharing)
    growth = Growth(tape, swarm, leaves)
    tasks = tape.outline(_tasks, swarm, inputs, mesh, exact=exact)
    names = (
        ("x",) if len(inputs.tensors) == 1 else tuple(f"x{i}" for i in range(len(inputs.tensors)))
    )
    root = BlockGrower(growth, "", names)
    for name, tensor in zip(names, inputs.tensors, strict=True):
        if tensor.kind == "ids":
            out = tape.pick(pool)
            root.read(name, leaves.for_role("ids", tensor.size, out), out)
        elif IMAGES in swarm:
            out = tape.pick(pool)
            root.convolve(name, leaves.for_role("images", tensor.size, out), out)
        else:
            root.widths[name] = tensor.size
    root.start()
    root.grow(tasks)
    root.train()
    return root.finish(several_outputs="several_outputs" in swarm)


def _tasks(tape: Tape, swarm: Swarm, inputs: Inputs, mesh: Mesh, *, exact: bool) -> list[str]:
    """Return what extends the graph, in order."""
    count = tape.weighted(_NUM_LEAVES_EXACT if exact else _NUM_LEAVES)
    edges = _edge_tasks(tape, swarm, inputs, mesh, exact=exact)
    if is_cut(swarm):
        count += 2
    return tape.shuffled([*["leaf"] * count, *edges])


def _edge_tasks(tape: Tape, swarm: Swarm, inputs: Inputs, mesh: Mesh, *, exact: bool) -> list[str]:
    skipped = _INEXACT_TASKS if exact else frozenset()
    edges = [t for t in _EDGE_TASKS if t in swarm and t not in skipped]
    tasks = tape.some(edges, 40 if exact else 70)
    extensions = [t for t in _EXTENSION_TASKS if t in swarm and t not in skipped]
    if not inputs.seq:
        extensions = [t for t in extensions if t != "attend"]
    tasks += tape.some(extensions, 85)
    if mesh.tensor is not None:
        tasks += ["parallel_pair"] * tape.chance(80)
        tasks += ["operators"] * (0 if exact else tape.pick((1, 2)))
        tasks += ["parallel_norm"] * (inputs.seq > 0 and not exact and tape.chance(90))
    if MIXTURE in swarm:
        tasks += ["experts"] * (1 + tape.chance(30))
    if FUSED in swarm and inputs.seq and not exact:
        tasks += ["attention"] * (1 + tape.chance(20))
    return tasks


_ACROSS_GROUPS = 4
"""Percent: ``fully_shard`` refuses a parameter that two groups would manage, if the root is
wrapped.
"""


def ties(tape: Tape, swarm: Swarm, case: Case) -> tuple[Tie, ...]:
    """Return up to two pairs of parameters of one shape, mostly within a wrap group, for a case
    without ties.
    """
    if "tie" not in swarm:
        return ()
    within, across = _options(case, apart=is_cut(swarm))
    chosen: list[Tie] = []
    for _ in range(1 + tape.chance(30)):
        taken = {fqn for tie in chosen for fqn in (tie.parameter, tie.source)}
        options = across if across and tape.chance(_ACROSS_GROUPS) else within
        options = [tie for tie in options if taken.isdisjoint((tie.parameter, tie.source))]
        if options:
            chosen.append(tape.pick(options))
    tied = replace(case, ties=tuple(chosen))
    sources = {tie.source for tie in chosen if tie in across}
    outside = {fqn for _, fqn in uses_outside_groups(tied, inferred(tied), "")}
    return tied.ties if outside <= sources else ()


def _options(case: Case, *, apart: bool) -> tuple[list[Tie], list[Tie]]:
    """Return all possible ties within a wrap group, and across groups where torch refuses them in
    words; ``apart``: children of the root share nothing.
    """
    found = inferred(case)
    groups = {fqn: group_of(case, fqn) for fqn in found.parameters}
    within: list[Tie] = []
    across: list[Tie] = []
    for source, parameter in itertools.combinations(found.parameters, 2):
        fits = not apart or source.partition(".")[0] == parameter.partition(".")[0]
        if fits and found.parameters[source] == found.parameters[parameter]:
            same = groups[source] == groups[parameter]
            if same or case.root_is_wrapped:
                (within if same else across).append(Tie(parameter=parameter, source=source))
    return within, across
