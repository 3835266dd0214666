"""What a run and a pass cost, and the candidate's money, tokens, calls and time as a share of the baseline's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aggregate.formulas.intervals import Floats, Interval, check_level
from aggregate.formulas.rates import compute_frontier_cop, cost_per_extra_pass, dominates
from aggregate.records import metrics
from aggregate.records.run_info import BASELINE, CANDIDATE, RunInfo


def costs_block(
    info: RunInfo,
    attempts: pd.DataFrame,
    arms: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]],
    gain: Mapping[str, Any],
) -> dict[str, Any]:
    """Cost per arm and model, cost of a pass and its frontier, and the price of an extra pass.

    `total_cost` adds up what is known; `n_cost_known` of `n` says how much that is. Cached attempts keep
    their cost here and count nothing towards `spent_usd`. The frontier is the cheapest pass that any tier or
    model of `groups` offers, in either arm. `gain` is what `extra` found.
    """
    known = attempts.dropna(subset=["cost_usd"])
    by_model = known.groupby("model", sort=True)["cost_usd"].sum()
    return {
        "by_arm": {name: {key: values[key] for key in metrics.COSTS} for name, values in arms.items()},
        "cost_by_model": {str(model): float(total) for model, total in by_model.items()},
        "frontier_cop": compute_frontier_cop(
            arm["cop"]
            for name in ("by_tier", "by_model")
            for group in groups[name].values()
            for arm in group["arms"].values()
        ),
        **gain,
        "spent_usd": _bill(info, attempts),
        "wasted_usd": info.wasted_usd,
        "wasted_attempts": info.wasted_attempts,
        "budget_usd": info.budget_usd,
        "over_budget_usd": over_budget(info),
        "assumed_usd": info.assumed_usd,
        "cost_sources": sorted(attempts["cost_source"].dropna().unique()),
    }


def _bill(info: RunInfo, attempts: pd.DataFrame) -> float:
    """What the run counted; NaN where it counted nothing only because nobody knows what its answers cost."""
    if info.spent_usd is None:
        return spent(attempts)
    answers = attempts[attempts["judged"]]  # what failed may have been for nothing
    return info.spent_usd if info.spent_usd or info.assumed_usd or answers.empty else spent(answers)


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


# Measures of the artifact, and the attempts' column that each is made of.
MEASURES = {
    "cost": "cost_usd",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "model_calls": "turns",
    "model_seconds": "model_ms",
}
_PSEUDO = math.log(10)


def ratio_interval(log_ratios: Floats, level: float = 0.95) -> Interval:
    """Interval for the ratio candidate / baseline over tasks like these, from each task's log ratio.

    exp(mean ± t · sqrt((Σ (x - mean)² + (log 10)²) / (n (n + 1)))), t of n degrees of freedom: Student's t as if one
    task more had been seen, half of it ten times dearer than the others' mean and half ten times cheaper. Tasks that
    agree say little about the rare one that does not. No bounds under two tasks, and no estimate without any.
    """
    from scipy.special import stdtrit  # scipy costs 0.2 s to import: only where a number needs it

    check_level(level)
    n = len(log_ratios)
    mean = float(log_ratios.mean()) if n else math.nan
    half = math.nan
    if n > 1:
        squares = float(((log_ratios - mean) ** 2).sum())
        half = float(stdtrit(n, (1 + level) / 2)) * math.sqrt((squares + _PSEUDO**2) / (n * (n + 1)))
    with np.errstate(over="ignore"):  # a bill of 1e-300 USD can be written down
        estimate, low, high = np.exp([mean, mean - half, mean + half]).tolist()
    return Interval(estimate, low, high, level)


def efficiency_block(attempts: pd.DataFrame, arm: str, level: float) -> dict[str, Any]:
    """Each measure of `MEASURES`, compared over all tasks (`all`) and over those that both arms passed."""
    mine, other = (_means(attempts, one) for one in (arm, BASELINE))
    cells = mine.index.union(other.index)
    mine, other = mine.reindex(cells), other.reindex(cells)
    tasks = pd.factorize(cells.get_level_values("task"))[0]
    passed = ((mine["passed"] > 0) & (other["passed"] > 0)).to_numpy()
    return {
        group: {
            name: _measure(
                mine[column].to_numpy()[chosen], other[column].to_numpy()[chosen], tasks[chosen], level
            )
            for name, column in MEASURES.items()
        }
        for group, chosen in (("all", np.ones(len(cells), bool)), ("both_passed", passed))
    }


def _means(attempts: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Means over the judged attempts of each (task, model), NaN where one of them is not known.

    A mean over what happens to be known would hide the dear attempts that ended without a bill.
    """
    judged = attempts["judged"] & (attempts["arm"] == arm)
    numbers = attempts.loc[judged, ["task", "model", "passed", *MEASURES.values()]]
    cells = numbers.groupby(["task", "model"], sort=True)
    return cells.mean().where(cells.count().eq(cells.size(), axis=0))


def _measure(mine: Floats, other: Floats, tasks: NDArray[np.intp], level: float) -> dict[str, Any]:
    """One measure of both arms for each (task, model); a task with several models counts once, with their mean."""
    known = ~np.isnan(mine + other)
    positive = known & (mine > 0) & (other > 0)
    logs = np.log(mine[positive]) - np.log(other[positive])
    models = np.bincount(tasks[positive])
    by_task = np.bincount(tasks[positive], logs)[models > 0] / models[models > 0]
    ratio, bill = ratio_interval(by_task, level), other[known].sum()
    with np.errstate(over="ignore"):
        of_totals = float(mine[known].sum() / bill) if bill > 0 else math.nan
    return {
        "ratio": ratio.estimate,
        "low": ratio.low,
        "high": ratio.high,
        "level": level,
        "ratio_of_totals": of_totals,
        "n_tasks": len(by_task),
        "n_all": len(np.unique(tasks)),
        # Tasks that lack something: all of it, or that of a model whose price is zero or unknown.
        "n_zero": len(np.unique(tasks[known & ~positive])),
        "n_unknown": len(np.unique(tasks[~known])),
        "word": _word(ratio, of_totals),
    }


def _word(ratio: Interval, of_totals: float) -> str | None:
    """What tasks and bill both say; None where they do not, or where the interval holds 1."""
    if ratio.high < 1 and of_totals < 1:
        return "cheaper"
    return "dearer" if ratio.low > 1 and of_totals > 1 else None
