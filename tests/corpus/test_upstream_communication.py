"""The collectives predicted for upstream's accumulation cells are those that upstream counts.

The formulas are those of ``test_gradient_accumulation``: n MLPs and a root, m microbatches.
"""

from __future__ import annotations

from collections import Counter

import pytest
from upstream.accumulation import MICROBATCHES, MLPS, ROWS
from upstream.cell import Cell

from fuzzshard.case.case import Case
from fuzzshard.oracles.communication import expected_communication
from fuzzshard.parts.ops import Step

N, M = len(MLPS), MICROBATCHES
CELLS = {
    f"{cell.folder}/{cell.name}": cell for row in ROWS if row.id == "G1" for cell in row.cells
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS.keys())
def test_each_iteration_has_as_many_collectives_as_upstream_counts(cell: Cell) -> None:
    for counted in predicted_by_iteration(cell.case):
        assert counted == upstream_counts(cell)


def predicted_by_iteration(case: Case) -> list[Counter[str]]:
    iterations = [Counter[str]()]
    for op, expected in zip(case.schedule, expected_communication(case, 0), strict=True):
        assert expected is not None, "every op of these cells is predicted"
        assert expected.gathers is not None
        fewest, most = expected.gathers
        assert fewest == most
        iterations[-1]["all_gather"] += most
        iterations[-1].update(reduction.kind for reduction in expected.reductions)
        if isinstance(op, Step):
            iterations.append(Counter())
    return [Counter({kind: n for kind, n in counts.items() if n}) for counts in iterations[:-1]]


def upstream_counts(cell: Cell) -> Counter[str]:
    axes = dict(axis.split("=") for axis in cell.name.split(","))
    mode, only_scatters = axes["mode"], axes["reduce_scatter_only"] == "True"
    keeps_unsharded = axes["reshard_after_backward"] == "False"
    complete = {
        "all": N + 1,
        "some_mlps": N + 1 + (N - 1) * (M - 1),
        "root_only": N + 1 + N * (M - 1),
    }[mode]
    if axes["raf"] != "False":
        root = 1 if cell.folder == "today" else 0
        gathers = (2 * N + 1 + root) * M
    elif keeps_unsharded:
        gathers = {"all": N + 1, "root_only": N + 1 + N * (M - 1)}[mode]
    else:
        gathers = (N + 1) * M
    counts = Counter(all_gather=gathers, reduce_scatter=(N + 1) * M if only_scatters else complete)
    if axes["mesh"] == "hsdp":
        counts["all_reduce"] = complete
    return counts
