"""What a suite of this size can and cannot show, and how much more would be needed."""

from __future__ import annotations

import math
from collections.abc import Callable

from aggregate.counts import check_level

MOST_ATTEMPTS = 1_000_000


def min_detectable_effect(
    tasks: int,
    attempts: float,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> float:
    """Smallest true difference that `tasks` × `attempts` an arm would find with the given power.

    (t_level + t_power) · sqrt((task_sd² + 2 p (1 - p) / attempts) / tasks), after Bloom, Evaluation Review 19
    (1995) 547; p is `rate` drawn half a pass towards 0.5: a perfect score must not claim to see everything.
    `task_sd` is how much the true effect varies between tasks. At power 0.5 this is half an interval's width.
    Infinite when not even a difference of 1 would do, NaN for no tasks or no known rate.
    """
    _check(level, power, task_sd)
    if tasks <= 0 or attempts <= 0 or math.isnan(rate):
        return math.nan
    total = tasks * attempts
    smoothed = (min(1.0, max(0.0, rate)) * total + 0.5) / (total + 1)
    variance = task_sd**2 + 2 * smoothed * (1 - smoothed) / attempts
    effect = _quantiles(tasks, level, power) * math.sqrt(variance / tasks)
    return effect if effect <= 1 else math.inf


def attempts_needed(
    effect: float,
    tasks: int,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Fewest attempts per task and arm that see `effect`; None when only more tasks would help."""
    _check_effect(effect)

    def sees(attempts: int) -> bool:
        return min_detectable_effect(tasks, attempts, rate, task_sd, level, power) <= effect

    return _smallest(sees)


def tasks_needed(
    effect: float,
    attempts: int,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Fewest tasks that see `effect` at this many attempts per task and arm; None beyond a million."""
    _check_effect(effect)

    def sees(tasks: int) -> bool:
        return min_detectable_effect(tasks, attempts, rate, task_sd, level, power) <= effect

    return _smallest(sees)


def _smallest(enough: Callable[[int], bool]) -> int | None:
    """Bisect for the first number that is enough; more is never worse from two tasks on."""
    if not enough(MOST_ATTEMPTS):
        return None
    low, high = 0, MOST_ATTEMPTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _quantiles(tasks: int, level: float, power: float) -> float:
    from scipy.special import ndtri, stdtrit

    sure = (1 + level) / 2
    if tasks == 1:  # one task has only the fixed-suite interval, which knows no spread between tasks
        return float(ndtri(sure) + ndtri(power))
    return float(stdtrit(tasks - 1, sure) + stdtrit(tasks - 1, power))


def _check(level: float, power: float, task_sd: float) -> None:
    check_level(level)
    if not 0 < power < 1:
        raise ValueError(f"power: {power} is not between 0 and 1")
    if not 0 <= task_sd < math.inf:
        raise ValueError(f"task_sd: {task_sd} is not a standard deviation")


def _check_effect(effect: float) -> None:
    if not 0 < effect <= 1:
        raise ValueError(f"effect: {effect} is not a difference of pass rates above 0 and up to 1")
