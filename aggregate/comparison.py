"""Compare two arms task by task: three differences, how sure they are, and which tasks changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from aggregate import frames
from aggregate.run_info import BASELINE, CANDIDATE
from aggregate.standard_json import Cleaned, cleaned_rows
from aggregate.stats import (
    Interval,
    attempts_needed,
    delta_interval,
    fisher_by_task,
    fixed_suite_interval,
    mcnemar_exact,
    min_detectable_effect,
    normalized_gain,
    rounded_delta,
    sign_flip_test,
    tasks_needed,
)

UNIT = ["task", "model"]
_PAIRED = [
    *("passed", "passes", "n_judged", "pass_rate", "score", "impl_rate"),
    *("cost_usd", "n_cost_known", "n_unpriced"),
]
ADVISED_ATTEMPTS = 5
_BIASED = frozenset(
    {
        "attempt_delta",
        "score_delta",
        "impl_rate_delta",
        "normalized_gain",
        "interval",
        "p_value",
        "p_value_greater",
        "mcnemar_p_value",
        "min_detectable_effect",
        "needed",
    }
)


@dataclass(frozen=True)
class Comparison:
    """What two arms show. NaN is unknown; needed numbers are None where no affordable number would do."""

    n_pairs: int
    n_dropped: int
    candidate_rate: float
    baseline_rate: float
    delta: float
    attempt_delta: float
    score_delta: float
    impl_rate_delta: float
    normalized_gain: float
    tasks_like_these: Interval
    exactly_this_suite: Interval
    p_value: float
    p_value_greater: float
    mcnemar_p_value: float
    only_candidate: int
    only_baseline: int
    min_detectable_effect: float
    effect: float
    attempts_needed: int | None
    tasks_needed: int | None


def units(tasks: pd.DataFrame, candidate: str, baseline: str = BASELINE) -> pd.DataFrame:
    """One row per (task, model), with `candidate_…` and `baseline_…` columns; NaN where an arm is absent."""
    sides = []
    for arm, name in ((candidate, CANDIDATE), (baseline, BASELINE)):
        side = tasks[tasks["arm"] == arm].set_index(UNIT)
        sides.append(side[_PAIRED].add_prefix(f"{name}_").assign(**{f"{name}_there": 1.0}))
    labels = (
        tasks[tasks["arm"].isin([candidate, baseline])].groupby(UNIT, sort=True)[["tier", "judge"]].first()
    )
    return labels.join(sides[0], how="left").join(sides[1], how="left").reset_index()


def in_both(paired: pd.DataFrame) -> pd.DataFrame:
    """The units that were judged in both arms."""
    return paired[(paired["candidate_n_judged"] > 0) & (paired["baseline_n_judged"] > 0)]


def compare_units(paired: pd.DataFrame, *, level: float = 0.95, effect: float = 0.10) -> Comparison:
    """Every difference between the arms of `units`; the pass rates cover all that each arm was judged on."""
    both = in_both(paired)
    passes = counts(both)
    suite_like = _settled(delta_interval(*passes, level=level))
    candidate_rate = _rounded(paired["candidate_passed"].mean())
    baseline_rate = _rounded(paired["baseline_passed"].mean())
    flips = sign_flip_test((both["candidate_pass_rate"] - both["baseline_pass_rate"]).to_numpy())
    won = int(((both["candidate_passed"] > 0) & (both["baseline_passed"] == 0)).sum())
    lost = int(((both["candidate_passed"] == 0) & (both["baseline_passed"] > 0)).sum())
    return Comparison(
        n_pairs=len(both),
        n_dropped=len(paired) - len(both),
        candidate_rate=candidate_rate,
        baseline_rate=baseline_rate,
        delta=rounded_delta(candidate_rate, baseline_rate) if len(both) else math.nan,
        attempt_delta=suite_like.estimate,
        score_delta=_difference(both, "score"),
        impl_rate_delta=_difference(both, "impl_rate"),
        normalized_gain=normalized_gain(
            both["candidate_pass_rate"].mean(), both["baseline_pass_rate"].mean()
        ),
        tasks_like_these=suite_like,
        exactly_this_suite=_settled(fixed_suite_interval(*passes, level=level)),
        p_value=flips.two_sided,
        p_value_greater=flips.greater,
        mcnemar_p_value=mcnemar_exact(lost, won) if len(both) else math.nan,
        only_candidate=won,
        only_baseline=lost,
        **_power(both, level, effect),
    )


def counts(both: pd.DataFrame) -> tuple[Any, Any, Any, Any]:
    columns = ("candidate_passes", "candidate_n_judged", "baseline_passes", "baseline_n_judged")
    first, second, third, fourth = (both[column].to_numpy(dtype=float) for column in columns)
    return first, second, third, fourth


def _power(both: pd.DataFrame, level: float, effect: float) -> dict[str, Any]:
    """What this many tasks and attempts can show, and what it would take to see `effect`."""
    n = len(both)
    if n == 0:
        unknown = {"min_detectable_effect": math.nan, "attempts_needed": None, "tasks_needed": None}
        return {**unknown, "effect": effect}
    candidate, baseline = both["candidate_pass_rate"], both["baseline_pass_rate"]
    rate = float((candidate.mean() + baseline.mean()) / 2)
    per_task = 1 / both["candidate_n_judged"] + 1 / both["baseline_n_judged"]
    attempts = 2 / float(per_task.mean())
    # What differences vary beyond the coin flips inside a task is how much the effect itself varies.
    variance = float((candidate - baseline).var(ddof=1)) if n > 1 else 0.0
    task_sd = math.sqrt(max(0.0, variance - 2 * rate * (1 - rate) / attempts))
    return {
        "min_detectable_effect": min_detectable_effect(n, attempts, rate, task_sd, level),
        "effect": effect,
        "attempts_needed": attempts_needed(effect, n, rate, task_sd, level),
        "tasks_needed": tasks_needed(effect, ADVISED_ATTEMPTS, rate, task_sd, level),
    }


def changes(paired: pd.DataFrame, digits: int | None = None) -> Cleaned:
    """The tasks whose pass rate differs, largest change first, with Fisher's p and its correction."""
    both = in_both(paired)
    tested = fisher_by_task(*counts(both))
    moved = both.assign(
        difference=both["candidate_pass_rate"] - both["baseline_pass_rate"],
        p_value=tested.p_values,
        adjusted_p_value=tested.adjusted,
    )
    moved = moved[moved["difference"] != 0]
    moved = moved.assign(size=-moved["difference"].abs()).sort_values(["size", *UNIT], kind="stable")
    columns = {
        "task_id": frames.values(moved["task"]),
        "model": frames.values(moved["model"]),
        "change": ["better" if difference > 0 else "worse" for difference in moved["difference"].tolist()],
        "baseline_pass_rate": moved["baseline_pass_rate"].tolist(),
        "candidate_pass_rate": moved["candidate_pass_rate"].tolist(),
        "difference": moved["difference"].tolist(),
        "p_value": moved["p_value"].tolist(),
        "adjusted_p_value": moved["adjusted_p_value"].tolist(),
    }
    return cleaned_rows(columns, digits)


