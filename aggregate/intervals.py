"""How far the true difference between two arms may lie from the measured one: two intervals, two questions.

`delta_interval` speaks of "tasks like these", `fixed_suite_interval` of "exactly this suite".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aggregate.counts import Floats, Numbers, PairedCounts, check_level, paired_counts

FEW_TASKS = 20
# Below this tail no count that a run can reach is informative, and the quadrature would only return noise.
_SMALLEST_TAIL = 1e-9
_MOST_ATTEMPTS = 1e9  # beyond it the densities lose their digits; an interval of 0.0001 is narrow enough
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_SIN_SQUARED = np.sin((_NODES + 1) * (math.pi / 4)) ** 2
_SLOPES = _WEIGHTS * np.sin((_NODES + 1) * (math.pi / 2)) * (math.pi / 4)


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds; without data the estimate is NaN and the bounds are -1 and 1."""

    estimate: float
    low: float
    high: float
    level: float = 0.95


def delta_interval(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
    level: float = 0.95,
) -> Interval:
    """Interval for the mean pass-rate difference over tasks like these, from counts per task.

    Under 20 tasks the hull of Student's paired t interval and the fixed-suite interval; from 20 on the t
    interval with a pseudo-task added on either side at 1/sqrt(k) (Agresti & Min, Biometrics 61 (2005) 515).
    """
    check_level(level)
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    if counts.tasks == 0:
        return Interval(math.nan, -1.0, 1.0, level)
    differences = counts.differences
    estimate = float(differences.mean())
    if counts.tasks < FEW_TASKS:
        low, high = _fixed_suite_bounds(counts, level)
        if counts.tasks > 1:
            t_low, t_high = _t_bounds(differences, level)
            low, high = min(low, t_low), max(high, t_high)
    else:
        per_task = 1 / counts.candidate_attempts + 1 / counts.baseline_attempts
        pseudo = math.sqrt(float(per_task.mean()) / 2)
        low, high = _t_bounds(np.append(differences, [pseudo, -pseudo]), level)
    return _containing(estimate, low, high, level)


def fixed_suite_interval(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
    level: float = 0.95,
) -> Interval:
    """Interval for the pass-rate difference on exactly these tasks: only the model's chance varies.

    Quantiles of the difference of two Beta posteriors under Jeffreys priors, one an arm, on pooled counts
    (Brown, Cai & DasGupta, Statistical Science 16 (2001) 101); deterministic quadrature, no random draws.
    """
    check_level(level)
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    if counts.tasks == 0:
        return Interval(math.nan, -1.0, 1.0, level)
    low, high = _fixed_suite_bounds(counts, level)
    return _containing(float(counts.differences.mean()), low, high, level)


def _containing(estimate: float, low: float, high: float, level: float) -> Interval:
    """Clip to what a difference of rates can be, and widen to the estimate where an end missed it."""
    estimate = min(1.0, max(-1.0, estimate))
    return Interval(estimate, min(estimate, max(-1.0, low)), max(estimate, min(1.0, high)), level)


def _t_bounds(values: Floats, level: float) -> tuple[float, float]:
    from scipy.special import stdtrit  # scipy costs 0.2 s to import: only where a number needs it

    tail = max((1 - level) / 2, _SMALLEST_TAIL)
    mean = float(values.mean())
    half = -float(stdtrit(len(values) - 1, tail)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half


def _fixed_suite_bounds(counts: PairedCounts, level: float) -> tuple[float, float]:
    candidate = _posterior(counts.candidate_rates, counts.candidate_attempts)
    baseline = _posterior(counts.baseline_rates, counts.baseline_attempts)
    return _beta_difference_bounds(*candidate, *baseline, level)


def _posterior(
    rates: Floats,
    attempts: Floats,
) -> tuple[float, float]:
    """Beta parameters of one arm: its mean rate at the number of attempts that has the same variance."""
    rate = float(rates.mean())
    effective = min(len(rates) / float((1 / attempts).mean()), _MOST_ATTEMPTS)
    # Rounded so that equal pooled counts share a cache entry however their tasks were ordered.
    return round(0.5 + rate * effective, 9), round(0.5 + (1 - rate) * effective, 9)


@lru_cache(maxsize=4096)
def _beta_difference_bounds(a: float, b: float, c: float, d: float, level: float) -> tuple[float, float]:
    """Equal-tailed bounds of X - Y for X ~ Beta(a, b), Y ~ Beta(c, d)."""
    if _variance(a, b) < _variance(c, d):  # integrate over the narrower one: the other's CDF is smooth there
        low, high = _beta_difference_bounds(c, d, a, b, level)
        return -high, -low
    tail = max((1 - level) / 2, _SMALLEST_TAIL)
    # The upper tail is the lower one of the mirror image: near 1 a probability has no digits left.
    return _quantile(tail, a, b, c, d), -_quantile(tail, b, a, d, c)


def _variance(a: float, b: float) -> float:
    return a * b / ((a + b) ** 2 * (a + b + 1))


def _quantile(probability: float, a: float, b: float, c: float, d: float) -> float:
    """Root of the CDF of X - Y: secant steps on the probit scale, where it is nearly straight, kept in a bracket."""
    from scipy.special import ndtri

    target = float(ndtri(probability))
    low, high = -1.0, 1.0
    spread = math.sqrt(_variance(a, b) + _variance(c, d))
    guess = a / (a + b) - c / (c + d) + target * spread
    middle = guess if low < guess < high else 0.0
    last = last_error = math.nan
    for _ in range(100):
        below = min(max(_difference_cdf(middle, a, b, c, d), 1e-300), 1 - 1e-15)
        error = float(ndtri(below)) - target
        low, high = (low, middle) if error > 0 else (middle, high)
        slope = (error - last_error) / (middle - last) if middle != last else math.nan
        if math.isnan(slope):
            slope = 1 / spread
        last, last_error = middle, error
        step = middle - error / slope if slope > 0 else math.nan
        middle = step if low < step < high else (low + high) / 2
        if abs(middle - last) < 1e-12 or high - low < 1e-12:
            break
    return middle


def _difference_cdf(difference: float, a: float, b: float, c: float, d: float) -> float:
    """P(X - Y <= difference): Gauss-Legendre on y = low + width sin² t, which evens out the ends."""
    from scipy.special import betainc, betaln

    floor, ceiling = _support(c, d)
    low, high = max(floor, -difference), min(ceiling, 1 - difference)
    above = float(betainc(d, c, difference)) if difference > 0 else 0.0
    if high <= low:
        return above
    y = low + (high - low) * _SIN_SQUARED
    log_density = (c - 1) * np.log(y) + (d - 1) * np.log1p(-y) - betaln(c, d)
    inside = betainc(a, b, np.clip(difference + y, 0, 1)) * np.exp(log_density)
    return float(inside @ _SLOPES) * (high - low) + above


@lru_cache(maxsize=4096)
def _support(c: float, d: float) -> tuple[float, float]:
    """Where Beta(c, d) has all but 1e-14 of its mass on either side."""
    from scipy.special import betaincinv

    floor, ceiling = betaincinv(c, d, [1e-14, 1 - 1e-14])
    return max(float(floor), 1e-300), min(float(ceiling), 1 - 1e-16)
