"""How much is enough? What a suite of this size can show, what more it would take, and when a run may stop early.

A look after a round of attempts stops a run whose statistics are clear already, or will hardly become so. It asks for
more certainty than a single test, so that looking often raises no more false alarms than looking once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from aggregate.formulas import intervals
from aggregate.formulas.intervals import (
    MOST_SURE,
    Floats,
    Interval,
    Numbers,
    PairedCounts,
    differences_interval,
)
from aggregate.formulas.verdict import MARGIN, DecisionName, Reason, decision

MOST_ATTEMPTS = 1_000_000
_SMALLEST_STEP = 1e-3
_WRITTEN_OUT = 12  # attempts: beyond them a pass rate's chances have the same form, only narrower
ALPHA = 0.025  # a side
EFFECT = 0.10
FUTILE_BELOW = 0.20
_REACH = 8.0  # standard deviations: what lies beyond weighs less than 1e-15
_LEAST = 1e-15
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


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
    return intervals.smallest(lambda effect: _is_found(effect, *setting), _SMALLEST_STEP)


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
    weights = np.concatenate([[intervals.UNSEEN, intervals.UNSEEN], tasks * shares])
    return bool(intervals.share_below(0.0, points, weights)[0] < (1 - min(level, MOST_SURE)) / 2)


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
    intervals.check_level(level)
    if not 0 < power < 1:
        raise ValueError(f"power: {power} is not between 0 and 1")
    if not 0 <= task_sd < math.inf:
        raise ValueError(f"task_sd: {task_sd} is not a standard deviation")
    if not 0 < effect <= 1:
        raise ValueError(f"effect: {effect} is not a difference of pass rates above 0 and up to 1")


@dataclass(frozen=True)
class PlannedLook:
    """One look of the plan: after which round, alpha spent so far (a side), and what it asks for.

    `bound` is in standard errors; an infinite one means that the look cannot stop the run. `level` is the
    two-sided confidence level of an interval with that bound.
    """

    round: int
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
    from scipy.special import ndtr, ndtri

    fractions = [number / rounds for number in range(1, rounds + 1)]
    spent = [2 * float(ndtr(ndtri(alpha / 2) / math.sqrt(fraction))) for fraction in fractions]
    return tuple(
        PlannedLook(number, spent[number - 1], bound, 1 - 2 * float(ndtr(-bound)))
        for number, bound in enumerate(_bounds(fractions, spent), start=1)
    )


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


@dataclass(frozen=True)
class DecisionLook:
    """One look of a group-sequential run: the repeated interval, and whether it is enough."""

    stop: bool
    reasons: tuple[Reason, ...]
    round: int
    interval: Interval
    spent_alpha: float
    conditional_power: float
    decision: DecisionName | None = None


def look_at_decision(
    plan: Sequence[PlannedLook],
    round_number: int,
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
    *,
    tasks: Sequence[str] | None = None,
    effect: float = EFFECT,
    margin: float = MARGIN,
) -> DecisionLook:
    """Stop after a round when the repeated interval leaves 0, or when that has become unlikely.

    The repeated interval is `differences_interval` at the look's own level (Jennison & Turnbull, JRSS B 51
    (1989) 305). Futile: even a true effect of `effect`, or of what was seen so far where that is more, would end
    in `improved` or `worse` with a chance under 20 %. `tasks` names the task of each entry, where models share
    a task; they are averaged.
    """
    if not 1 <= round_number <= len(plan):
        raise ValueError(f"round_number: {round_number} is not a round of a plan of {len(plan)}")
    if not 0 < effect <= 1:
        raise ValueError(f"effect: {effect} is not a difference of pass rates above 0 and up to 1")
    look = plan[round_number - 1]
    counts = intervals.paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    differences, within = _by_task(counts, tasks)
    interval = differences_interval(differences, min(look.level, MOST_SURE))
    if len(differences) and look.level > MOST_SURE:  # so early a look is not meant to stop anything
        interval = Interval(float(differences.mean()), -1.0, 1.0, look.level)
    supported = decision(interval, margin)
    power = _conditional_power(plan, round_number, differences, within, effect)
    stop, reasons = True, supported.reasons
    if round_number < len(plan) and supported.decision not in ("improved", "worse"):
        if power < FUTILE_BELOW:
            assumed = max(effect, abs(interval.estimate))
            reasons = (Reason("futile", {"effect": assumed, "power": power}), *reasons)
        else:
            stop, reasons = False, (Reason("more_rounds", {"round": round_number, "rounds": len(plan)}),)
    label = supported.decision if stop else None
    return DecisionLook(stop, reasons, round_number, interval, look.spent_alpha, power, label)


def _by_task(counts: PairedCounts, tasks: Sequence[str] | None) -> tuple[Floats, float]:
    """One difference per task, and the mean variance that chance within a task gives it."""
    if counts.tasks == 0:
        return counts.differences, math.nan
    if tasks is not None and len(tasks) != counts.tasks:
        raise ValueError(f"tasks: {len(tasks)} names for {counts.tasks} entries judged in both arms")
    names = np.arange(counts.tasks) if tasks is None else np.asarray(tasks)
    _, task = np.unique(names, return_inverse=True)
    models = np.bincount(task)
    variance = np.zeros(counts.tasks)
    for passes, attempts in (
        (counts.candidate_passes, counts.candidate_attempts),
        (counts.baseline_passes, counts.baseline_attempts),
    ):
        rates = (passes + 0.5) / (attempts + 1)  # a task that always passed so far may still fail
        variance += rates * (1 - rates) / attempts
    within = float((np.bincount(task, variance) / models**2).mean())
    return np.bincount(task, counts.differences) / models, within


def _conditional_power(
    plan: Sequence[PlannedLook], round_number: int, differences: Floats, within: float, effect: float
) -> float:
    """Chance that the last look leaves 0 if the true effect is `effect`, or what was seen if that is more.

    Lan & Wittes, Biometrics 44 (1988) 579, on the B-value scale. More attempts shrink only the part of the
    variance that lies within tasks, so the data say how much of the information is in. NaN without tasks.
    """
    n = len(differences)
    if n == 0:
        return math.nan
    from scipy.special import ndtr

    mean = float(differences.mean())
    variance = max(float(differences.var(ddof=1)) if n > 1 else 0.0, within)
    final = variance - within * (1 - round_number / len(plan))
    error, final_error = math.sqrt(variance / n), math.sqrt(final / n)
    share = min(1.0, final / variance)
    around = (differences - mean) * math.sqrt(share)  # what is left of the spread at the last look
    signed = around if mean >= 0 else -around
    bound = intervals.smallest_clear_mean(signed, min(plan[-1].level, MOST_SURE)) / final_error
    so_far = abs(mean) / error * math.sqrt(share)
    missing = so_far + max(effect, abs(mean)) / final_error * (1 - share) - bound
    if share > 1 - 1e-9:
        return 1.0 if missing > 0 else 0.0
    return float(ndtr(missing / math.sqrt(1 - share)))
