"""Hypothesis strategies for Cases, one file per dimension. Imports the Case only, and no torch."""

from fuzzshard.strategies.cases import cases
from fuzzshard.strategies.draw import case_stream, draw_cases

__all__ = ["case_stream", "cases", "draw_cases"]
