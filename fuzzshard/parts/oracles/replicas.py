"""Whether replicas of a piece of the model stay equal."""

from __future__ import annotations

from typing_extensions import override

from fuzzshard.parts import oracle


class Replicas(oracle.AcrossRanks):
    """Ranks that hold the same piece of the model end with equal parameters, bit for bit.

    It cannot see a mistake that all ranks make alike.
    """

    name = "replicas"
    place = 210
    title = "replicas drift apart"
    shown = "Under {engine} the ranks end with different parameters."
    across_ranks = "equal copies"
    takes_parameters = True

    @override
    def observed(
        self, case: oracle.Case, rank: int, report: oracle.RankReport, engine: str
    ) -> tuple[str, str]:
        pieces, _, value = report.replicas.get(engine, ":").partition(":")
        return pieces, value

    @override
    def after(self, script: oracle.Alone) -> list[str]:
        first = "0" if script.mesh.flat else "dist.get_global_rank(group, 0)"
        return [
            "for name, p in params.items():",
            "    observed = snapshot(p)",
            "    expected = observed.clone()",
            f"    dist.broadcast(expected, {first}{script.mesh.group_argument})",
            '    both = f"rank {rank}, {name}: rank 0 '
            'has\\n{expected}\\nobserved\\n{observed}\\n"',
            "    torch.testing.assert_close(",
            "        observed, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m: both + m",
            "    )",
        ]
