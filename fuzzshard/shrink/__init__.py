"""From a failing case to a smallest one: passes over the Case in tiers, a total order, a
fixpoint.
"""

from fuzzshard.shrink.reducer import Budget, ShrinkResult, ShrinkStep, shrink

__all__ = ["Budget", "ShrinkResult", "ShrinkStep", "shrink"]
