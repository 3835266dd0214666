"""Rates, points, costs, and whether the judges of a panel agree, as plain functions; missing is NaN, never 0."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aggregate.formulas.intervals import Floats, Numbers, as_floats

_EXACT_COUNTS = 10_000


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k attempts passes, from c passes in n: 1 - C(n-c, k) / C(n, k).

    Unbiased (Chen et al., arXiv:2107.03374, 2021); NaN when k > n, for fewer attempts cannot tell.
    """
    n, c, k = _counts(n, c, k)
    if k > n:
        return math.nan
    if n > _EXACT_COUNTS:
        return -math.expm1(_log_share(n - c, n, k))
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k attempts pass, from c passes in n: C(c, k) / C(n, k).

    Unbiased (Yao et al., tau-bench, arXiv:2406.12045, 2024); NaN when k > n.
    """
    n, c, k = _counts(n, c, k)
    if k > n:
        return math.nan
    if n > _EXACT_COUNTS:
        return math.exp(_log_share(c, n, k))
    return comb(c, k) / comb(n, k)


def _log_share(some: int, n: int, k: int) -> float:
    """Logarithm of C(some, k) / C(n, k); whole numbers of that many digits would take for ever."""
    if some < k:
        return -math.inf
    return math.lgamma(some + 1) - math.lgamma(some - k + 1) - math.lgamma(n + 1) + math.lgamma(n - k + 1)


def _counts(n: float, c: float, k: float) -> tuple[int, int, int]:
    for name, value in (("n", n), ("c", c), ("k", k)):
        if not math.isfinite(value) or value != int(value):
            raise ValueError(f"{name}: {value} is not a count")
    if not 0 <= c <= n:
        raise ValueError(f"c: {c} passes of n = {n} attempts")
    if k < 1:
        raise ValueError(f"k: {k} attempts; at least 1 is needed")
    return int(n), int(c), int(k)


def task_pass_rate(passes: Numbers, attempts: Numbers) -> float:
    """Share of tasks that passed at least once, among those with a judged attempt; NaN when there is none."""
    passed, judged = as_floats(passes, "passes"), as_floats(attempts, "attempts")
    known = judged > 0
    return float(np.mean(passed[known] > 0)) if known.any() else math.nan


def attempt_pass_rate(passes: Numbers, attempts: Numbers) -> float:
    """Mean over tasks of passes / judged attempts; NaN when no task was judged."""
    passed, judged = as_floats(passes, "passes"), as_floats(attempts, "attempts")
    known = judged > 0
    return float(np.mean(passed[known] / judged[known])) if known.any() else math.nan


def rounded_delta(candidate_rate: float, baseline_rate: float) -> float:
    """The artifact's delta: difference of the rates as printed, 4 places each; NaN when one is missing."""
    return round(round(float(candidate_rate), 4) - round(float(baseline_rate), 4), 4)


def normalized_gain(candidate: float, baseline: float) -> float:
    """Share of the possible improvement that was reached: (c - b) / (1 - b); NaN when b = 1.

    Hake, American Journal of Physics 66 (1998) 64.
    """
    candidate, baseline = float(candidate), float(baseline)
    return (candidate - baseline) / (1 - baseline) if baseline != 1 else math.nan


def compute_impl_rate(achieved: float, maximum: float) -> float:
    """Points achieved of those possible, not clamped; NaN when none was possible or a number is missing."""
    achieved, maximum = float(achieved), float(maximum)
    if not maximum > 0 or not math.isfinite(achieved) or not math.isfinite(maximum):
        return math.nan
    rate = achieved / maximum
    return rate if math.isfinite(rate) else math.nan


def consensus(values: Iterable[float | None]) -> float:
    """Median of what a panel's judges gave, leaving out those that gave nothing; NaN when none did."""
    given = [float(value) for value in values if value is not None and not math.isnan(value)]
    return statistics.median(given) if given else math.nan


def mean_known(values: Iterable[float | None]) -> float:
    """Mean of the values that are known; NaN when none is."""
    given = [float(value) for value in values if value is not None and not math.isnan(value)]
    try:
        return math.fsum(given) / len(given) if given else math.nan
    except OverflowError:
        return math.inf


def compute_cop(mean_cost: float | None, pass_rate: float | None) -> float:
    """Cost of one pass in USD: mean cost / pass rate of attempts (Erol et al., arXiv:2504.13359, 2025).

    Infinite when nothing passes; NaN when the cost or the rate is unknown.
    """
    cost, rate = _number(mean_cost), _number(pass_rate)
    if math.isnan(cost) or math.isnan(rate):
        return math.nan
    return cost / rate if rate > 0 else math.inf


def compute_frontier_cop(values: Iterable[float | None]) -> float:
    """The cheapest cost of a pass on offer: the smallest finite value; NaN when there is none."""
    finite = [number for number in map(_number, values) if math.isfinite(number)]
    return min(finite, default=math.nan)


