"""How far the true difference between two arms may lie from the measured one: two intervals, two questions.

`delta_interval` and `differences_interval` speak of "tasks like these", `fixed_suite_interval` of "exactly this
suite". Both start from pass counts of two arms, cut down to the tasks judged in both.

For tasks like these, every seen task has weight 1, and beside them half a task is put at -1 (the skill breaks it
outright) and half a task at +1 (it mends it): the mean difference is the sum of x_i D_i with D ~ Dirichlet(weights).
Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = Sequence[float] | Sequence[int] | NDArray[np.float64] | NDArray[np.int64]

MOST_COUNTED = 1e12
_COUNTS = ("candidate_passes", "candidate_attempts", "baseline_passes", "baseline_attempts")


@dataclass(frozen=True)
class PairedCounts:
    """Passes and judged attempts per task, over the tasks that have a judged attempt in both arms."""

    candidate_passes: Floats
    candidate_attempts: Floats
    baseline_passes: Floats
    baseline_attempts: Floats
    dropped: int

    @property
    def tasks(self) -> int:
        return len(self.candidate_passes)

    @property
    def candidate_rates(self) -> Floats:
        return self.candidate_passes / self.candidate_attempts

    @property
    def baseline_rates(self) -> Floats:
        return self.baseline_passes / self.baseline_attempts

    @property
    def differences(self) -> Floats:
        """Candidate rate minus baseline rate of each task."""
        return self.candidate_rates - self.baseline_rates


def paired_counts(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
) -> PairedCounts:
    """Check four arrays of counts and keep the tasks judged in both arms; a NaN count is no attempt."""
    arrays = by_task(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    for name, values in arrays.items():
        refuse(name, values, (values < 0) | (values > MOST_COUNTED), "is not a count")
    for arm in ("candidate", "baseline"):
        passes, attempts = arrays[f"{arm}_passes"], arrays[f"{arm}_attempts"]
        refuse(f"{arm}_passes", passes, passes > attempts, "is more than the attempts of that task")
    known = np.isfinite(np.vstack(list(arrays.values()))).all(axis=0)
    kept = known & (arrays["candidate_attempts"] > 0) & (arrays["baseline_attempts"] > 0)
    return PairedCounts(**{name: values[kept] for name, values in arrays.items()}, dropped=int((~kept).sum()))


def by_task(*counts: Numbers) -> dict[str, Floats]:
    """Passes and attempts of both arms, with an entry per task, as floats of the same length."""
    floats = {name: as_floats(values, name) for name, values in zip(_COUNTS, counts, strict=True)}
    lengths = {name: len(values) for name, values in floats.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"one entry per task is needed in each array; lengths are {lengths}")
    return floats


def as_floats(values: Numbers, name: str) -> Floats:
    """A one-dimensional float array; None becomes NaN, anything else that is no number is refused by name."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"{name}: {wrong}") from None
    if array.ndim != 1:
        raise ValueError(f"{name}: a list of numbers is needed, not {array.ndim} dimensions")
    return array


