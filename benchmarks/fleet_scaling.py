"""Measures how the cases per second of a fleet grow with its nodes, and what its head costs.

Each node is a Ray node on this machine, with a campaign of one world. On the CPU, nodes bring a
core for each rank with them. With ``--device cuda`` they share the ``--gpus`` of the machine
equally, so each fleet has all of these, and ranks share a GPU where a node has fewer GPUs than a
world has ranks.

Cases are drawn as in any fleet, so every node has others. Counted is what is judged between the
first verdict of the last node to begin and ``--seconds`` later. The processor time of the head is
that of ``fleet run``, all its threads included, and not that of Ray's own processes. Needs Ray,
and a core for each rank and each campaign: other nodes must not take what a node needs.

For example, one node with both GPUs of a machine, and two with one each:
  python benchmarks/fleet_scaling.py --device cuda --nodes 1,2
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from common import make_console, make_parser, print_json, run_main, seconds_of
from fleet_cluster import Fleet, Nodes, journal
from rich.table import Table

from fuzzshard.errors import EXIT_CLEAN, InfraError, UsageError
from fuzzshard.world.device import cuda_devices

JOIN_SECONDS = 180.0
END_SECONDS = 150.0


class Row(NamedTuple):
    """One fleet, each of whose nodes has ``gpus``; ``head_ms`` is the processor time of its head
    in milliseconds per case. ``efficiency`` is the rate against that of the first fleet with as
    many GPUs, or on the CPU with as many nodes.
    """

    nodes: int
    gpus: int
    cases: int
    per_second: float
    per_node: float
    efficiency: float
    head_ms: float
    head_busy: float


def judged(fleet: Fleet) -> list[int]:
    """The verdicts in the journal of each node by now."""
    counts = []
    for slot in fleet.slots():
        with journal(slot) as history:
            ((number,),) = history.rows("SELECT count(*) FROM case_run WHERE status IS NOT NULL")
        counts.append(number)
    return counts


def measure(num_nodes: int, args: Any) -> Row:
    """A fleet of so many nodes; its efficiency is not known yet."""
    each = args.gpus // num_nodes if args.device == "cuda" else 0
    with tempfile.TemporaryDirectory(prefix="fuzzshard-scaling-") as folder, Nodes() as nodes:
        for number in range(num_nodes):
            nodes.add(range(number * each, (number + 1) * each))
        options = ["--seed", args.seed, "--device", args.device, "--world-size", args.world_size]
        options += ["--mends", "on", "--no-shrink"]
        if each:
            options += ["--ranks-per-device", -(-args.world_size // each)]
        fleet = Fleet(Path(folder), nodes, options)
        try:
            fleet.wait_until(
                lambda: len(counts := judged(fleet)) == num_nodes and min(counts) > 0,
                JOIN_SECONDS,
                f"a first verdict of each of {num_nodes} nodes",
            )
            head = psutil.Process(fleet.process.pid)
            began, before, used = time.monotonic(), sum(judged(fleet)), seconds_of(head)
            time.sleep(args.seconds)
            seconds, after = time.monotonic() - began, sum(judged(fleet))
            used = seconds_of(head) - used
            fleet.stop()
            fleet.process.wait(END_SECONDS)
        finally:
            if fleet.running():
                fleet.process.kill()
        if left := fleet.left():
            raise InfraError(f"{len(left)} processes are left", f"look at process {left[0].pid}")
    cases = after - before
    return Row(
        nodes=num_nodes,
        gpus=each,
        cases=cases,
        per_second=cases / seconds,
        per_node=cases / seconds / num_nodes,
        efficiency=1.0,
        head_ms=1000 * used / max(cases, 1),
        head_busy=used / seconds,
    )


def make_table(rows: list[Row]) -> Table:
    """The rows for people."""
    table = Table(title="Cases per second of a fleet", title_justify="left")
    for name in (
        "nodes",
        "GPUs each",
        "cases",
        "cases/s",
        "per node",
        "efficiency",
        "head ms/case",
        "head",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.nodes),
            str(row.gpus),
            str(row.cases),
            f"{row.per_second:.2f}",
            f"{row.per_node:.2f}",
            f"{row.efficiency:.2f}",
            f"{row.head_ms:.2f}",
            f"{row.head_busy:.1%}",
        )
    return table


def main() -> int:
    """Measures, and prints a table."""
    parser = make_parser(__doc__, world_size=2)
    parser.add_argument("--nodes", default="1,2,4", help="sizes of fleets")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each is counted")
    parser.add_argument("--gpus", type=int, default=cuda_devices(), help="GPUs of all nodes")
    parser.set_defaults(device="cpu")
    args = parser.parse_args()
    sizes = [int(size) for size in args.nodes.split(",")]
    if args.device == "cuda" and (not args.gpus or any(args.gpus % size for size in sizes)):
        raise UsageError(
            f"{args.nodes} nodes cannot share {args.gpus} GPUs equally", "give other --nodes"
        )
    console = make_console(args)
    rows: list[Row] = []
    for number in sizes:
        row = measure(number, args)
        first = (rows or [row])[0]
        grown = 1.0 if row.gpus else row.nodes / first.nodes
        rows.append(row._replace(efficiency=row.per_second / first.per_second / grown))
        console.print(f"{number} nodes: {rows[-1].per_second:.2f} cases per second")
    console.print(make_table(rows))
    if args.json:
        print_json({"rows": [row._asdict() for row in rows], "seed": args.seed})
    return EXIT_CLEAN


if __name__ == "__main__":
    run_main(main)
