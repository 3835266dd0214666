"""How numbers are written for people: rates in percent, differences in points, sums in dollars."""

from __future__ import annotations


def points(difference: float) -> str:
    """A difference of rates in signed percentage points: +12.5."""
    return f"{round(100 * difference, 1) + 0.0:+.3g}" if abs(difference) < 1 else f"{100 * difference:+.0f}"


def rate(value: float) -> str:
    """0.875 as 87.5 %."""
    return f"{100 * value:.1f} %"


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
    return f"{value / 1000:.3g} s"


def level_text(level: float) -> str:
    """A confidence level in percent, never rounded up to certainty: 95 %, 98.33 %, 99.9985 %."""
    short = f"{100 * level:.4g}"
    return f"{short if short != '100' else f'{100 * level:.7g}'} %"
