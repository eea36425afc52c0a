"""Whether all ranks issue the same collectives, and replicas of a piece stay equal."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle
from fuzzshard.parts.engines import spec_of

_RECORD = """
# functions of torch.distributed are replaced by ones that also note the call
calls = []


def recorded(name, collective):
    def call(*args, **kwargs):
        sizes = [a.numel() for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        calls.append(f"{name}{sizes}")
        return collective(*args, **kwargs)

    return call


for name in (
    "all_reduce broadcast all_gather all_gather_into_tensor all_gather_single reduce_scatter "
    "reduce_scatter_tensor reduce_scatter_single all_to_all_single"
).split():
    if hasattr(dist, name):
        setattr(dist, name, recorded(name, getattr(dist, name)))
"""


class Collectives(oracle.AcrossRanks):
    """All ranks issue the same collectives in the same order.

    Tensor-parallel ranks are not compared with each other: uneven shards of one parameter have
    different sizes.

    It cannot see a sequence that is wrong on every rank alike; ``communication`` can.
    """

    name = rests_on = "collectives"
    place = 200
    of_values = False
    title = "ranks do not issue the same collectives"
    across_ranks = "one sequence on every rank"

    @override
    def observed(
        self, case: oracle.Case, rank: int, report: oracle.RankReport, engine: str
    ) -> tuple[str, str]:
        """Compare none between tensor-parallel ranks, whose uneven shards of one parameter have
        different sizes, nor between those of different stages: they never meet in a data-parallel
        collective.
        """
        mesh, tensor = case.mesh, case.mesh.tensor or 1
        place = mesh.ranks.index(rank)
        stage = place // (mesh.data_size * tensor) if spec_of(engine).in_stages else 0
        return f"{stage}:{place % tensor}", report.collectives.get(engine, "")

    @override
    def before(self, scope: oracle.Scope) -> list[str]:
        return _RECORD.strip().splitlines()

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        return [
            "everyone = [None] * dist.get_world_size()",
            "dist.all_gather_object(everyone, list(calls))",
            'text = f"rank {rank}: expected {everyone[0]}\\nobserved {everyone[rank]}"',
            "assert everyone[rank] == everyone[0], text",
        ]


class Replicas(oracle.AcrossRanks):
    """Ranks that hold the same piece of the model end with equal parameters, bit for bit.

    It cannot see a mistake that all ranks make alike.
    """

    name = "replicas"
    place = 210
    title = "replicas drift apart"
    across_ranks = "equal copies"
    takes_parameters = True

    @override
    def observed(
        self, case: oracle.Case, rank: int, report: oracle.RankReport, engine: str
    ) -> tuple[str, str]:
        pieces, _, value = report.replicas.get(engine, ":").partition(":")
        return pieces, value

    @override
    def after(self, scope: oracle.Scope) -> list[str]:
        first = "0" if scope.names.flat else "dist.get_global_rank(group, 0)"
        ours = ["    if not isinstance(p, DTensor):", "        continue  # nobody averages these"]
        return [
            "for name, p in params.items():",
            *(ours if scope.engine.applies_groups else []),
            "    observed = snapshot(p)",
            "    expected = observed.clone()",
            f"    dist.broadcast(expected, {first}{scope.names.group_argument})",
            '    both = f"rank {rank}, {name}: rank 0 '
            'has\\n{expected}\\nobserved\\n{observed}\\n"',
            "    torch.testing.assert_close(",
            "        observed, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: both + m",
            "    )",
        ]