def check_level(level: float) -> None:
    """Refuse a confidence level that is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level: {level} is not between 0 and 1")


def refuse(name: str, values: Floats, bad: NDArray[np.bool_], why: str) -> None:
    """Raise ValueError for the first value that is bad, with its name, place and what is wrong with it."""
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(f"{name}[{first}]: {values[first]:g} {why}")


UNSEEN = 0.5  # weight of the unseen task at either end
SMALLEST_TAIL = 1e-12  # smaller ones are lost in the sums' last digits
_STEP = 0.1  # of the logarithm of t; halving it changes no probability by more than 1e-12
_TURNS = 0.5  # over |z|: far in a tail the integrand turns fast, and takes smaller steps
_FIRST = 3e-5  # up to here the integrand is a straight line
_LAST = 1e-16  # and beyond where it has shrunk to this, nothing
_CHUNK = 64
_MOST_VALUES = 2500


def weighted(differences: Floats) -> tuple[Floats, Floats]:
    """The distinct differences with how many tasks have each, and the two unseen half tasks.

    Thousands of distinct ones are rounded to three places, which moves the mean by less than 0.00002.
    """
    everything = np.append(differences, [-1.0, 1.0])
    values, counts = np.unique(np.round(everything, 12), return_counts=True)
    if len(values) > _MOST_VALUES:
        values, counts = np.unique(np.round(everything, 3), return_counts=True)
    weights = counts.astype(np.float64)
    weights[[0, -1]] += UNSEEN - 1
    return values, weights


def share_below(mean: float | Floats, values: Floats, weights: Floats) -> Floats:
    """P(sum of D_i x_i <= mean) for D ~ Dirichlet(weights); the last axis holds the groups, others are rows.

    Gil-Pelaez, Biometrika 38 (1951) 481, on gamma variables: the trapezoid rule on log t, where it converges
    geometrically. Exact to about 1e-12.
    """
    gaps, weights = np.broadcast_arrays(np.atleast_2d(values - np.asarray(mean)[..., None]), weights)
    centre = (weights * gaps).sum(axis=1)
    spread = np.sqrt((weights * gaps**2).sum(axis=1))
    below = np.where(centre > 0, 0.0, 1.0)
    far = np.abs(centre) >= 40 * spread  # and where all gaps have one sign
    open_still = np.flatnonzero(~far & (gaps.min(axis=1) < 0) & (gaps.max(axis=1) > 0))
    if open_still.size:
        below[open_still] = _integrated(
            gaps[open_still], weights[open_still], centre[open_still], spread[open_still]
        )
    return below


def _integrated(gaps: Floats, weights: Floats, centre: Floats, spread: Floats) -> Floats:
    step = _TURNS / max(_TURNS / _STEP, float((np.abs(centre) / spread).max()))
    first = _FIRST / (np.abs(centre) + spread)
    # The sum over all t below the first one, where each is exp(-step) of the next.
    total = first * centre * math.exp(-step) / -math.expm1(-step)
    ratios = np.exp(step * np.arange(_CHUNK))
    while True:
        t = first[:, None] * ratios
        turned = np.einsum("rg,rtg->rt", weights, np.arctan(scaled := t[:, :, None] * gaps[:, None, :]))
        shrunk = np.exp(-0.5 * np.einsum("rg,rtg->rt", weights, np.log1p(scaled**2)))
        total += (np.sin(turned) * shrunk).sum(axis=1)
        if not (shrunk[:, -1] >= _LAST).any():  # so that a number that is none ends this too
            return np.clip(0.5 - total * step / math.pi, 0.0, 1.0)
        first = first * math.exp(step * _CHUNK)


# Below this tail no count that a run can reach is informative, and the quadrature would only return noise.
_SMALLEST_TAIL = 1e-9
MOST_SURE = 1 - 2e-9
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
    """Interval for the mean pass-rate difference over tasks like these, from counts per task."""
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    return differences_interval(counts.differences, level)


def differences_interval(differences: Numbers, level: float = 0.95) -> Interval:
    """Interval for the mean over tasks like these, from one difference per task; NaN is no task.

    As if, beside these tasks, half a task had been seen that the skill breaks outright and half a task that it
    mends: the bounds are points of the mean under Dirichlet weights.
    """
    check_level(level)
    known = known_differences(differences)
    if known.size == 0:
        return Interval(math.nan, -1.0, 1.0, level)
    low, high = _mean_bounds(known, level)
    return _containing(float(known.mean()), low, high, level)


def smallest_clear_mean(around: Floats, level: float = 0.95) -> float:
    """The smallest mean at which differences that lie so `around` it have an interval above 0; infinite if none."""
    tail = (1 - level) / 2

    def is_clear(mean: float) -> bool:
        return float(share_below(0.0, *weighted(np.clip(mean + around, -1.0, 1.0)))[0]) < tail

    return smallest(is_clear, 1e-4)


def smallest(is_enough: Callable[[float], bool], step: float) -> float:
    """The smallest number up to 1 that is enough, to within a step; infinite where not even 1 is."""
    if not is_enough(1.0):
        return math.inf
    low, high = 0.0, 1.0
    while high - low > step:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def fixed_suite_interval(
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
    level: float = 0.95,
) -> Interval:
    """Interval for the pass-rate difference on exactly these tasks: only the model's chance varies.

    Quantiles of the difference of two Beta posteriors under Jeffreys priors, one an arm, on counts that are pooled
    over the tasks with equally many attempts
    (Brown, Cai & DasGupta, Statistical Science 16 (2001) 101); deterministic quadrature, no random draws.
    """
    check_level(level)
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    if counts.tasks == 0:
        return Interval(math.nan, -1.0, 1.0, level)
    candidate, baseline = posteriors(counts)
    low, high = _beta_difference_bounds(*candidate, *baseline, level)
    return _containing(float(counts.differences.mean()), low, high, level)


def ratio_interval(log_ratios: Floats, level: float = 0.95) -> Interval:
    """Interval for the ratio candidate / baseline over tasks like these, from each task's log ratio.

    exp(mean ± t · sqrt((Σ (x - mean)² + (log 10)²) / (n (n + 1)))), t of n degrees of freedom: Student's t as if one
    task more had been seen, half of it ten times dearer than the others' mean and half ten times cheaper. Tasks that
    agree say little about the rare one that does not. No bounds under two tasks, and no estimate without any.
    """
    from scipy.special import stdtrit  # scipy costs 0.2 s to import: only where a number needs it

    check_level(level)
    n = len(log_ratios)
    mean = float(log_ratios.mean()) if n else math.nan
    half = math.nan
    if n > 1:
        squares = float(((log_ratios - mean) ** 2).sum())
        half = float(stdtrit(n, (1 + level) / 2)) * math.sqrt((squares + math.log(10) ** 2) / (n * (n + 1)))
    with np.errstate(over="ignore"):  # a bill of 1e-300 USD can be written down
        estimate, low, high = np.exp([mean, mean - half, mean + half]).tolist()
    return Interval(estimate, low, high, level)


def _containing(estimate: float, low: float, high: float, level: float) -> Interval:
    """Clip to what a difference of rates can be, and widen to the estimate where an end missed it."""
    estimate = min(1.0, max(-1.0, estimate))
    return Interval(estimate, min(estimate, max(-1.0, low)), max(estimate, min(1.0, high)), level)


def known_differences(differences: Numbers) -> Floats:
    values = as_floats(differences, "differences")
    known = values[~np.isnan(values)]
    if ((known < -1 - 1e-9) | (known > 1 + 1e-9)).any():
        raise ValueError("differences: a difference of pass rates lies between -1 and 1")
    return np.clip(known, -1.0, 1.0)


def _mean_bounds(differences: Floats, level: float) -> tuple[float, float]:
    values, weights = weighted(differences)
    tail = max((1 - level) / 2, SMALLEST_TAIL)
    total = float(weights.sum())
    centre = float(values @ weights) / total
    spread = math.sqrt(float((values - centre) ** 2 @ weights) / total / (total + 1))

    def lower_end(points: Floats, centre: float) -> float:
        return _root(lambda mean: float(share_below(mean, points, weights)[0]), tail, centre, spread)

    return lower_end(values, centre), -lower_end(-values, -centre)


def posteriors(counts: PairedCounts) -> tuple[tuple[float, float], tuple[float, float]]:
    return (
        _posterior(counts.candidate_rates, counts.candidate_attempts),
        _posterior(counts.baseline_rates, counts.baseline_attempts),
    )


def _posterior(rates: Floats, attempts: Floats) -> tuple[float, float]:
    """Beta parameters of one arm.

    Tasks with equally many attempts are pooled. Where their numbers differ, each such group has a Beta of its own,
    and the arm's has the mean and variance of their weighted sum: a task tried once is as unsure as it is.
    """
    tasks = len(rates)
    mean = variance = 0.0
    parameters = (0.5, 0.5)
    for count in np.unique(attempts):
        group = rates[attempts == count]
        total = min(float(count) * len(group), _MOST_ATTEMPTS)
        rate = float(group.mean())
        parameters = (0.5 + rate * total, 0.5 + (1 - rate) * total)
        share = len(group) / tasks
        mean += share * parameters[0] / (total + 1)
        variance += share**2 * beta_variance(*parameters)
    if tasks and attempts.min() != attempts.max():
        total = mean * (1 - mean) / variance - 1
        parameters = (mean * total, (1 - mean) * total)
    # Rounded so that equal pooled counts share a cache entry however their tasks were ordered.
    return round(parameters[0], 9), round(parameters[1], 9)


@lru_cache(maxsize=4096)
def _beta_difference_bounds(a: float, b: float, c: float, d: float, level: float) -> tuple[float, float]:
    """Equal-tailed bounds of X - Y for X ~ Beta(a, b), Y ~ Beta(c, d)."""
    # Integrate over the narrower one: the other's CDF is smooth there.
    if beta_variance(a, b) < beta_variance(c, d):
        low, high = _beta_difference_bounds(c, d, a, b, level)
        return -high, -low
    tail = max((1 - level) / 2, _SMALLEST_TAIL)
    # The upper tail is the lower one of the mirror image: near 1 a probability has no digits left.
    return _quantile(tail, a, b, c, d), -_quantile(tail, b, a, d, c)


def beta_variance(a: float, b: float) -> float:
    return a * b / ((a + b) ** 2 * (a + b + 1))


def _quantile(probability: float, a: float, b: float, c: float, d: float) -> float:
    spread = math.sqrt(beta_variance(a, b) + beta_variance(c, d))
    centre = a / (a + b) - c / (c + d)
    return _root(lambda difference: difference_cdf(difference, a, b, c, d), probability, centre, spread)


def _root(below: Callable[[float], float], probability: float, centre: float, spread: float) -> float:
    """Where a distribution function between -1 and 1 has the probability.

    Secant steps on the probit scale, where it is nearly straight, kept in a bracket.
    """
    from scipy.special import ndtri

    target = float(ndtri(probability))
    low, high = -1.0, 1.0
    guess = centre + target * spread
    middle = guess if low < guess < high else (low + centre) / 2
    last = last_error = math.nan
    for _ in range(100):
        share = min(max(below(middle), 1e-300), 1 - 1e-15)
        error = float(ndtri(share)) - target
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


def difference_cdf(difference: float, a: float, b: float, c: float, d: float) -> float:
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