def block(compared: Comparison, *, curtailed: bool = False) -> dict[str, Any]:
    """A comparison as JSON: three differences, both intervals, p-values, n.

    `curtailed`: attempts were left out because tasks were decided, so only `delta` can be told without bias.
    """
    told = {
        "n_pairs": compared.n_pairs,
        "n_dropped": compared.n_dropped,
        "execution_pass_rate": compared.candidate_rate,
        "baseline_pass_rate": compared.baseline_rate,
        "delta": compared.delta,
        "attempt_delta": compared.attempt_delta,
        "score_delta": compared.score_delta,
        "impl_rate_delta": compared.impl_rate_delta,
        "normalized_gain": compared.normalized_gain,
        "interval": intervals(compared),
        "p_value": compared.p_value,
        "p_value_greater": compared.p_value_greater,
        "mcnemar_p_value": compared.mcnemar_p_value,
        "only_candidate_passed": compared.only_candidate,
        "only_baseline_passed": compared.only_baseline,
        "min_detectable_effect": compared.min_detectable_effect,
        "needed": {
            "effect": compared.effect,
            "n_pairs": compared.n_pairs,
            "attempts": compared.attempts_needed,
            "tasks": compared.tasks_needed,
            "tasks_at_attempts": ADVISED_ATTEMPTS,
        },
    }
    return {name: None if curtailed and name in _BIASED else value for name, value in told.items()}


def intervals(compared: Comparison) -> dict[str, Any]:
    """Both intervals of `attempt_delta`, each under the question it answers."""
    return {
        "of": "attempt_delta",
        "level": compared.tasks_like_these.level,
        "n": compared.n_pairs,
        "tasks_like_these": bounds(compared.tasks_like_these),
        "exactly_this_suite": bounds(compared.exactly_this_suite),
    }


def bounds(interval: Interval) -> dict[str, float]:
    """An interval as JSON."""
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}


def _difference(both: pd.DataFrame, column: str) -> float:
    known = (both[f"candidate_{column}"] - both[f"baseline_{column}"]).dropna()
    return float(known.mean()) if len(known) else math.nan


def _settled(interval: Interval) -> Interval:
    """Thirds that cancel out leave a difference of 1e-17, which is none."""
    return replace(interval, estimate=round(interval.estimate, 12) + 0.0)


def _rounded(rate: float) -> float:
    return round(float(rate), 4) if np.isfinite(rate) else math.nan
