"""The mesh of a case: a table of ranks for each pipeline slice."""

from __future__ import annotations

from collections.abc import Collection

from markupsafe import Markup

from fuzzshard.case.case import Mesh
from fuzzshard.report.html.svg import Element, element, group, label, moved, picture, tip

_CELL, _GAP, _LEFT, _TOP = 28.0, 10.0, 26.0, 20.0


def draw_mesh(mesh: Mesh, accused: Collection[int] = ()) -> Markup:
    """A row is one shard group, a column holds replicas; ranks in one cell are a tensor-parallel
    group.

    Ranks in ``accused`` showed the finding. They are numbered as torch does, (pp, replicate,
    shard, tp) from the outermost axis to the innermost.
    """
    slices, rows, columns, inner = (
        mesh.pipeline or 1,
        mesh.replicate or 1,
        mesh.shard,
        mesh.tensor or 1,
    )
    cell = inner * _CELL + (inner > 1) * 6
    width, height = columns * (cell + 6), rows * (_CELL + 12)
    drawn: list[Element] = []
    for part in range(slices):
        left = _LEFT + part * (width + 2 * _GAP)
        head = "shard →" if mesh.pipeline is None else f"pipeline {part}"
        drawn.append(label(left, 12, head))
        for row in range(rows):
            for column in range(columns):
                first = ((part * rows + row) * columns + column) * inner
                ranks = range(first, first + inner)
                drawn.append(
                    moved(
                        left + column * (cell + 6),
                        _TOP + row * (_CELL + 12),
                        _cell(ranks, accused),
                    )
                )
    side = "replicate →"
    turned = label(0, 0, side, transform=f"translate(8 {_TOP}) rotate(90)") if rows > 1 else None
    total = max(_LEFT + slices * (width + 2 * _GAP), 90)
    return picture(
        total,
        max(_TOP + height + 2, 100 if rows > 1 else 0),
        f"Mesh: {mesh.text()}",
        f"{mesh.size} ranks; the finding shows on "
        f"{', '.join(map(str, sorted(accused))) or 'none of them'}",
        *drawn,
        turned,
        class_="mesh",
    )


def _cell(ranks: range, accused: Collection[int]) -> Element:
    several = len(ranks) > 1
    outer = element(
        "rect",
        tip(f"ranks {', '.join(map(str, ranks))}: one tensor-parallel group"),
        width=len(ranks) * _CELL + 6,
        height=_CELL + 6,
        rx=6,
        class_="tensor",
    )
    return group(
        outer if several else None,
        *(
            moved(3 * several + i * _CELL, 3 * several, _rank(rank, rank in accused))
            for i, rank in enumerate(ranks)
        ),
    )


def _rank(rank: int, accused: bool) -> Element:
    return group(
        element("rect", tip(f"rank {rank}"), x=1, y=1, width=_CELL - 2, height=_CELL - 2, rx=4),
        label(_CELL / 2, _CELL / 2 + 4, str(rank), text_anchor="middle"),
        class_="rank accused" if accused else "rank",
    )
