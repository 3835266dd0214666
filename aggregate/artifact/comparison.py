"""Compare two arms task by task: three differences, how sure they are, and which tasks changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from aggregate.artifact.model import TaskChange
from aggregate.formulas.intervals import (
    Floats,
    Interval,
    differences_interval,
    fixed_suite_interval,
    share_at_most_zero,
    suite_share_at_most_zero,
    two_sided,
)
from aggregate.formulas.power import attempts_needed, min_detectable_effect, tasks_needed
from aggregate.formulas.rates import normalized_gain, rounded_delta
from aggregate.formulas.significance import fisher_by_task, mcnemar_exact, sign_flip_test
from aggregate.records import frames
from aggregate.records.run_info import BASELINE, CANDIDATE
from aggregate.text.formats import Cleaned, cleaned_rows

UNIT = ["task", "model"]
_PAIRED = [
    *("passed", "passes", "n_judged", "pass_rate", "score", "impl_rate"),
    *("cost_usd", "n_cost_known", "n_unpriced"),
]
ADVISED_ATTEMPTS = 5
P_VALUES = (
    *("p_value", "p_value_greater", "suite_p_value"),
    *("sign_flip_p_value", "sign_flip_p_value_greater", "mcnemar_p_value"),
)


@dataclass(frozen=True)
class Comparison:
    """What two arms show. NaN is unknown; needed numbers are None where no affordable number would do.

    `n_pairs` counts tasks judged in both arms, `n_cells` their pairs of task and model, and `n_dropped` pairs of task
    and model that were not judged in both.
    """

    n_pairs: int
    n_cells: int
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
    suite_p_value: float
    sign_flip_p_value: float
    sign_flip_p_value_greater: float
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
    differences = task_differences(both)
    suite_like = _settled(differences_interval(differences, level))
    candidate_rate = _rounded(paired["candidate_passed"].mean())
    baseline_rate = _rounded(paired["baseline_passed"].mean())
    flips = sign_flip_test(differences)
    at_most_zero = share_at_most_zero(differences)
    one_model = len(both) == len(differences)  # several models of a task are no independent pairs of bits
    won = int(((both["candidate_passed"] > 0) & (both["baseline_passed"] == 0)).sum())
    lost = int(((both["candidate_passed"] == 0) & (both["baseline_passed"] > 0)).sum())
    return Comparison(
        n_pairs=len(differences),
        n_cells=len(both),
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
        p_value=two_sided(at_most_zero),
        p_value_greater=at_most_zero,
        suite_p_value=two_sided(suite_share_at_most_zero(*passes)),
        sign_flip_p_value=flips.two_sided,
        sign_flip_p_value_greater=flips.greater,
        mcnemar_p_value=mcnemar_exact(lost, won) if len(both) and one_model else math.nan,
        only_candidate=won,
        only_baseline=lost,
        **_power(both, level, effect),
    )


def task_differences(both: pd.DataFrame) -> Floats:
    """One difference of pass rates per task, the mean over its models; models of a task share their luck."""
    differences = both["candidate_pass_rate"] - both["baseline_pass_rate"]
    return differences.groupby(both["task"], sort=True).mean().to_numpy(dtype=float)


def could_miss(both: pd.DataFrame, interval: Interval, more_attempts: int) -> dict[str, float]:
    """How large a loss on exactly these tasks the interval leaves open, and what more attempts a task would leave."""
    passes, judged, other_passes, other_judged = counts(both)
    longer = [1 + more_attempts / attempts for attempts in (judged, other_judged)]
    then = fixed_suite_interval(
        *(passes * longer[0], judged * longer[0], other_passes * longer[1], other_judged * longer[1]),
        level=interval.level,
    )
    loss, loss_then = (max(0.0, -one.low) for one in (interval, then))
    return {"loss": loss, "more_attempts": more_attempts, "loss_then": loss_then}


def counts(both: pd.DataFrame) -> tuple[Any, Any, Any, Any]:
    columns = ("candidate_passes", "candidate_n_judged", "baseline_passes", "baseline_n_judged")
    first, second, third, fourth = (both[column].to_numpy(dtype=float) for column in columns)
    return first, second, third, fourth


def _power(both: pd.DataFrame, level: float, effect: float) -> dict[str, Any]:
    """What this many tasks and attempts can show, and what it would take to see `effect`."""
    differences = task_differences(both)
    n = len(differences)
    if n == 0:
        unknown = {"min_detectable_effect": math.nan, "attempts_needed": None, "tasks_needed": None}
        return {**unknown, "effect": effect}
    rate = float((both["candidate_pass_rate"].mean() + both["baseline_pass_rate"].mean()) / 2)
    by_task = (1 / both["candidate_n_judged"] + 1 / both["baseline_n_judged"]).groupby(both["task"])
    # Chance moves a task's difference, the mean over its models, as it would with this many attempts of one.
    attempts = 2 / float((by_task.mean() / by_task.size()).mean())
    models = len(both) / n
    # What differences vary beyond the coin flips inside a task is how much the effect itself varies.
    variance = float(np.var(differences, ddof=1)) if n > 1 else 0.0
    task_sd = math.sqrt(max(0.0, variance - 2 * rate * (1 - rate) / attempts))
    needed = attempts_needed(effect, n, rate, task_sd, level)
    return {
        "min_detectable_effect": min_detectable_effect(n, attempts, rate, task_sd, level),
        "effect": effect,
        "attempts_needed": None if needed is None else math.ceil(needed / models),
        "tasks_needed": tasks_needed(effect, round(ADVISED_ATTEMPTS * models), rate, task_sd, level),
    }


def changes(paired: pd.DataFrame, digits: int | None = None) -> Cleaned[TaskChange]:
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
    return cleaned_rows(TaskChange, columns, digits)


def block(compared: Comparison) -> dict[str, Any]:
    """A comparison as JSON: three differences, both intervals, p-values, n."""
    return {
        "n_pairs": compared.n_pairs,
        "n_cells": compared.n_cells,
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
        "suite_p_value": compared.suite_p_value,
        "sign_flip_p_value": compared.sign_flip_p_value,
        "sign_flip_p_value_greater": compared.sign_flip_p_value_greater,
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
