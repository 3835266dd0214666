"""May a run stop before all its attempts are made? One look at what is there: go on, or stop and why.

`look_at_verdict` stops when no way of going on could change the verdict. `look_at_decision` stops when the
statistics are already clear, or when they will hardly become so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aggregate.counts import Numbers, PairedCounts, paired_counts
from aggregate.intervals import Interval, delta_interval
from aggregate.spending import PlannedLook, plan_looks
from aggregate.stats import rounded_delta
from aggregate.verdict import MARGIN, WEAK_BASELINE, DecisionName, VerdictName, decision

__all__ = [
    "DecisionLook",
    "PlannedLook",
    "TaskProgress",
    "VerdictLook",
    "look_at_decision",
    "look_at_verdict",
    "plan_looks",
]

EFFECT = 0.10
FUTILE_BELOW = 0.20


@dataclass(frozen=True)
class TaskProgress:
    """One task in one arm so far; `remaining` attempts have no final record yet."""

    passed: bool
    judged: int
    remaining: int

    @property
    def wants_more(self) -> bool:
        """A task stops at its first pass: further attempts cannot change whether it passed."""
        return not self.passed and self.remaining > 0


@dataclass(frozen=True)
class VerdictLook:
    """Whether the verdict is settled, and between which bounds delta would end."""

    stop: bool
    reason: str
    delta_bounds: tuple[float, float]
    verdict: VerdictName | None = None


@dataclass(frozen=True)
class DecisionLook:
    """One look of a group-sequential run: the repeated interval, and whether it is enough."""

    stop: bool
    reason: str
    round: int
    interval: Interval
    spent_alpha: float
    conditional_power: float
    decision: DecisionName | None = None


def look_at_verdict(
    candidate: Sequence[TaskProgress],
    baseline: Sequence[TaskProgress],
    *,
    pending_errors: int = 0,
    weak_baseline_matters: bool = True,
) -> VerdictLook:
    """Stop when the sign of delta holds for every pass/fail completion of both arms.

    Not while an `error` awaits another try, nor while the baseline could still turn out weak. The verdict is
    then that of the full run, provided that no attempt left out would have ended in `error`; count the errors
    of a run stopped so against its planned attempts.
    """
    candidate_low, candidate_high = _rate_bounds(candidate)
    baseline_low, baseline_high = _rate_bounds(baseline)
    low = rounded_delta(candidate_low, baseline_high)
    high = rounded_delta(candidate_high, baseline_low)
    bounds = (low, high)
    if pending_errors:
        return VerdictLook(False, f"{pending_errors} errors await another try", bounds)
    if not any(task.wants_more for task in (*candidate, *baseline)):
        return VerdictLook(True, "every task is decided", bounds)
    if not (low >= 0 or high < 0):
        return VerdictLook(False, f"delta may still end between {low:+.4f} and {high:+.4f}", bounds)
    if weak_baseline_matters and baseline_low < WEAK_BASELINE:
        return VerdictLook(False, f"the baseline may still end below {WEAK_BASELINE}", bounds)
    name: VerdictName = "pass" if low >= 0 else "fail"
    return VerdictLook(True, f"delta ends between {low:+.4f} and {high:+.4f} in any case", bounds, name)


def _rate_bounds(arm: Sequence[TaskProgress]) -> tuple[float, float]:
    """Lowest and highest pass rate that the arm can end with; 0 and 1 where nothing can be judged."""
    counted = [task for task in arm if task.judged or task.passed or task.remaining]
    if not counted:
        return 0.0, 1.0
    passed = sum(task.passed for task in counted)
    undecided = sum(task.wants_more for task in counted)
    return passed / len(counted), (passed + undecided) / len(counted)


def look_at_decision(
    plan: Sequence[PlannedLook],
    round_number: int,
    candidate_passes: Numbers,
    candidate_attempts: Numbers,
    baseline_passes: Numbers,
    baseline_attempts: Numbers,
    *,
    effect: float = EFFECT,
    margin: float = MARGIN,
) -> DecisionLook:
    """Stop after a round when the repeated interval leaves 0, or when that has become unlikely.

    The repeated interval is `delta_interval` at the look's own level (Jennison & Turnbull, JRSS B 51 (1989)
    305). Futile: even a true effect of `effect`, for better or worse, would end in `improved` or `worse` with
    a chance under 20 %.
    """
    if not 1 <= round_number <= len(plan):
        raise ValueError(f"round_number: {round_number} is not a round of a plan of {len(plan)}")
    if not 0 < effect <= 1:
        raise ValueError(f"effect: {effect} is not a difference of pass rates above 0 and up to 1")
    look = plan[round_number - 1]
    counts = paired_counts(candidate_passes, candidate_attempts, baseline_passes, baseline_attempts)
    interval = _repeated_interval(look, counts)
    found = decision(interval, margin)
    power = _conditional_power(plan, round_number, counts, effect)
    last = round_number == len(plan)
    if last or found.decision in ("improved", "worse"):
        stop, reason = True, found.reason
    elif power < FUTILE_BELOW:
        stop = True
        reason = f"an effect of {effect:g} would now be found with a chance of {power:.0%}; {found.reason}"
    else:
        stop, reason = False, f"round {round_number} of {len(plan)} leaves it open"
    label = found.decision if stop else None
    return DecisionLook(stop, reason, round_number, interval, look.spent_alpha, power, label)


def _repeated_interval(look: PlannedLook, counts: PairedCounts) -> Interval:
    if counts.tasks and look.level >= 1 - 2e-9:  # so early a look is not meant to stop anything
        return Interval(float(counts.differences.mean()), -1.0, 1.0, look.level)
    return delta_interval(
        counts.candidate_passes,
        counts.candidate_attempts,
        counts.baseline_passes,
        counts.baseline_attempts,
        min(look.level, 1 - 1e-12),
    )


def _conditional_power(
    plan: Sequence[PlannedLook], round_number: int, counts: PairedCounts, effect: float
) -> float:
    """Chance that the last look leaves 0 if the true effect is `effect` in the direction seen so far.

    Lan & Wittes, Biometrics 44 (1988) 579, on the B-value scale. More attempts shrink only the part of the
    variance that lies within tasks, so the data say how much of the information is in. NaN without tasks.
    """
    if counts.tasks == 0:
        return math.nan
    from scipy.special import ndtr, stdtrit

    error, final_error = _standard_errors(counts, len(plan) / round_number)
    share = min(1.0, (final_error / error) ** 2)
    bound = float(stdtrit(counts.tasks + 1, ndtr(plan[-1].bound)))
    so_far = abs(float(counts.differences.mean())) / error * math.sqrt(share)
    missing = so_far + effect / final_error * (1 - share) - bound
    if share > 1 - 1e-9:
        return 1.0 if missing > 0 else 0.0
    return float(ndtr(missing / math.sqrt(1 - share)))


def _standard_errors(counts: PairedCounts, growth: float) -> tuple[float, float]:
    """Standard error of the mean difference now, and with `growth` times the attempts on the same tasks."""
    per_task = 1 / counts.candidate_attempts + 1 / counts.baseline_attempts
    pseudo = math.sqrt(float(per_task.mean()) / 2)  # as in delta_interval: equal is not certain
    variance = float(np.append(counts.differences, [pseudo, -pseudo]).var(ddof=1))
    within = variance
    repeated = (counts.candidate_attempts > 1) & (counts.baseline_attempts > 1)
    if repeated.any():
        within = min(variance, _within_variance(counts, repeated))
    final = variance - within + within / growth
    tasks = counts.tasks + 2
    return math.sqrt(variance / tasks), math.sqrt(final / tasks)


def _within_variance(counts: PairedCounts, repeated: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Mean over tasks of the variance that chance within a task gives its difference."""
    total = 0.0
    for rates, attempts in (
        (counts.candidate_rates, counts.candidate_attempts),
        (counts.baseline_rates, counts.baseline_attempts),
    ):
        total += float((rates * (1 - rates) / (attempts - 1 + ~repeated))[repeated].mean())
    return total
