"""How each task ended, as the artifact and the trace list it: one entry per (task, model) of an arm."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from aggregate.frames import values
from aggregate.intervals import delta_interval
from aggregate.standard_json import Cleaned, cleaned_rows, rounded

_RANK = {"passed": 0, "failed": 1, "timeout": 1, "error": 2}
_UNIT = ["task", "model"]


def results(attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str, digits: int | None = None) -> Cleaned:
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
    return cleaned_rows(columns, digits)


def with_intervals(candidate: Cleaned, baseline: Cleaned, level: float) -> Cleaned:
    """The candidate's results, each with the interval of its difference; None unless both arms were judged."""
    others = {(result["task_id"], result["model"]): result for result in baseline}
    return Cleaned(
        {**result, "interval": _interval(result, others.get((result["task_id"], result["model"])), level)}
        for result in candidate
    )


def _interval(
    one: dict[str, Any], other: dict[str, Any] | None, level: float
) -> dict[str, float | None] | None:
    if other is None or not one["judged"] or not other["judged"]:
        return None
    low, high = _bounds(one["passes"], one["judged"], other["passes"], other["judged"], level)
    return {"low": low, "high": high}


@lru_cache(maxsize=4096)  # thousands of tasks share a few counts, and each interval is an integral
def _bounds(
    passes: int, judged: int, baseline_passes: int, baseline_judged: int, level: float
) -> tuple[float | None, float | None]:
    interval = delta_interval([passes], [judged], [baseline_passes], [baseline_judged], level)
    return rounded(interval.low), rounded(interval.high)


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
