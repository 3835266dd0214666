"""How each task ended, as the artifact and the trace list it: one entry per (task, model) of an arm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from aggregate.frames import named_rows

_ORDER = {"passed": 0, "failed": 1, "timeout": 2, "error": 3}


def results(attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    """Each task of the arm with its pass, mean score, details and time, details from its telling attempt.

    The telling attempt is the first that passed, else the first that was judged, else the first.
    """
    run = attempts[(attempts["arm"] == arm) & (attempts["outcome"] != "skipped")]
    telling = (
        run.assign(order=run["outcome"].map(_ORDER).clip(upper=3).replace(2, 1))
        .sort_values(["task", "model", "order", "attempt", "run_id"], kind="stable")
        .drop_duplicates(["task", "model"])
        .set_index(["task", "model"])
    )
    failures = (
        run[run["error"].notna()].drop_duplicates(["task", "model"]).set_index(["task", "model"])["error"]
    )
    mine = tasks[tasks["arm"] == arm]
    details = telling["details"].to_dict()
    outcomes = telling["outcome"].to_dict()
    errors = failures.to_dict()
    return [
        {
            "task_id": row.task,
            "model": row.model,
            "tier": _text(row.tier),
            "judge": _text(row.judge),
            "passed": None if np.isnan(row.passed) else bool(row.passed),
            "score": row.score,
            "outcome": outcomes[row.task, row.model],
            "details": _text(details[row.task, row.model]),
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


def common_errors(attempts: pd.DataFrame, arm: str, most: int = 3) -> list[dict[str, Any]]:
    """The most frequent messages of an arm's `error` attempts, with their counts."""
    failed = attempts[(attempts["arm"] == arm) & (attempts["outcome"] == "error")]
    counts = failed["error"].fillna("no message").value_counts()
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    return [{"message": str(message), "count": int(count)} for message, count in ordered[:most]]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
