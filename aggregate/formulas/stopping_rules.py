"""May a run stop before all its attempts are made? One look after each round: go on, or stop and why.

A look stops a run whose statistics are clear already, or will hardly become so. It asks for more certainty than a
single test, so that looking often raises no more false alarms than looking once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aggregate.formulas.intervals import (
    MOST_SURE,
    Floats,
    Interval,
    Numbers,
    PairedCounts,
    differences_interval,
    paired_counts,
    smallest_clear_mean,
)
from aggregate.formulas.verdict import MARGIN, DecisionName, Reason, decision

ALPHA = 0.025  # a side
EFFECT = 0.10
FUTILE_BELOW = 0.20
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
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    differences, within = _by_task(counts, tasks)
    interval = at_look(look, differences)
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


def at_look(look: PlannedLook, differences: Floats) -> Interval:
    """The interval at the level of one look."""
    if len(differences) and look.level > MOST_SURE:  # so early a look is not meant to stop anything
        return Interval(float(differences.mean()), -1.0, 1.0, look.level)
    return differences_interval(differences, min(look.level, MOST_SURE))


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
    bound = (
        smallest_clear_mean(around if mean >= 0 else -around, min(plan[-1].level, MOST_SURE)) / final_error
    )
    so_far = abs(mean) / error * math.sqrt(share)
    missing = so_far + max(effect, abs(mean)) / final_error * (1 - share) - bound
    if share > 1 - 1e-9:
        return 1.0 if missing > 0 else 0.0
    return float(ndtr(missing / math.sqrt(1 - share)))
