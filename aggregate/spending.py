"""How certain an early look must be, so that looking often raises no more false alarms than looking once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aggregate.counts import Floats

ALPHA = 0.025  # a side
_REACH = 8.0  # standard deviations: what lies beyond weighs less than 1e-15
_LEAST = 1e-15
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


@dataclass(frozen=True)
class PlannedLook:
    """One look of the plan: after which round, alpha spent so far (a side), and what it asks for.

    `bound` is in standard errors; an infinite one means that the look cannot stop the run. `level` is the
    two-sided confidence level of an interval with that bound.
    """

    round: int
    fraction: float
    spent_alpha: float
    bound: float
    level: float


@lru_cache(maxsize=64)
def plan_looks(rounds: int, alpha: float = ALPHA) -> tuple[PlannedLook, ...]:
    """Looks after each of `rounds` equal rounds of attempts, with O'Brien-Fleming bounds.

    Alpha is spent as 2 - 2 Phi(z / sqrt(t)) (O'Brien & Fleming, Biometrics 35 (1979) 549; Lan & DeMets,
    Biometrika 70 (1983) 659); bounds by Armitage's recursion, integrated numerically. Each side on its own.
    """
    if rounds < 2:
        raise ValueError(f"rounds: {rounds}; looks between rounds need at least 2 attempts per task")
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha: {alpha} is not between 0 and 0.5")
    from scipy.special import ndtr

    fractions = [number / rounds for number in range(1, rounds + 1)]
    spent = [_spent(fraction, alpha) for fraction in fractions]
    looks = []
    for number, bound in enumerate(_bounds(fractions, spent), start=1):
        level = 1 - 2 * float(ndtr(-bound))
        looks.append(PlannedLook(number, fractions[number - 1], spent[number - 1], bound, level))
    return tuple(looks)


def _spent(fraction: float, alpha: float) -> float:
    from scipy.special import ndtr, ndtri

    return 2 * float(ndtr(ndtri(alpha / 2) / math.sqrt(fraction)))


def _bounds(fractions: list[float], spent: list[float]) -> list[float]:
    """Bounds on the standardised estimate, first crossed under no effect as often as alpha is spent."""
    bounds: list[float] = []
    places, masses = np.zeros(1), np.ones(1)  # where the running sum may be, having crossed nothing so far
    before = 0.0
    for index, fraction in enumerate(fractions):
        step = math.sqrt(fraction - before)
        root = math.sqrt(fraction)
        fresh = spent[index] - (spent[index - 1] if index else 0.0)
        bound = _solve(fresh, places, masses, root, step)
        bounds.append(bound)
        top = min(bound, _REACH) * root
        reached = -_REACH * root + (_NODES + 1) / 2 * (top + _REACH * root)
        density = np.exp(-0.5 * ((reached[:, None] - places) / step) ** 2) @ masses
        density /= step * math.sqrt(2 * math.pi)
        places, masses = reached, density * _WEIGHTS * (top + _REACH * root) / 2
        before = fraction
    return bounds


def _solve(fresh: float, places: Floats, masses: Floats, root: float, step: float) -> float:
    from scipy.special import ndtr

    if fresh < _LEAST:
        return math.inf
    low, high = 0.0, _REACH
    for _ in range(60):
        middle = (low + high) / 2
        crossing = float(ndtr((places - middle * root) / step) @ masses)
        low, high = (middle, high) if crossing > fresh else (low, middle)
    return (low + high) / 2
