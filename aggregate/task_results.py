"""How each task ended, as the artifact and the trace list it: one entry per (task, model) of an arm."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from aggregate.frames import named_rows, values
from aggregate.intervals import delta_interval
from aggregate.standard_json import rounded

_RANK = {"passed": 0, "failed": 1, "timeout": 1, "error": 2}


def results(attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    """Each task of the arm with its pass, mean score, details and time, details from its telling attempt.

    The telling attempt is the first that passed, else the first that was judged, else the first.
    """
    telling, errors = _telling(attempts[attempts["arm"] == arm])
    mine = tasks[tasks["arm"] == arm]
    return [
        {
            "task_id": row.task,
            "model": row.model,
            "tier": _text(row.tier),
            "judge": _text(row.judge),
            "passed": None if np.isnan(row.passed) else bool(row.passed),
            "score": row.score,
            "outcome": telling[row.task, row.model][-2],
            "details": _text(telling[row.task, row.model][-1]),
            "duration_ms": row.duration_ms,
            "error": _text(errors.get((row.task, row.model))),
            "attempts": int(row.n),
            "judged": int(row.n_judged),
            "passes": int(row.passes),
            "errors": int(row.n_errors),
            "accuracy_std_dev": row.accuracy_std_dev,
            "accuracy_range": row.accuracy_range,
            "cost_usd": row.cost_usd,
        }
        for row in named_rows(mine)
    ]


def with_intervals(
    candidate: list[dict[str, Any]], baseline: list[dict[str, Any]], level: float
) -> list[dict[str, Any]]:
    """The candidate's results, each with the interval of its difference; None unless both arms were judged."""
    others = {(result["task_id"], result["model"]): result for result in baseline}
    return [
        {**result, "interval": _interval(result, others.get((result["task_id"], result["model"])), level)}
        for result in candidate
    ]


def _interval(
    one: dict[str, Any], other: dict[str, Any] | None, level: float
) -> dict[str, float | None] | None:
    if other is None or not one["judged"] or not other["judged"]:
        return None
    low, high = _bounds(one["passes"], one["judged"], other["passes"], other["judged"], level)
    return {"low": rounded(low), "high": rounded(high)}


@lru_cache(maxsize=4096)  # thousands of tasks share a few counts, and each interval is an integral
def _bounds(
    passes: int, judged: int, baseline_passes: int, baseline_judged: int, level: float
) -> tuple[float, float]:
    interval = delta_interval([passes], [judged], [baseline_passes], [baseline_judged], level)
    return interval.low, interval.high


def _telling(run: pd.DataFrame) -> tuple[dict[tuple[str, str], tuple[Any, ...]], dict[tuple[str, str], Any]]:
    """The telling attempt of each (task, model), as (…, outcome, details), and its first error."""
    telling: dict[tuple[str, str], tuple[Any, ...]] = {}
    errors: dict[tuple[str, str], Any] = {}
    columns = (values(run[name]) for name in ("task", "model", "outcome", "details", "error"))
    for task, model, outcome, details, error in zip(*columns, strict=True):
        if outcome == "skipped":
            continue
        unit = (task, model)
        known = telling.get(unit)
        if known is None or _RANK[outcome] < known[0]:
            telling[unit] = (_RANK[outcome], outcome, details)
        if isinstance(error, str):
            errors.setdefault(unit, error)
    return telling, errors


def common_errors(attempts: pd.DataFrame, arm: str, most: int = 3) -> list[dict[str, Any]]:
    """The most frequent messages of an arm's `error` attempts, with their counts."""
    failed = attempts[(attempts["arm"] == arm) & (attempts["outcome"] == "error")]
    counts = failed["error"].fillna("no message").value_counts()
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    return [{"message": str(message), "count": int(count)} for message, count in ordered[:most]]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
