"""Numbers as people read them (percent, points, dollars), and text from models that is safe to print."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable

MISSING = "–"


def shown(value: float | None, how: Callable[[float], str]) -> str:
    """The value as text, and a dash where it is missing or infinite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return how(value)


def points(difference: float) -> str:
    """A difference of rates in signed percentage points: +12.5; what is not nothing is not written as 0."""
    if 1e-6 < abs(difference) < 0.0005:
        return f"{100 * difference:+.1g}"
    return f"{round(100 * difference, 1) + 0.0:+.3g}" if abs(difference) < 1 else f"{100 * difference:+.0f}"


def rate(value: float) -> str:
    """0.875 as 87.5 %; only what is all is 100.0 %, and only nothing 0.0 %."""
    if 0.9995 <= value < 1:
        return f"{math.floor(10_000 * value) / 100:.2f} %"
    return f"{100 * value:.1f} %" if value >= 0.0005 or value <= 0 else f"{100 * value:.1g} %"


def usd(value: float) -> str:
    """Dollars with as many digits as small sums need."""
    return f"${value:,.2f}" if value >= 1 else f"${value:.4g}"


def number(value: float) -> str:
    """A score or a mean to two places."""
    return f"{value:.2f}"


def signed(value: float) -> str:
    """A difference of scores to two places, with its sign."""
    return f"{value:+.2f}"


def in_points(value: float) -> str:
    """A difference of rates in points."""
    return f"{points(value)} points"


def seconds(value: float) -> str:
    """Milliseconds as seconds."""
    return f"{value / 1000:.3g} s" if value < 1_000_000 else f"{value / 1000:,.0f} s"


def times(ratio: float) -> str:
    """A ratio to two places, more where it is small: 0.12, 0.043, 12.5."""
    if not 0.05 <= ratio < 1000:
        return f"{ratio:.2g}" if ratio < 1 else f"{ratio:,.0f}"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"


def p_value(value: float) -> str:
    """A p-value to two places, and never a zero that it is not."""
    return f"{value:.2f}" if value >= 0.01 else "<0.01"


def level_text(level: float) -> str:
    """A confidence level in percent, never rounded up to certainty: 95 %, 98.33 %, 99.9985 %."""
    short = f"{100 * level:.4g}"
    return f"{short if short != '100' else f'{100 * level:.7g}'} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form: 1 task, 2 tasks, 2 pairs of task and model."""
    if number == 1:
        return f"1 {noun}"
    head, of, tail = noun.partition(" of ")
    return f"{number} {head}s{of}{tail}"


# CSI and OSC sequences go as a whole; what is left of any other escape loses its control characters below.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x9b[0-?]*[ -/]*[@-~]")
# Cc control, Cf format (bidi overrides, zero-width), Cs lone surrogates, Co private use, Cn unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def plain(text: str, limit: int | None = None) -> str:
    """The text on one line without escapes, control or bidi characters; cut with … at `limit` characters."""
    if not text.isascii() or not text.isprintable():
        text = _ESCAPES.sub("", text)
        text = "".join(map(_visible, text))
    text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        return text[: max(limit - 1, 0)] + "…"
    return text


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _HIDDEN else character
