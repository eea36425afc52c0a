"""The delays of a case that are at collectives, as statements."""

from __future__ import annotations

from fuzzshard.case.case import Case
from fuzzshard.reproducer.scope import on_ranks

_SITES = {
    "before_all_gather": ("all_gather_into_tensor", "all_gather_single"),
    "before_reduce_scatter": ("reduce_scatter_tensor", "reduce_scatter_single"),
    "before_all_reduce": ("all_reduce",),
}

_DELAYED = """

def delayed(collective, milliseconds):
    def call(*args, **kwargs):
        wait(milliseconds)
        return collective(*args, **kwargs)

    return call


"""


def delay_lines(case: Case) -> list[str]:
    """Makes the collectives that torch's Python code calls wait."""
    lines = []
    for delay in case.delays:
        if names := _SITES.get(delay.site):
            loop = [
                f"for name in {names}:",
                "    if hasattr(dist, name):",
                f"        setattr(dist, name, delayed(getattr(dist, name), {delay.milliseconds}))",
            ]
            lines += on_ranks(
                delay.ranks, loop if len(names) > 1 else _single(names[0], delay.milliseconds)
            )
    return [*_DELAYED.splitlines(), *lines] if lines else []


def _single(name: str, milliseconds: float) -> list[str]:
    return [f"dist.{name} = delayed(dist.{name}, {milliseconds})"]
