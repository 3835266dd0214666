"""Intervals of a pass rate and of a difference of two, from counts alone: cheap enough to be shown while a run goes on.

They ignore that both arms have the same tasks. The result's own intervals (aggregate/intervals.py) do not, and are
narrower as a rule.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

_Z = 1.959963984540054  # of a normal distribution's 97.5 %


class Interval(NamedTuple):
    """An estimate with the ends of its 95 % interval."""

    estimate: float
    low: float
    high: float


def share(passed: float, judged: float) -> Interval:
    """Wilson's score interval (1927) of passed / judged; needs judged > 0."""
    rate = passed / judged
    middle = (rate + _Z**2 / (2 * judged)) / (1 + _Z**2 / judged)
    half = _Z / (1 + _Z**2 / judged) * sqrt(rate * (1 - rate) / judged + _Z**2 / (4 * judged**2))
    return Interval(rate, max(0.0, min(middle - half, rate)), min(1.0, max(middle + half, rate)))


def difference(passed: float, judged: float, base_passed: float, base_judged: float) -> Interval:
    """Newcombe's interval (1998, method 10) of the first share minus the second."""
    one, base = share(passed, judged), share(base_passed, base_judged)
    delta = one.estimate - base.estimate
    low = delta - sqrt((one.estimate - one.low) ** 2 + (base.high - base.estimate) ** 2)
    high = delta + sqrt((one.high - one.estimate) ** 2 + (base.estimate - base.low) ** 2)
    return Interval(delta, low, high)
