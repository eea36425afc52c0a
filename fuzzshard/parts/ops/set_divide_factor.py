"""``set_gradient_divide_factor()``."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from fuzzshard.parts import op


class SetDivideFactor(op.OnGroups, tag="set_divide_factor", frozen=True, kw_only=True):
    """``FSDPModule.set_gradient_divide_factor(factor)`` on the wrapped modules below ``target``,
    or on it.

    Gradients are then the sum over the data-parallel ranks divided by ``factor``, not by their
    number.
    """

    factor: float
    target: str = ""
    recurse: bool = True

    says = "{at}.set_gradient_divide_factor({op.factor}{alone})"
    meanings = {"op:divide_factor": "set_gradient_divide_factor"}
    choices = (op.Choice("divide_factor", 16, 3, new=True),)

    @override
    def follow(self, at: op.ScheduleState) -> None:
        at.flags.set_divisor(self.factor, self.below)

    @override
    def misfits(self, at: op.Checker) -> op.Reasons:
        if self.factor <= 0:
            yield "a divide factor is not positive", "use a positive number"
        if at.was_reduced_partly:
            yield (
                "a divide factor changes while gradients are reduced over one axis of the mesh "
                "only",
                "part of a sum is divided already: move the op",
            )

    @override
    def settings(self, scope: op.Scope) -> list[str]:
        ranks = (scope.engine.shards(scope.case),)
        return scope.on_groups(self.below, lambda module: dividing(module, self.factor, ranks))

    @classmethod
    @override
    def draw(cls, run: op.Run, moment: str) -> None:
        """Draw any factor, also one that the number of ranks is not a multiple of."""
        if moment == "between_steps" and "divide_factor" in run.swarm:
            place = run.early(50)
            place += cls.drawn(run)

    @classmethod
    @override
    def drawn(cls, run: op.Run) -> tuple[op.Op, ...]:
        below, ranks = run.any_wrapped(35), float(run.case.mesh.data_size)
        factor = run.tape.pick((2.0 * ranks, 1.0, 2.0, 4.0, 3.0, ranks))
        return (cls(factor=factor, target=below.target, recurse=below.recurse),)


def dividing(
    module: str, factor: float, ranks: Iterable[int], later: Iterable[float] = ()
) -> list[str]:
    """Return the lines that divide by ``factor``, and by what is set ``later``, what ``module``
    sums over so many ``ranks``, of each mesh that it comes to lie on.

    torch reduce-scatters with ``PREMUL_SUM``, which gloo does not have, for factors other than the
    number of ranks; one rank has no reduce-scatter (``_get_gradient_divide_factors`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
    """
    lines = [f"{module}.set_gradient_divide_factor({factor})"]
    factors = (factor, *later)
    if any(1 < size != each for size in ranks for each in factors):
        lines.append('if device == "cpu":  # gloo cannot multiply while it adds')
        lines.append(f"    {module}.set_force_sum_reduction_for_comms(True)")
    return lines


def factors(schedule: Iterable[op.Op]) -> list[float]:
    """Return what some ops set."""
    return [each.factor for each in schedule if isinstance(each, SetDivideFactor)]
