"""Every metric of every arm: overall, by model, by tier and by judge type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from aggregate import comparison, metrics
from aggregate.run_info import BASELINE

Metrics = dict[str, Any]
GROUPINGS = {"by_model": "model", "by_tier": "tier", "by_judge": "judge"}
MOST_GROUPS = 200


def overall(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arms: Iterable[str], pass_k: int, *, curtailed: bool = False
) -> dict[str, Metrics]:
    """The metrics of each arm that has attempts, with pass@k and pass^k for every k."""
    run = _numbers(attempts)[attempts["outcome"] != "skipped"]
    found: dict[str, Metrics] = {}
    for arm in arms:
        mine = metrics.Group(run[run["arm"] == arm], tasks[tasks["arm"] == arm])
        if len(mine.attempts):
            measured = metrics.named(metrics.measure(mine, curtailed=curtailed))
            curves = metrics.pass_curves(mine.tasks, pass_k, curtailed=curtailed)
            found[arm] = {**measured, **curves}
    return found


def by(
    column: str,
    attempts: pd.DataFrame,
    tasks: pd.DataFrame,
    arms: Iterable[str],
    pass_k: int,
    *,
    curtailed: bool = False,
) -> dict[str, dict[str, Metrics]]:
    """The same for each value of a column; tasks that name none (no tier) are left out."""
    wanted = list(arms)
    parts = dict(list(_numbers(attempts, column).groupby(column, sort=True)))
    return {
        str(name): overall(parts[name], part, wanted, pass_k, curtailed=curtailed)
        for name, part in tasks.groupby(column, sort=True)
    }


def _numbers(attempts: pd.DataFrame, *more: str) -> pd.DataFrame:
    """The columns that metrics are made of; taking texts along would double the time that grouping takes."""
    numbers = attempts.select_dtypes(["number", "bool"]).columns
    return attempts[["arm", "outcome", *more, *numbers]]


def compared(
    column: str, paired: pd.DataFrame, *, level: float, effect: float, curtailed: bool = False
) -> dict[str, dict[str, Any]]:
    """Candidate against baseline for each value of a column, paired within it."""
    return {
        str(name): comparison.block(
            comparison.compare_units(part, level=level, effect=effect), curtailed=curtailed
        )
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
