"""Build SVG from plain values; every text and attribute is escaped, and positions across are percentages.

Percentages let a chart take any width without its letters shrinking on a phone.
"""

from __future__ import annotations

from markupsafe import Markup, escape

LEFT, RIGHT = 6.0, 94.0  # percent of the width that the scale covers


def element(name: str, *children: str | Markup, **attributes: str | float) -> Markup:
    """One element; `class_` and `stroke_width` are written as class and stroke-width."""
    written = Markup("").join(
        Markup(' {}="{}"').format(_attribute(key), _short(value)) for key, value in attributes.items()
    )
    inner = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inner)


def picture(title: str, description: str, height: int, *shapes: Markup, name: str) -> Markup:
    """A chart with its text alternative; `name` tells it from the page's other charts."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *shapes,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        width="100%",
        height=height,
        class_=f"chart {name}",
    )


def across(share: float) -> str:
    """A place on the horizontal scale, 0 to 1, as a percentage of the width."""
    return f"{LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share)):.2f}%"


def line(x1: str, y1: float, x2: str, y2: float, look: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=look)


def dot(x: str, y: float, look: str, radius: float = 5) -> Markup:
    return element("circle", cx=x, cy=y, r=radius, class_=look)


def label(x: str, y: float, text: str, look: str = "", anchor: str = "middle") -> Markup:
    return element("text", text, x=x, y=y, class_=f"label {look}".strip(), text_anchor=anchor)


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
