"""The forward of a case, drawn: modules within modules, values between them, wrap groups by
colour.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable

from markupsafe import Markup

from fuzzshard.analysis.inferred import inferred
from fuzzshard.case.case import Case
from fuzzshard.case.graph import Block, Call, Module, TensorOp, join, resolve
from fuzzshard.case.paths import is_within
from fuzzshard.parts.op import expression
from fuzzshard.report.html.layers import Point, place
from fuzzshard.report.html.svg import (
    Element,
    element,
    group,
    label,
    moved,
    picture,
    text_width,
    tip,
)
from fuzzshard.report.module_tree import RETURN, ModuleNotes, forward_graph

NUM_COLOURS = 8
"""Of wrap groups in the style sheet; the ninth group has the first one's colour."""

_PAD = 12.0
_LINE = 17.0
_TAG_SIZE = 10.5
_HEAD = 30.0


def group_colour(index: int) -> str:
    """The class that sets the colour of a wrap group."""
    return f"group-{index % NUM_COLOURS}"


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A box in the making, with its origin at its upper left corner."""

    width: float
    height: float
    element: Element


def draw_forward(case: Case, accused: Collection[str] = ()) -> Markup:
    """The whole forward; modules with a parameter named in ``accused`` are marked."""
    drawn = _Forward(case, accused).block("", case.model, "model")
    count = len(case.wrap)
    return picture(
        drawn.width + 2,
        drawn.height + 2,
        "Forward of the model",
        f"a graph of {len(inferred(case).called)} modules, {count} wrap "
        f"group{'' if count == 1 else 's'}",
        moved(1, 1, drawn.element),
        class_="forward",
    )


class _Forward:
    """What has been drawn so far decides what is drawn whole: a module is, at its first call."""

    def __init__(self, case: Case, accused: Collection[str]) -> None:
        self.case = case
        self.accused = accused
        self.notes = ModuleNotes(case, inferred(case))
        self.drawn: Counter[str] = Counter()

    def block(self, path: str, block: Block, name: str, more: Iterable[str] = ()) -> _Drawn:
        """A frame with the graph of a block in it."""
        graph = forward_graph(block)
        boxes = {value: _pill(value, "value") for value in block.inputs}
        boxes |= {node.name: self.node(path, node) for node in block.nodes}
        boxes[RETURN] = _pill("return", "value")
        placed = place(graph, {node: (box.width, box.height) for node, box in boxes.items()})
        tags, class_ = self.marks(path, more)
        title = f"{name}: Block" if path else "model"
        head = text_width(title) + _tags_width(tags) + 2 * _PAD + 8
        width = max(placed.width + 2 * _PAD, head)
        inner = group(
            *(_edge(points) for points in placed.routes.values()),
            *(
                moved(x - boxes[node].width / 2, y - boxes[node].height / 2, boxes[node].element)
                for node, (x, y) in placed.centres.items()
            ),
        )
        height = _HEAD + placed.height + _PAD
        return _Drawn(
            width,
            height,
            group(
                _rect(width, height, self.tooltip(path, block), rx=8),
                label(_PAD, 20, title, class_="name"),
                *_draw_tags(tags, width - _PAD - _tags_width(tags), 8),
                moved((width - placed.width) / 2, _HEAD, inner),
                class_=f"block {class_}",
            ),
        )

    def node(self, path: str, node: Call | TensorOp) -> _Drawn:
        """A call or an op of the block at ``path``."""
        if isinstance(node, TensorOp):
            return _pill(node.op, "op")
        more = [] if node.grad else ["no_grad"]
        found = resolve(self.case.model, join(path, node.module))
        assert found is not None  # the case is valid
        target, module = found
        self.drawn[target] += 1
        if target != join(path, node.module):
            more.append(f"is {expression(target)}")
        if self.notes.num_calls[target] > 1:
            more.append(f"call {self.drawn[target]}")
        if isinstance(module, Block) and self.drawn[target] == 1 and not node.alternatives:
            return self.block(target, module, node.module, more)
        return self.leaf(target, module, " or ".join(node.modules), more)

    def leaf(self, path: str, module: Module, name: str, more: Iterable[str]) -> _Drawn:
        """A box with the module's name, what it is, and tags."""
        what = self.notes.what(path, module)
        tags, class_ = self.marks(path, more)
        width = max(text_width(name), text_width(what, 11), _tags_width(tags)) + 2 * _PAD
        height = 2 * _LINE + (19 if tags else 0) + 8
        return _Drawn(
            width,
            height,
            group(
                _rect(width, height, self.tooltip(path, module), rx=6),
                label(width / 2, 18, name, class_="name", text_anchor="middle"),
                label(width / 2, 18 + _LINE, what, class_="what", text_anchor="middle"),
                *_draw_tags(tags, (width - _tags_width(tags)) / 2, 2 * _LINE + 7),
                class_=f"leaf {class_}",
            ),
        )

    def marks(self, path: str, more: Iterable[str]) -> tuple[list[str], str]:
        """The tags of a module, and its classes: coloured by its group, else by that of its
        parameters.
        """
        tags = [*self.notes.badges(path), *more]
        tags = [tag for tag in dict.fromkeys(tags) if not tag.startswith("called ")]
        owners = {
            o
            for fqn, o in inferred(self.case).owners.items()
            if o is not None and is_within(fqn, path)
        }
        wrapped = self.notes.groups.get(path)
        classes = [f"wrapped {group_colour(wrapped)}"] if wrapped is not None else []
        if wrapped is None and len(owners) == 1:
            classes.append(group_colour(owners.pop()))
        if path and any(is_within(name, path) for name in self.accused):
            classes.append("accused")
        return tags, " ".join(classes)

    def tooltip(self, path: str, module: Module) -> str:
        """Everything that is known of a module."""
        parameters = self.notes.parameters(path, module)
        lines = [f"{expression(path)}: {self.notes.what(path, module)}", *parameters]
        return "\n".join([*lines, *self.notes.badges(path)])


def _pill(text: str, class_: str) -> _Drawn:
    width, height = text_width(text, 11) + 18, 22.0
    return _Drawn(
        width,
        height,
        group(
            _rect(width, height, text, rx=11),
            label(width / 2, 15, text, text_anchor="middle"),
            class_=f"pill {class_}",
        ),
    )


def _rect(width: float, height: float, tooltip: str, *, rx: float) -> Element:
    return element("rect", tip(tooltip), width=width, height=height, rx=rx)


def _edge(points: Iterable[Point]) -> Element:
    """A smooth line downwards, with an arrow at its end."""
    (x, y), *rest = points
    d = f"M{x:.1f} {y:.1f}"
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        d += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
    arrow = f"M{x - 3.5:.1f} {y - 6:.1f}L{x:.1f} {y:.1f}L{x + 3.5:.1f} {y - 6:.1f}"
    return group(element("path", d=d), element("path", d=arrow), class_="edge")


def _tags_width(tags: Iterable[str]) -> float:
    widths = [text_width(tag, _TAG_SIZE) + 10 for tag in tags]
    return sum(widths) + 4 * max(len(widths) - 1, 0)


def _draw_tags(tags: Iterable[str], x: float, y: float) -> Iterable[Element]:
    for tag in tags:
        width = text_width(tag, _TAG_SIZE) + 10
        kind = "tag of-group" if tag.startswith("group ") else "tag"
        yield moved(
            x,
            y,
            group(
                element("rect", width=width, height=16, rx=3),
                label(width / 2, 12, tag, text_anchor="middle"),
                class_=kind,
            ),
        )
        x += width + 4