def cost_weighted_advantage(mean_advantage: float | None, mean_cost: float | None) -> float | None:
    """Mean advantage per USD and task of the candidate; 0 when it costs nothing, None when either is unknown.

    Never order candidates by it: a losing one looks better the more it costs.
    """
    advantage, cost = _number(mean_advantage), _number(mean_cost)
    if math.isnan(cost) or math.isnan(advantage):
        return None
    return advantage / cost if cost != 0 else 0.0


_NOISE = 1e-9  # sums of the same prices in another order differ by less, prices and rates by more


def cost_per_extra_pass(
    candidate_cost: float | None, baseline_cost: float | None, attempt_delta: float | None
) -> float:
    """Extra USD for each additional pass, from costs of an attempt; NaN unless the candidate is both better and dearer.

    The incremental cost-effectiveness ratio (Drummond et al., Methods for the Economic Evaluation of Health
    Care Programmes, 2015).
    """
    mine, other, gain = _number(candidate_cost), _number(baseline_cost), _number(attempt_delta)
    if math.isclose(mine, other, rel_tol=_NOISE):
        return math.nan
    return (mine - other) / gain if mine > other and gain > _NOISE else math.nan


def dominates(candidate_cost: float | None, baseline_cost: float | None, attempt_delta: float | None) -> bool:
    """Better and no dearer: there is no price to weigh. False while a number is unknown."""
    mine, other = _number(candidate_cost), _number(baseline_cost)
    return (mine <= other or math.isclose(mine, other, rel_tol=_NOISE)) and _number(attempt_delta) > _NOISE


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


Ratings = Sequence[Sequence[float]] | NDArray[np.float64]


def krippendorff_alpha(ratings: Ratings, level: Literal["interval", "nominal"] = "interval") -> float:
    """Agreement beyond chance of a judges × units table: 1 is perfect, 0 is chance, less is worse.

    alpha = 1 - observed / expected disagreement (Krippendorff, Content Analysis, 2004, ch. 11). NaN marks a
    missing rating; the result is NaN when no unit has two ratings, or all ratings are equal: nothing varies.
    """
    table = _table(ratings)
    rated = ~np.isnan(table)
    pairable = rated.sum(axis=0) >= 2
    table, rated = table[:, pairable], rated[:, pairable]
    if table.size == 0:
        return math.nan
    if level == "nominal":
        observed, expected = _nominal_disagreement(table, rated)
    elif level == "interval":
        observed, expected = _interval_disagreement(table, rated)
    else:
        raise ValueError(f"level: {level!r} is not interval or nominal")
    return 1 - observed / expected if expected > 0 else math.nan


def _interval_disagreement(table: Floats, rated: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean squared difference within units, and over all pairs; each sum of pairs is a sum of squares."""
    per_unit = rated.sum(axis=0)
    total = int(per_unit.sum())
    values = table[rated]
    if values.min() == values.max():
        return 0.0, 0.0
    scale = float(np.abs(values).max())
    scaled = np.where(rated, table / scale, 0.0)
    middle = scaled.sum(axis=0) / per_unit
    within = (np.where(rated, scaled - middle, 0.0) ** 2).sum(axis=0)
    observed = float((2 * per_unit * within / (per_unit - 1)).sum()) / total
    values = values / scale
    expected = 2 * float(((values - values.mean()) ** 2).sum()) / (total - 1)
    return observed, expected


def _nominal_disagreement(table: Floats, rated: NDArray[np.bool_]) -> tuple[float, float]:
    """Share of pairs that differ within units, and over all ratings."""
    per_unit = rated.sum(axis=0)
    total = int(per_unit.sum())
    same_in_unit = np.zeros(table.shape[1])
    same_overall = 0
    for value in np.unique(table[rated]):
        count = (table == value).sum(axis=0)
        same_in_unit += count * (count - 1)
        same_overall += int(count.sum()) * (int(count.sum()) - 1)
    observed = float(((per_unit * (per_unit - 1) - same_in_unit) / (per_unit - 1)).sum()) / total
    return observed, 1 - same_overall / (total * (total - 1))


def judge_bias(ratings: Ratings) -> list[float]:
    """How far each judge rates above the mean of its fellow judges, over the units it shares with any.

    In score units, one number a judge in input order; NaN for a judge that shares no unit.
    """
    table = _table(ratings)
    rated = ~np.isnan(table)
    filled = np.where(rated, table, 0.0)
    others = rated.sum(axis=0) - rated
    shared = rated & (others > 0)
    fellows = (filled.sum(axis=0) - filled) / np.maximum(others, 1)
    excess = np.where(shared, filled - fellows, 0.0).sum(axis=1)
    units = shared.sum(axis=1)
    return [float(e / u) if u else math.nan for e, u in zip(excess, units, strict=True)]


def _table(ratings: Ratings) -> Floats:
    try:
        table = np.asarray(ratings, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise ValueError(f"ratings: {wrong}") from None
    if table.size == 0:
        return np.empty((len(table), 0))
    if table.ndim != 2:
        raise ValueError(f"ratings: a judges × units table is needed, not {table.ndim} dimensions")
    if np.isinf(table).any():
        judge, unit = np.argwhere(np.isinf(table))[0]
        raise ValueError(f"ratings[{judge}][{unit}]: an infinite rating")
    return table
