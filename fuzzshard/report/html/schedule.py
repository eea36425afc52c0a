"""The schedule of a case as a timeline: a lane for each kind of op, and which backward takes which
loss.
"""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from fuzzshard.analysis.program_text import losses_taken, program
from fuzzshard.case.case import Case
from fuzzshard.parts.op import Op
from fuzzshard.report.html.svg import Element, element, group, label, picture, tip

_LANES = ("forward", "backward", "optimizer", "sharding", "state", "switches")

_LEFT, _COLUMN, _ROW, _TOP = 82.0, 24.0, 30.0, 22.0


def draw_schedule(case: Case, marks: Mapping[int, str]) -> Markup:
    """One column for each op; ``marks`` says what was found at some of them."""
    schedule = case.schedule
    used = {op.lane for op in schedule}
    lanes = [lane for lane in _LANES if lane in used]
    rows = {lane: _TOP + _ROW * i for i, lane in enumerate(lanes)}
    statements = program(case)
    width = max(_LEFT + _COLUMN * len(schedule) + 10, 150)
    height = _TOP + _ROW * len(lanes) + 6
    every = 1 if len(schedule) <= 20 else 5
    return picture(
        width,
        height,
        "Schedule",
        f"{len(schedule)} ops, numbered from 0; {len(marks)} with a finding",
        *(_lane(lane, y, width) for lane, y in rows.items()),
        *(
            label(_x(i) + 9, 13, str(i), text_anchor="middle", class_="index")
            for i in range(0, len(schedule), every)
        ),
        *(
            _loss(begin, end, rows["forward"], rows["backward"])
            for end, begins in losses_taken(case).items()
            for begin in begins
        ),
        *(
            _op(i, op, rows[op.lane], statements[i], marks.get(i, ""), height)
            for i, op in enumerate(schedule)
        ),
        class_="schedule",
    )


def _x(index: int) -> float:
    return _LEFT + _COLUMN * index


def _lane(name: str, y: float, width: float) -> Element:
    return group(
        element("line", x1=_LEFT - 6, x2=width, y1=y + 11, y2=y + 11),
        label(_LEFT - 14, y + 15, name, text_anchor="end"),
        class_="lane",
    )


def _loss(begin: int, end: int, forward: float, backward: float) -> Element:
    """From the bottom of a forward to the top of the backward that takes its loss."""
    x0, y0, x1, y1 = _x(begin) + 9, forward + 20, _x(end) + 9, backward + 2
    return element("path", d=f"M{x0} {y0}C{x0} {y0 + 12} {x1} {y1 - 12} {x1} {y1}", class_="loss")


def _op(index: int, op: Op, y: float, statement: str, mark: str, height: float) -> Element:
    """A block; one with a finding has a line down the whole timeline behind it."""
    x = _x(index)
    said = f"{index}: {statement}" + (f"\nfound here: {mark}" if mark else "")
    faint = " faint" if op.call and not op.call.grad else ""
    return group(
        tip(said),
        element("rect", x=x - 3, y=18, width=24, height=height - 20, rx=4, class_="found")
        if mark
        else None,
        element("rect", x=x, y=y + 2, width=18, height=18, rx=4, class_="op"),
        class_=f"{op.lane}{faint}",
    )
