"""What a case costs against the size of its mesh, of its model and of its schedule.

One dimension grows at a time; the model is a chain of linear layers, each of them wrapped, trained
by SGD. Given are the median seconds of a run, and the processor time of all its ranks, which a
busy machine changes less.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from common import (
    configure,
    describe_machine,
    machine_line,
    make_console,
    make_parser,
    print_json,
    rank_seconds,
    run_main,
)
from rich.table import Table

from fuzzshard.case.case import Case, EngineName, Inputs, Mesh, TensorSpec, WrapGroup
from fuzzshard.case.graph import Block, Call, Child
from fuzzshard.errors import EXIT_CLEAN, InfraError
from fuzzshard.parts.leaves.linear import Linear
from fuzzshard.parts.op import Op
from fuzzshard.parts.ops import Backward, Forward, Step, ZeroGrad
from fuzzshard.verdict import Status
from fuzzshard.world import World

ENGINES: tuple[EngineName, ...] = ("ddp", "fully_shard")
LAYERS, STEPS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
"""What is tried, beside the default of 4 layers and 2 steps."""
DEADLINE = 60.0
"""Seconds that a run may take: this measures slow ones too."""


class Cost(NamedTuple):
    """One row: which dimension has which size, and what a run costs."""

    dimension: str
    size: int
    seconds: float
    processor_ms: float


def chain(num_ranks: int, layers: int, steps: int) -> Case:
    """A chain of wrapped linear layers, trained for as many steps."""
    names = [f"layer{i}" for i in range(layers)]
    values = ["x", *(f"h{i}" for i in range(layers))]
    schedule: list[Op] = []
    for step in range(steps):
        schedule += [ZeroGrad(), Forward(batch=step), Backward(), Step()]
    return Case(
        seed=0,
        model=Block(
            children=tuple(Child(name=name, module=Linear(out=8)) for name in names),
            nodes=tuple(
                Call(name=result, module=name, args=(value,))
                for name, value, result in zip(names, values[:-1], values[1:], strict=True)
            ),
            outputs=(values[-1],),
        ),
        inputs=Inputs(batch=2, tensors=(TensorSpec(size=8),)),
        mesh=Mesh(shard=num_ranks),
        engines=ENGINES,
        wrap=(*(WrapGroup(modules=(name,)) for name in names), WrapGroup(modules=("",))),
        schedule=tuple(schedule),
    )


def meshes(world_size: int) -> list[int]:
    """Powers of two up to the size of the world."""
    return [2**i for i in range(world_size.bit_length()) if 2**i <= world_size]


def measure(world: World, repeat: int) -> Iterator[Cost]:
    """Every row, as soon as it is known."""
    largest = world.config.size
    for ranks in meshes(largest):
        yield cost(world, "ranks", ranks, chain(ranks, 4, 2), repeat)
    for layers in LAYERS:
        yield cost(world, "layers", layers, chain(min(2, largest), layers, 2), repeat)
    for steps in STEPS:
        yield cost(world, "steps", steps, chain(min(2, largest), 4, steps), repeat)


def cost(world: World, dimension: str, size: int, case: Case, repeat: int) -> Cost:
    """What runs take after one that fills caches; raises :class:`InfraError` unless all of them
    pass.
    """
    verdicts = [world.run(case, deadline=DEADLINE)]
    before = rank_seconds(world)
    verdicts += [world.run(case, deadline=DEADLINE) for _ in range(repeat)]
    used = rank_seconds(world) - before
    if bad := [verdict for verdict in verdicts if verdict.status is not Status.PASS]:
        raise InfraError(f"a chain of layers should pass and is {bad[0].status}", "run doctor")
    seconds = statistics.median(verdict.seconds for verdict in verdicts[1:])
    return Cost(dimension, size, seconds, 1000 * used / repeat)


def make_table(costs: list[Cost]) -> Table:
    """The rows for people, with the cost of one more of a thing between two sizes."""
    table = Table(title=f"Cost of a case under {' and '.join(ENGINES)}")
    for name in ("dimension", "size", "s/case", "processor ms/case", "ms for one more"):
        table.add_column(name, justify="left" if name == "dimension" else "right")
    for before, row in zip([None, *costs], costs, strict=False):
        more = ""
        if before is not None and before.dimension == row.dimension:
            more = f"{(row.processor_ms - before.processor_ms) / (row.size - before.size):.1f}"
        table.add_row(
            row.dimension, str(row.size), f"{row.seconds:.3f}", f"{row.processor_ms:.0f}", more
        )
    return table


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--repeat", type=int, default=20, help="runs of each case")
    args = parser.parse_args()
    console = make_console(args)
    with World(configure(args)) as world:
        world.start()
        machine = describe_machine(world.info, world.config.size)
        console.print(machine_line(machine, args.seed))
        costs = []
        for row in measure(world, args.repeat):
            costs.append(row)
            console.print(f"{row.dimension} {row.size}: {row.processor_ms:.0f} ms")
    if args.json:
        print_json({"costs": [row._asdict() for row in costs], "machine": machine})
    else:
        console.print(make_table(costs))
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
