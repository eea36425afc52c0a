"""SVG elements, made with the standard library's XML, so that no text can become markup.

Drawings are inline in the report and take their colours from its style sheet by class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from markupsafe import Markup

Element = ElementTree.Element

CHARACTER_WIDTH = 7.25
"""Of a monospaced character at 12 px, in px: 0.6 em in the common ones, and a little more in
none.
"""


def element(
    tag: str, *children: Element | None, text: str = "", **attributes: str | float
) -> Element:
    """``<tag ...>``; ``class_`` is ``class``, other underscores become hyphens, numbers are
    rounded.
    """
    made = _with(Element(tag), attributes)
    made.text = text or None
    made.extend(child for child in children if child is not None)
    return made


def group(*children: Element | None, **attributes: str | float) -> Element:
    """``<g>``."""
    return _with(element("g", *children), attributes)


def label(x: float, y: float, text: str, **attributes: str | float) -> Element:
    """A line of text whose baseline begins at a point."""
    return _with(element("text", text=text, x=x, y=y), attributes)


def tip(text: str) -> Element:
    """What a browser shows while the pointer is on the parent, and a screen reader says of it."""
    return element("title", text=text)


def moved(x: float, y: float, *children: Element | None) -> Element:
    """The children, with their origin at a point."""
    return group(*children, transform=f"translate({_value(x)} {_value(y)})")


def path(points: Iterable[tuple[float, float]], **attributes: str | float) -> Element:
    """A line through points."""
    return _with(
        element("path", d="M" + "L".join(f"{_value(x)} {_value(y)}" for x, y in points)),
        attributes,
    )


def picture(
    width: float,
    height: float,
    title: str,
    description: str,
    *children: Element | None,
    class_: str,
    role: str = "img",
) -> Markup:
    """A whole ``<svg>`` with a name and a description for who cannot see it.

    It is an image, or with links in it a ``group``.
    """
    drawn = element(
        "svg",
        element("title", text=title),
        element("desc", text=description),
        *children,
        class_=class_,
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        width=width,
        height=height,
        role=role,
        aria_label=f"{title}. {description}",
    )
    return Markup(ElementTree.tostring(drawn, encoding="unicode"))


def text_width(text: str, size: float = 12) -> float:
    """About how wide ``text`` is in the report's monospaced font."""
    return len(text) * CHARACTER_WIDTH * size / 12


def _with(made: Element, attributes: Mapping[str, str | float]) -> Element:
    for name, value in attributes.items():
        made.set(name.rstrip("_").replace("_", "-"), _value(value))
    return made


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
