"""The metrics of a group of attempts: one row per metric, from which frames, exports and tables are made.

To add a metric: its column in `rows` (per attempt) or `frames` (per task), where it needs one, and its row in METRICS.
Nothing else lists metrics: what a run cost and what two runs are compared by are marked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from aggregate.formulas.consistency import compute_consistency
from aggregate.formulas.rates import compute_cop, pass_at_k, pass_hat_k

MOST_K = 100  # merged runs can have thousands of attempts of one task
Shown = Literal["count", "rate", "usd", "number", "milliseconds"]


@dataclass(frozen=True)
class Group:
    """The attempts that were run in one arm, and the same attempts summed up per (task, model)."""

    attempts: pd.DataFrame
    tasks: pd.DataFrame


@dataclass(frozen=True)
class Metric:
    """One number of a group.

    `cost` metrics are also in the artifact's `cost`; `compared` is the column of the tasks by whose means two runs
    are compared.
    """

    name: str
    compute: Callable[[Group], float]
    shown: Shown
    cost: bool = False
    compared: str | None = None


def _known(how: Callable[[np.ndarray], float]) -> Callable[[pd.Series[float]], float]:
    """The same over those values that are known; NaN where none is."""

    def over_known(values: pd.Series[float]) -> float:
        known = values.dropna().to_numpy()
        return float(how(known)) if len(known) else float("nan")

    return over_known


_mean, _sum = _known(np.mean), _known(np.sum)


def _std(values: pd.Series[float]) -> float:
    """Sample standard deviation; NaN under two values, exactly 0 when all are equal."""
    known = values.dropna()
    if len(known) < 2:
        return float("nan")
    with np.errstate(over="ignore"):
        return 0.0 if known.min() == known.max() else float(known.std(ddof=1))


def _count(column: str) -> Callable[[Group], float]:
    return lambda group: float(group.tasks[column].sum())


def _rate(column: str) -> Callable[[Group], float]:
    return lambda group: _mean(group.tasks[column])


def _over(column: str, how: Callable[[pd.Series[float]], float]) -> Callable[[Group], float]:
    return lambda group: float(how(group.attempts[column]))


def _cost_per_task(group: Group) -> float:
    """Mean over tasks; one with an answer of unknown price has no known cost, while an error's is nothing."""
    tasks = group.tasks
    return _mean(tasks["cost_usd"].where(tasks["n_unpriced"] == 0))


def _describe(column: str, compared: str | None = None) -> tuple[Metric, ...]:
    """Mean, median, sample standard deviation, smallest and largest over attempts; NaN without any."""
    return (
        Metric(f"mean_{column}", _over(column, _mean), "number", compared=compared),
        Metric(f"median_{column}", _over(column, _known(np.median)), "number"),
        Metric(f"std_{column}", _over(column, _std), "number"),
        Metric(f"min_{column}", _over(column, _known(np.min)), "number"),
        Metric(f"max_{column}", _over(column, _known(np.max)), "number"),
    )


def _cop(group: Group) -> float:
    return compute_cop(_mean(group.attempts["cost_usd"]), _mean(group.tasks["pass_rate"]))


def _consistency(group: Group) -> float:
    return compute_consistency(_mean(group.attempts["score"]), _std(group.attempts["score"]))


METRICS: tuple[Metric, ...] = (
    Metric("n", _count("n"), "count", cost=True),
    Metric("n_judged", _count("n_judged"), "count"),
    Metric("n_scored", _count("n_scored"), "count"),
    Metric("n_errors", _count("n_errors"), "count"),
    Metric("n_timeouts", _count("n_timeouts"), "count"),
    Metric("n_tasks", lambda group: float(len(group.tasks)), "count"),
    Metric("n_tasks_judged", lambda group: float(group.tasks["passed"].count()), "count"),
    Metric("pass_rate", _rate("passed"), "rate"),
    Metric("first_attempt_rate", _rate("first_passed"), "rate"),
    Metric("attempt_pass_rate", _rate("pass_rate"), "rate", compared="pass_rate"),
    Metric("program_pass_rate", _rate("program_pass_rate"), "rate"),
    *_describe("score", compared="score"),
    *_describe("impl_rate"),
    Metric("cop", _cop, "usd", cost=True),
    Metric("consistency", _consistency, "number"),
    Metric("mean_cost_per_attempt", _over("cost_usd", _mean), "usd", cost=True),
    Metric("mean_cost_per_task", _cost_per_task, "usd", cost=True),
    Metric("total_cost", lambda group: _sum(group.tasks["cost_usd"]), "usd", cost=True),
    Metric("n_cost_known", _count("n_cost_known"), "count", cost=True),
    Metric("judge_cost", _over("judge_cost_usd", _sum), "usd", cost=True),
    Metric("mean_trajectory_length", _over("turns", _mean), "number", cost=True),
    Metric("input_tokens", _over("input_tokens", _sum), "count", cost=True),
    Metric("output_tokens", _over("output_tokens", _sum), "count", cost=True),
    Metric("cache_read_tokens", _over("cache_read_tokens", _sum), "count", cost=True),
    Metric("cache_write_tokens", _over("cache_write_tokens", _sum), "count", cost=True),
    Metric("mean_model_ms", _over("model_ms", _mean), "milliseconds"),
)
COSTS: tuple[str, ...] = (*(metric.name for metric in METRICS if metric.cost), "no_pass")
COMPARED: dict[str, str] = {metric.name: metric.compared for metric in METRICS if metric.compared}
_COUNTS = frozenset(metric.name for metric in METRICS if metric.shown == "count")


def measure(group: Group) -> dict[str, float | int | bool]:
    """Every metric of one group: counts as integers, `no_pass` where a pass costs infinitely much, NaN for unknown."""
    values = {metric.name: float(metric.compute(group)) for metric in METRICS}
    counts = {name: int(values[name]) for name in _COUNTS if np.isfinite(values[name])}
    return {**values, **counts, "no_pass": bool(np.isposinf(values["cop"]))}


def pass_curves(tasks: pd.DataFrame, pass_k: int) -> dict[str, dict[str, float]]:
    """Mean pass@k and pass^k over tasks for k = 1 … pass_k, at most 100; NaN where no task has k judged attempts."""
    counts = Counter(zip(tasks["n_judged"].tolist(), tasks["passes"].tolist(), strict=True))
    curves: dict[str, dict[str, float]] = {"pass_at": {}, "pass_hat": {}}
    for k in range(1, min(pass_k, MOST_K) + 1):
        for name, chance in (("pass_at", pass_at_k), ("pass_hat", pass_hat_k)):
            known = [(chance(n, c, k), tasks) for (n, c), tasks in sorted(counts.items()) if n >= k]
            whole = sum(share * tasks for share, tasks in known)
            curves[name][str(k)] = whole / sum(tasks for _, tasks in known) if known else np.nan
    return curves
