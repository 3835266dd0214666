"""How each task ended in an arm, and every metric of every arm: overall, by model, by tier and by judge type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from aggregate.artifact import comparison
from aggregate.artifact.model import CandidateResult, TaskBounds, TaskResult
from aggregate.formulas.intervals import fixed_suite_interval
from aggregate.records import metrics
from aggregate.records.frames import values
from aggregate.records.run_info import BASELINE
from aggregate.text.formats import Cleaned, cleaned_rows, rounded

_RANK = {"passed": 0, "failed": 1, "timeout": 1, "error": 2}
_UNIT = ["task", "model"]
_FIELDS = [field.name for field in fields(TaskResult)]


def results(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str, digits: int | None = None
) -> Cleaned[TaskResult]:
    """Each task of the arm with its pass, mean score, details and time, details from its telling attempt.

    The telling attempt is the first that passed, else the first that was judged, else the first.
    """
    mine = tasks[tasks["arm"] == arm]
    telling, errors = _telling(attempts[attempts["arm"] == arm], mine)
    passed = [None if np.isnan(value) else bool(value) for value in mine["passed"].tolist()]
    columns = {
        "task_id": values(mine["task"]),
        "model": values(mine["model"]),
        "tier": values(mine["tier"]),
        "judge": values(mine["judge"]),
        "passed": passed,
        "score": mine["score"].tolist(),
        "outcome": values(telling["outcome"]),
        "details": values(telling["details"]),
        "duration_ms": mine["duration_ms"].tolist(),
        "error": values(errors),
        "attempts": mine["n"].tolist(),
        "judged": mine["n_judged"].tolist(),
        "passes": mine["passes"].tolist(),
        "errors": mine["n_errors"].tolist(),
        "accuracy_std_dev": mine["accuracy_std_dev"].tolist(),
        "accuracy_range": mine["accuracy_range"].tolist(),
        "cost_usd": mine["cost_usd"].tolist(),
    }
    return cleaned_rows(TaskResult, columns, digits)


def with_intervals(
    candidate: Iterable[TaskResult], baseline: Iterable[TaskResult], level: float
) -> Cleaned[CandidateResult]:
    """The candidate's results, each with the interval of its difference; None unless both arms were judged."""
    others = {(result.task_id, result.model): result for result in baseline}
    return Cleaned(
        CandidateResult(
            **{name: getattr(result, name) for name in _FIELDS},
            interval=_interval(result, others.get((result.task_id, result.model)), level),
        )
        for result in candidate
    )


def _interval(one: TaskResult, other: TaskResult | None, level: float) -> TaskBounds | None:
    if other is None or not one.judged or not other.judged:
        return None
    return _bounds(one.passes, one.judged, other.passes, other.judged, level)


@lru_cache(maxsize=4096)  # thousands of tasks share a few counts, and each interval is an integral
def _bounds(passes: int, judged: int, baseline_passes: int, baseline_judged: int, level: float) -> TaskBounds:
    interval = fixed_suite_interval([passes], [judged], [baseline_passes], [baseline_judged], level)
    return TaskBounds(rounded(interval.low), rounded(interval.high))


def _telling(attempts: pd.DataFrame, tasks: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """The telling attempt of each task, and its first error, in the order of the tasks."""
    units = pd.MultiIndex.from_frame(tasks[_UNIT])
    run = attempts.loc[attempts["outcome"] != "skipped", [*_UNIT, "outcome", "details", "error"]]
    ranked = run.assign(rank=run["outcome"].map(_RANK)).sort_values("rank", kind="stable")
    telling = ranked.drop_duplicates(_UNIT).set_index(_UNIT)
    erred = run[run["error"].notna()].drop_duplicates(_UNIT).set_index(_UNIT)
    return telling.reindex(units), erred["error"].reindex(units)


def common_errors(attempts: pd.DataFrame, arm: str, most: int = 3) -> list[dict[str, Any]]:
    """The most frequent messages of an arm's `error` attempts, with their counts."""
    failed = attempts[(attempts["arm"] == arm) & (attempts["outcome"] == "error")]
    counts = failed["error"].fillna("no message").value_counts()
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    return [{"message": str(message), "count": int(count)} for message, count in ordered[:most]]


Metrics = dict[str, Any]
GROUPINGS = {"by_model": "model", "by_tier": "tier", "by_judge": "judge"}
MOST_GROUPS = 200


def overall(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arms: Iterable[str], pass_k: int
) -> dict[str, Metrics]:
    """The metrics of each arm that has attempts, with pass@k and pass^k for every k."""
    run = _numbers(attempts)[attempts["outcome"] != "skipped"]
    found: dict[str, Metrics] = {}
    for arm in arms:
        mine = metrics.Group(run[run["arm"] == arm], tasks[tasks["arm"] == arm])
        if len(mine.attempts):
            measured = metrics.named(metrics.measure(mine))
            curves = metrics.pass_curves(mine.tasks, pass_k)
            found[arm] = {**measured, **curves}
    return found


def by(
    column: str,
    attempts: pd.DataFrame,
    tasks: pd.DataFrame,
    arms: Iterable[str],
    pass_k: int,
) -> dict[str, dict[str, Metrics]]:
    """The same for each value of a column; tasks that name none (no tier) are left out."""
    wanted = list(arms)
    parts = dict(list(_numbers(attempts, column).groupby(column, sort=True)))
    return {
        str(name): overall(parts[name], part, wanted, pass_k)
        for name, part in tasks.groupby(column, sort=True)
    }


def _numbers(attempts: pd.DataFrame, *more: str) -> pd.DataFrame:
    """The columns that metrics are made of; taking texts along would double the time that grouping takes."""
    numbers = attempts.select_dtypes(["number", "bool"]).columns
    return attempts[["arm", "outcome", *more, *numbers]]


def compared(column: str, paired: pd.DataFrame, *, level: float, effect: float) -> dict[str, dict[str, Any]]:
    """Candidate against baseline for each value of a column, paired within it."""
    return {
        str(name): comparison.block(comparison.compare_units(part, level=level, effect=effect))
        for name, part in paired.groupby(column, sort=True)
    }


def too_many(tasks: pd.DataFrame) -> dict[str, str]:
    """Groupings with more groups than anyone reads, which are left out, and the warning that says so."""
    sizes = {name: tasks[column].nunique() for name, column in GROUPINGS.items()}
    return {
        name: f"{name} is left out: {size} groups are more than {MOST_GROUPS}"
        for name, size in sizes.items()
        if size > MOST_GROUPS
    }


def only_one(column: str, attempts: pd.DataFrame, tasks: pd.DataFrame) -> str | None:
    """The group that everything is in, so that its numbers are those of the whole; None where there are several."""
    found = attempts[column].unique()
    whole = len(found) == 1 and isinstance(found[0], str) and len(tasks) > 0
    return found[0] if whole else None


def arms_of(candidate: str, attempts: pd.DataFrame) -> list[str]:
    """The arms of one candidate's artifact: itself, the baseline and, where it ran, the oracle."""
    return [candidate, BASELINE, *(["oracle"] if (attempts["arm"] == "oracle").any() else [])]
