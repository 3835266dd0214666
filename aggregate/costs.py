"""What a run cost, what a pass costs in each arm, and what the candidate's difference costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from aggregate.run_info import BASELINE, CANDIDATE, RunInfo
from aggregate.stats import (
    compute_frontier_cop,
    cost_per_extra_pass,
    dominates,
)

_PER_ARM = (
    "n",
    "n_cost_known",
    "total_cost",
    "mean_cost_per_task",
    "mean_cost_per_attempt",
    "cop",
    "no_pass",
    "judge_cost",
    "mean_trajectory_length",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
)


def block(
    info: RunInfo,
    attempts: pd.DataFrame,
    arms: Mapping[str, Mapping[str, Any]],
    gain: Mapping[str, Any],
) -> dict[str, Any]:
    """SPEC 6.5: cost per arm and model, cost of a pass and its frontier, and the price of an extra pass.

    `total_cost` adds up what is known; `n_cost_known` of `n` says how much that is. Cached attempts keep
    their cost here and count nothing towards `spent_usd`. `gain` is what `extra` found.
    """
    known = attempts.dropna(subset=["cost_usd"])
    by_model = known.groupby("model", sort=True)["cost_usd"].sum()
    return {
        "by_arm": {name: {key: values[key] for key in _PER_ARM} for name, values in arms.items()},
        "cost_by_model": {str(model): float(total) for model, total in by_model.items()},
        "frontier_cop": compute_frontier_cop(values["cop"] for values in arms.values()),
        **gain,
        "spent_usd": info.spent_usd if info.spent_usd is not None else spent(attempts),
        "wasted_usd": info.wasted_usd,
        "wasted_attempts": info.wasted_attempts,
        "budget_usd": info.budget_usd,
        "over_budget_usd": over_budget(info),
        "assumed_usd": info.assumed_usd,
        "cost_sources": sorted(attempts["cost_source"].dropna().unique()),
    }


def extra(both: pd.DataFrame, attempt_delta: float | None) -> dict[str, Any]:
    """What the candidate's difference costs, over the tasks of both arms; unknown while an answer has no price."""
    mine, other = (_of_an_attempt(both, arm) for arm in (CANDIDATE, BASELINE))
    return {
        "cost_per_extra_pass": cost_per_extra_pass(mine, other, attempt_delta),
        "dominates": dominates(mine, other, attempt_delta),
    }


def _of_an_attempt(both: pd.DataFrame, arm: str) -> float:
    """As the difference is: a task's k attempts would make an extra pass k times as dear."""
    known = both[f"{arm}_n_cost_known"].sum()
    if not known or both[f"{arm}_n_unpriced"].any():
        return math.nan
    return float(both[f"{arm}_cost_usd"].sum() / known)


def over_budget(info: RunInfo) -> float | None:
    """By how much the attempts that were in flight outspent the budget; None without one."""
    if info.budget_usd is None or info.spent_usd is None:
        return None
    return max(0.0, info.spent_usd - info.budget_usd)


def spent(attempts: pd.DataFrame) -> float:
    """What models and judges billed for attempts that were not served from the cache; NaN when unknown."""
    fresh = attempts[~attempts["cached"]]
    # What a recording or an earlier run paid for its completions is not spent again.
    paid = fresh["cost_usd"].where(fresh["cost_source"] != "replay", 0.0)
    known = pd.concat([paid, fresh["judge_cost_usd"]]).dropna()
    if len(known) == 0:
        # All from the cache is a known nothing; attempts of unknown cost are unknown.
        return 0.0 if len(fresh) == 0 and len(attempts) else math.nan
    return float(known.sum())
