"""The charts of a report as SVG: difference, pass@k, cost against quality, groups; every text is escaped.

Positions across are percentages, so that a chart takes any width without its letters shrinking on a phone.
"""

from __future__ import annotations

from itertools import pairwise

from markupsafe import Markup, escape

from aggregate.artifact.model import ArmMetrics, Artifact, Number
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import plain, points, rate, usd

LEFT, RIGHT = 6.0, 94.0  # percent of the width that the scale covers


def element(name: str, *children: str | Markup, **attributes: str | float) -> Markup:
    """One element; `class_` and `stroke_width` are written as class and stroke-width."""
    written = Markup("")
    for key, value in attributes.items():
        text = value if isinstance(value, str) else f"{value:g}"
        written += Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), text)
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


def difference(artifact: Artifact) -> Markup | None:
    """The measured difference with both intervals on an axis from -100 to +100 points; None without one."""
    interval = artifact.interval
    if interval is None:
        return None
    wide, narrow, margin = interval.tasks_like_these, interval.exactly_this_suite, artifact.margin
    if wide.estimate is None:
        return None
    shapes = [
        element(
            "rect",
            x=_place(-margin),
            y=18,
            width=f"{44 * min(margin, 1):.2f}%",
            height=58,
            class_="margin",
        ),
        line(_place(-1), 76, _place(1), 76, "axis"),
        *_ticks(76),
        line(_place(0), 14, _place(0), 76, "zero"),
        line(_place(wide.low), 44, _place(wide.high), 44, "interval"),
        *(line(_place(end), 36, _place(end), 52, "interval-end") for end in (wide.low, wide.high)),
    ]
    if narrow:
        shapes.append(line(_place(narrow.low), 44, _place(narrow.high), 44, "interval-suite"))
    shapes += [
        dot(_place(wide.estimate), 44, "estimate", 7),
        label(_place(_inside(wide.estimate)), 26, f"{points(wide.estimate)} points", "strong"),
    ]
    said = f"{points(wide.estimate)} points, between {points(wide.low)} and {points(wide.high)}"
    return picture(
        "Difference in attempts passed, candidate minus baseline", said, 104, *shapes, name="delta"
    )


def _ticks(y: float) -> list[Markup]:
    ticks = []
    for tenths in range(-10, 11, 5):
        ticks.append(line(_place(tenths / 10), y, _place(tenths / 10), y + 5, "axis"))
        ticks.append(label(_place(tenths / 10), y + 21, "0" if tenths == 0 else f"{10 * tenths:+d}"))
    return ticks


def _place(value: float) -> str:
    return across((value + 1) / 2)


def _inside(value: float) -> float:
    """Where a number can be written without leaving the picture on a phone."""
    return min(0.78, max(-0.78, value))


_CURVES = {"pass_at": ("some", "any"), "pass_hat": ("all", "all")}  # how each looks, and what it is called


def pass_curves(artifact: Artifact) -> Markup | None:
    """How likely some of k attempts pass, and all of them; None when there is one attempt or no such number."""
    curves = [
        (f"{side} {look}", f"{side}, {words}", values)
        for side, arm in (("baseline", BASELINE), ("candidate", artifact.arm))
        for field, (look, words) in _CURVES.items()
        if len(values := _known(getattr(artifact.metrics_of(arm), field))) > 1
    ]
    if not curves:
        return None
    most = max(number for *_, values in curves for number, _ in values)
    shapes = _share_grid()
    shapes += [label(_at(number, most), 172, str(number)) for number in _few(most)]
    shapes.append(label("50%", 192, "attempts", "quiet"))
    for look, _, values in curves:
        places = [(_at(number, most), _up(share)) for number, share in values]
        shapes += [line(*here, *there, f"curve {look}") for here, there in pairwise(places)]
        shapes += [dot(*place, f"point {look}", 3.5) for place in places]
    said = "; ".join(f"{words} of {values[-1][0]}: {rate(values[-1][1])}" for _, words, values in curves)
    return picture("Share of tasks passed over 1 to k attempts", said, 200, *shapes, name="passk")


def _known(curve: dict[str, Number | None]) -> list[tuple[int, float]]:
    return sorted((int(number), share) for number, share in curve.items() if share is not None)


def _few(most: int) -> list[int]:
    step = max(1, -(-most // 10))
    return sorted({1, *range(step, most + 1, step), most})


def _at(number: int, most: int) -> str:
    return across(0.06 + 0.9 * (number - 1) / max(1, most - 1))


def _up(share: float) -> float:
    return round(150 - 136 * share, 2)


def _share_grid() -> list[Markup]:
    grid = []
    for share in (0.0, 0.5, 1.0):
        y = _up(share)
        grid += [
            line(across(0), y, across(1), y, "grid"),
            label("0", y + 4, f"{100 * share:.0f} %", "", "start"),
        ]
    return grid


def cost_quality(artifact: Artifact) -> Markup | None:
    """Cost per task against attempts passed: an arrow per model from baseline to candidate; None without costs."""
    pairs = [
        (model, _spot(group.arms.get(BASELINE)), _spot(group.arms.get(artifact.arm)))
        for model, group in (artifact.by_model or {}).items()
    ]
    spots = [spot for _, *both in pairs for spot in both if spot]
    if not spots:
        return None
    dearest = max(cost for cost, _ in spots) * 1.25 or 1.0
    shapes = _share_grid()
    for share in (0.0, 0.5, 1.0):
        shapes.append(label(across(0.06 + 0.9 * share), 172, usd(dearest * share) if share else "$0"))
    shapes.append(label("50%", 192, "cost per task", "quiet"))
    said = []
    for model, before, after in pairs:
        places = [spot and (across(0.06 + 0.9 * spot[0] / dearest), _up(spot[1])) for spot in (before, after)]
        if places[0] and places[1]:
            shapes.append(line(*places[0], *places[1], "arrow"))
        for place, look in zip(places, ("baseline", "candidate"), strict=True):
            if place:
                shapes.append(dot(*place, f"point {look}", 6))
        said += [
            f"{plain(model, 60)}, {arm}: {usd(spot[0])} a task, {rate(spot[1])} of attempts passed"
            for arm, spot in (("baseline", before), ("candidate", after))
            if spot
        ]
    return picture("Cost per task against attempts passed", "; ".join(said), 200, *shapes, name="cost")


def _spot(arm: ArmMetrics | None) -> tuple[float, float] | None:
    if arm is None or arm.mean_cost_per_task is None or arm.attempt_pass_rate is None:
        return None
    return arm.mean_cost_per_task, arm.attempt_pass_rate


def shift(before: float | None, after: float | None) -> Markup:
    """Two rates on a scale from 0 to 1, joined; the numbers stand beside it, so it is hidden from readers."""
    shapes = [line(across(0), 11, across(1), 11, "grid")]
    if before is not None and after is not None:
        shapes.append(line(across(before), 11, across(after), 11, "arrow"))
    for value, look in ((before, "baseline"), (after, "candidate")):
        if value is not None:
            shapes.append(dot(across(value), 11, f"point {look}", 5))
    return element("svg", *shapes, width="100%", height=22, class_="chart shift", aria_hidden="true")
