"""Rates, points and costs as plain functions; missing is NaN, never 0."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from math import comb

import numpy as np

from aggregate.formulas.intervals import Numbers, as_floats

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
