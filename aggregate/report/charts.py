"""The charts of a report as SVG: difference, pass@k, cost against quality; every text is escaped.

Positions across are percentages, so that a chart takes any width without its letters shrinking on a phone.
"""

from __future__ import annotations

import math
from itertools import pairwise

from markupsafe import Markup, escape

from aggregate.artifact.model import ArmMetrics, Artifact, Number, RunAnswer
from aggregate.artifact.sentences import short_models
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
    """A chart with its text alternative; `name` is its look. A page of several candidates has several of a name."""
    return element(
        "svg",
        element("desc", description),
        *shapes,
        role="img",
        aria_label=f"{title}: {description}",
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


_STEP = 0.2  # an axis ends at a multiple of 20 points


def axis(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis that holds 0 and an interval: no further than needed, 20 points to either side at least."""
    first = math.floor(min(low, -_STEP) / _STEP + 1e-9) * _STEP
    return first, math.ceil(max(high, _STEP) / _STEP - 1e-9) * _STEP


def difference(answer: RunAnswer, margin: float) -> Markup | None:
    """The answer's difference with both intervals, on an axis that fits them; None where it shows no interval."""
    low, high, middle = (answer.figure("rates", name) for name in ("low", "high", "difference"))
    if low is None or high is None or middle is None:
        return None
    ends = (answer.figure("ranges", name) for name in ("suite_low", "suite_high"))
    suite = [end for end in ends if end is not None]
    first, last = axis(min(low, *suite), max(high, *suite))

    def place(value: float) -> str:
        return across((value - first) / (last - first))

    width = (min(margin, -first)) / (last - first) * (RIGHT - LEFT)
    shapes = [
        element("rect", x=place(-margin), y=18, width=f"{width:.2f}%", height=58, class_="margin"),
        line(place(first), 76, place(last), 76, "axis"),
    ]
    steps = round((last - first) / _STEP)
    for tick in range(0, steps + 1, 1 if steps <= 6 else 2):
        at = first + tick * _STEP
        shapes += [
            line(place(at), 76, place(at), 81, "axis"),
            label(place(at), 97, points(at) if abs(at) > 0.01 else "0"),
        ]
    shapes += [
        line(place(0), 14, place(0), 76, "zero"),
        line(place(low), 44, place(high), 44, "interval"),
        *(line(place(end), 36, place(end), 52, "interval-end") for end in (low, high)),
    ]
    if suite:
        shapes.append(line(place(suite[0]), 44, place(suite[1]), 44, "interval-suite"))
    inside = min(last - 0.11 * (last - first), max(first + 0.11 * (last - first), middle))
    shapes += [
        dot(place(middle), 44, "estimate", 7),
        label(place(inside), 26, f"{points(middle)} points", "strong"),
    ]
    said = f"{points(middle)} points, between {points(low)} and {points(high)}"
    title = "Difference in attempts passed, candidate minus baseline"
    return picture(title, said, 104, *shapes, name="delta")


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
        grid.append(line(across(0), y, across(1), y, "grid"))
        grid.append(label("0", y + 4, f"{100 * share:.0f} %", "", "start"))
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
    said, names = [], short_models(artifact.models)
    for model, before, after in pairs:
        places = [spot and (across(0.06 + 0.9 * spot[0] / dearest), _up(spot[1])) for spot in (before, after)]
        if places[0] and places[1]:
            shapes.append(line(*places[0], *places[1], "arrow"))
        for place, look in zip(places, ("baseline", "candidate"), strict=True):
            if place:
                shapes.append(dot(*place, f"point {look}", 6))
        if len(pairs) > 1 and (named := places[1] or places[0]):
            shapes.append(label(named[0], named[1] - 10, names.get(model, plain(model, 40)), "quiet"))
        said += [
            f"{names.get(model, plain(model, 60))}, {arm}: {usd(spot[0])} a task, {rate(spot[1])} of attempts passed"
            for arm, spot in (("baseline", before), ("candidate", after))
            if spot
        ]
    return picture("Cost per task against attempts passed", "; ".join(said), 200, *shapes, name="cost")


def _spot(arm: ArmMetrics | None) -> tuple[float, float] | None:
    if arm is None or arm.mean_cost_per_task is None or arm.attempt_pass_rate is None:
        return None
    return arm.mean_cost_per_task, arm.attempt_pass_rate
