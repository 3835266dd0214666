"""What a suite of this size can and cannot show, and how much more would be needed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from math import comb

import numpy as np

from aggregate.formulas.intervals import MOST_SURE, UNSEEN, Floats, check_level, share_below, smallest

MOST_ATTEMPTS = 1_000_000
_SMALLEST_STEP = 1e-3
_WRITTEN_OUT = 12  # attempts: beyond them a pass rate's chances have the same form, only narrower


def min_detectable_effect(
    tasks: int,
    attempts: float,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> float:
    """Smallest true difference that `tasks` × `attempts` an arm would find with the given power.

    Found means that `differences_interval` lies above 0. The rates of the two arms lie around `rate`, drawn
    towards 0.5 as far as the difference needs. `task_sd` is how much the true effect varies between tasks.
    Infinite when not even a difference of 1 would do, NaN for no tasks or no known rate.
    """
    _check(level, power, task_sd)
    if tasks <= 0 or attempts <= 0 or math.isnan(rate):
        return math.nan
    setting = (tasks, attempts, rate, task_sd, level, power)
    return smallest(lambda effect: _is_found(effect, *setting), _SMALLEST_STEP)


def attempts_needed(
    effect: float,
    tasks: int,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Fewest attempts per task and arm that see `effect`; None when only more tasks would help."""
    _check(level, power, task_sd, effect)
    if tasks <= 0 or math.isnan(rate):
        return None
    return _smallest(lambda attempts: _is_found(effect, tasks, attempts, rate, task_sd, level, power))


def tasks_needed(
    effect: float,
    attempts: int,
    rate: float = 0.5,
    task_sd: float = 0.0,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Fewest tasks that see `effect` at this many attempts per task and arm; None beyond a million."""
    _check(level, power, task_sd, effect)
    if attempts <= 0 or math.isnan(rate):
        return None
    return _smallest(lambda tasks: _is_found(effect, tasks, attempts, rate, task_sd, level, power))


def _smallest(enough: Callable[[int], bool]) -> int | None:
    """Bisect for the first number that is enough; more is never worse from two tasks on."""
    if not enough(MOST_ATTEMPTS):
        return None
    return 1 + bisect_left(range(1, MOST_ATTEMPTS), True, key=enough)


@lru_cache(maxsize=65536)
def _is_found(
    effect: float, tasks: int, attempts: float, rate: float, task_sd: float, level: float, power: float
) -> bool:
    """Whether a typical sample of tasks is clear of 0 even when its mean turns out low.

    The sample holds every possible difference as often as it is expected. Its mean varies from run to run,
    and so does its spread, which moves the bound: both together make it low in a share 1 - `power` of runs.
    """
    from scipy.special import ndtri

    values, shares = _differences(effect, attempts, rate, task_sd)
    mean = float(values @ shares)
    second, third, fourth = (float((values - mean) ** order @ shares) for order in (2, 3, 4))
    if second < 1e-12:
        varies = 0.0
    else:
        # The bound lies about z · sqrt((variance + 1 / tasks) / tasks) below the mean: so much does spread move it.
        z = float(ndtri((1 + min(level, MOST_SURE)) / 2))
        slope = z / (2 * math.sqrt(tasks * (second + 1 / tasks)))
        varies = (second + slope**2 * (fourth - second**2) - 2 * slope * third) / tasks
    low = float(ndtri(power)) * math.sqrt(max(0.0, varies))
    points = np.concatenate([[-1.0, 1.0], values - low])
    weights = np.concatenate([[UNSEEN, UNSEEN], tasks * shares])
    return bool(share_below(0.0, points, weights)[0] < (1 - min(level, MOST_SURE)) / 2)


def _differences(effect: float, attempts: float, rate: float, task_sd: float) -> tuple[Floats, Floats]:
    """The differences that a task may show, and how likely each is; tasks lie `task_sd` above or below the effect."""
    middle = min(max(rate, effect / 2), 1 - effect / 2)
    count = min(max(1, round(attempts)), _WRITTEN_OUT)
    narrower = math.sqrt(count / attempts)
    steps = np.arange(-count, count + 1) / count
    values, shares = [], []
    for true in {effect + task_sd, effect - task_sd}:
        above, below = (min(1.0, max(0.0, middle + side * true / 2)) for side in (1, -1))
        chances = np.convolve(_passes(count, above), _passes(count, below)[::-1])
        values.append(true + (steps - float(steps @ chances)) * narrower)
        shares.append(chances)
    return np.concatenate(values), np.concatenate(shares) / len(shares)


def _passes(count: int, rate: float) -> Floats:
    """How likely each number of passes is in so many attempts."""
    return np.array([comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(count + 1)])


def _check(level: float, power: float, task_sd: float, effect: float = 1.0) -> None:
    check_level(level)
    if not 0 < power < 1:
        raise ValueError(f"power: {power} is not between 0 and 1")
    if not 0 <= task_sd < math.inf:
        raise ValueError(f"task_sd: {task_sd} is not a standard deviation")
    if not 0 < effect <= 1:
        raise ValueError(f"effect: {effect} is not a difference of pass rates above 0 and up to 1")
