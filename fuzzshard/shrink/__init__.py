"""From a failing case to a smallest one: passes over the Case in tiers, a total order, a
fixpoint.
"""

from fuzzshard.shrink.evaluate import Budget
from fuzzshard.shrink.reducer import ShrinkResult, ShrinkStep, shrink

__all__ = ["Budget", "ShrinkResult", "ShrinkStep", "shrink"]
