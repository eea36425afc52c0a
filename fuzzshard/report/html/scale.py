"""Axes: where their ticks are, and how numbers and durations are written."""

from __future__ import annotations

import math

_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 28 * 86400),
)


def ticks(most: float, count: int = 4) -> list[float]:
    """Round numbers from 0 to the first at or above ``most``, in steps of 1, 2 or 5 times a power
    of ten.
    """
    rough = max(most, 1e-9) / count
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)] if most > 0 else [0, step]


def time_ticks(most: float, count: int = 5) -> list[float]:
    """Round times from 0 to at most ``most``, in seconds."""
    step = next((step for step in _TIME_STEPS if most / step <= count), _TIME_STEPS[-1])
    while most / step > count:
        step *= 2
    return [i * float(step) for i in range(int(most / step + 1e-9) + 1)]


def number(value: float) -> str:
    """``"0"``, ``"0.25"``, ``"12"``, ``"1,250"``, ``"48k"``, ``"1.2M"``: for an axis."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def duration(seconds: float) -> str:
    """``"0 s"``, ``"20 ms"``, ``"1.5 s"``, ``"45 s"``, ``"2 min"``, ``"1 h 30 min"``, ``"3 d 4
    h"``.
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    total = round(seconds)
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if total >= size:
            whole, rest = divmod(total, size)
            more = f" {rest // smaller} {small_unit}" if rest >= smaller else ""
            return f"{whole} {unit}{more}"
    minutes, rest = divmod(total, 60)
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
