"""Records as tidy tables, with fixed columns even when empty, sorted by key.

Keys come first in every frame. `n` counts the attempts that were run, `n_judged` those that passed, failed or
timed out, `n_scored` those with a score. This is the only place where None becomes NaN.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from aggregate import metrics, ranges, rows
from aggregate.plain_text import plain
from aggregate.records import AttemptRecord
from aggregate.run_info import TaskInfo
from aggregate.stats import FLAKY_RANGE, d2

KEY = ("task", "model", "arm", "attempt", "run_id")
_KEYS = {"task": "str", "model": "str", "arm": "str", "attempt": "int", "run_id": "str"}

ATTEMPTS = {
    **_KEYS,
    "tier": "str",
    "judge": "str",  # the judge's type
    "outcome": "str",
    "judged": "bool",  # passed, failed or timed out
    "passed": "float",  # 1 or 0; NaN when not judged
    "score": "float",  # consensus, 0 to 1
    "impl_rate": "float",  # consensus, points achieved of points possible
    "panel_size": "int",
    "panel_missing": "int",  # judges that gave no score
    "cost_usd": "float",
    "cost_source": "str",
    "input_tokens": "float",
    "output_tokens": "float",
    "cache_read_tokens": "float",
    "cache_write_tokens": "float",
    "turns": "float",
    "truncated": "bool",
    "skill_invoked": "float",  # 1 or 0; NaN when the model does not tell
    "judge_cost_usd": "float",
    "judge_input_tokens": "float",
    "judge_output_tokens": "float",
    "model_ms": "float",
    "judge_ms": "float",
    "details": "str",
    "error": "str",
    "started_at": "str",
    "worker": "str",
    "cached": "bool",
    "deliveries": "float",
    "retries": "float",
    "tags": "str",  # joined by ;
    "matched": "object",  # tuple of matched strings and satisfied criteria
}
JUDGMENTS = {
    **_KEYS,
    "tier": "str",
    "member": "int",  # 1 for a lone judge, 1 … for a panel
    "judge": "str",
    "judge_model": "str",
    "passed": "float",
    "score": "float",
    "judge_impl_rate": "float",
    "cost_usd": "float",
    "input_tokens": "float",
    "output_tokens": "float",
    "saw_cut_text": "bool",
    "n_matched": "int",
    "n_missed": "int",
    "details": "str",
    "error": "str",
}
CRITERIA = {
    **_KEYS,
    "tier": "str",
    "member": "int",
    "judge": "str",
    "judge_model": "str",
    "criterion": "str",
    "achieved": "float",
    "max_points": "float",
}
TASKS = {
    "task": "str",
    "model": "str",
    "arm": "str",
    "tier": "str",
    "judge": "str",
    "n": "int",
    "n_judged": "int",
    "n_scored": "int",
    "n_errors": "int",
    "n_timeouts": "int",
    "n_cost_known": "int",
    "n_unpriced": "int",  # judged attempts whose cost is unknown
    "passes": "int",
    "passed": "float",  # any attempt passed; NaN when none was judged
    "first_passed": "float",  # the first attempt, of merged runs their mean; NaN when it was not judged
    "pass_rate": "float",  # passes / n_judged
    "score": "float",  # mean
    "impl_rate": "float",  # mean
    "accuracy_std_dev": "float",  # points, population; NaN under two scores
    "accuracy_range": "float",  # points
    "flaky": "float",  # 1 when the range exceeds 20 points
    "flaky_sigma": "float",  # range / d2(n_scored)
    "cost_usd": "float",  # sum of what is known
    "turns": "float",  # mean
    "input_tokens": "float",  # sum
    "output_tokens": "float",  # sum
    "duration_ms": "float",  # sum of model and judge time
}
_HUGE = 10**300
_NUMPY = {"float": np.float64, "int": np.int64, "bool": np.bool_}
_LIMITS: Mapping[str, ranges.Range] = {
    **ranges.RECORD,
    **ranges.COMPLETION,
    **ranges.CRITERION,
    "judge_cost_usd": ranges.COMPLETION["cost_usd"],
    "judge_input_tokens": ranges.COMPLETION["input_tokens"],
    "judge_output_tokens": ranges.COMPLETION["output_tokens"],
}


@dataclass(frozen=True)
class Frames:
    """All frames that come straight from records, and what was left out on the way."""

    attempts: pd.DataFrame
    judgments: pd.DataFrame
    criteria: pd.DataFrame
    tasks: pd.DataFrame
    measured: tuple[rows.Measured, ...] = ()
    warnings: tuple[str, ...] = ()


def collect(records: Iterable[AttemptRecord], tasks: Iterable[TaskInfo] = ()) -> Frames:
    """All frames in one pass; `tasks` fills in tiers and judge types that records do not say."""
    with _no_cycle_search():
        collected = rows.collect(records, tasks)
        bundles = collected.bundles
        attempts, bad = _frame([bundle.attempt for bundle in bundles], ATTEMPTS)
        judgments, bad_judgments = _below(attempts, [bundle.judgments for bundle in bundles], JUDGMENTS)
        criteria, bad_criteria = _below(attempts, [bundle.criteria for bundle in bundles], CRITERIA)
        measured = tuple(bundle.measured for bundle in bundles if bundle.measured is not None)
        warnings = tuple(_left_out(collected, bad + bad_judgments + bad_criteria))
        del collected, bundles  # or they would be searched at once
    return Frames(attempts, judgments, criteria, task_frame(attempts), measured, warnings)


@contextlib.contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Rows form no cycles, and having the collector walk 100,000 of them again and again takes seconds."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def attempt_frame(records: Iterable[AttemptRecord]) -> pd.DataFrame:
    """One row per attempt, with the columns of ATTEMPTS."""
    return collect(records).attempts


def judgment_frame(records: Iterable[AttemptRecord]) -> pd.DataFrame:
    """One row per judge and attempt, with the columns of JUDGMENTS; panels are spread over their members."""
    return collect(records).judgments


def criteria_frame(records: Iterable[AttemptRecord]) -> pd.DataFrame:
    """One row per criterion, judge and attempt, with the columns of CRITERIA."""
    return collect(records).criteria


def task_frame(attempts: pd.DataFrame) -> pd.DataFrame:
    """One row per (task, model, arm), with the columns of TASKS; attempts that were skipped do not count."""
    run = attempts[attempts["outcome"] != "skipped"]
    grouped = run.assign(
        duration_ms=run[["model_ms", "judge_ms"]].sum(axis=1, min_count=1),
        accuracy=100 * run["score"],
        is_error=run["outcome"] == "error",
        is_timeout=run["outcome"] == "timeout",
        is_unpriced=run["judged"] & run["cost_usd"].isna(),
        first=run["passed"].where(run["attempt"] == 1),
    ).groupby(["task", "model", "arm"], sort=True)
    tasks = grouped.agg(
        tier=("tier", "first"),
        judge=("judge", "first"),
        n=("outcome", "size"),
        n_judged=("judged", "sum"),
        n_scored=("score", "count"),
        n_errors=("is_error", "sum"),
        n_timeouts=("is_timeout", "sum"),
        n_cost_known=("cost_usd", "count"),
        n_unpriced=("is_unpriced", "sum"),
        passes=("passed", "sum"),
        passed=("passed", "max"),
        first_passed=("first", "mean"),
        pass_rate=("passed", "mean"),
        score=("score", "mean"),
        impl_rate=("impl_rate", "mean"),
        highest=("accuracy", "max"),
        lowest=("accuracy", "min"),
        turns=("turns", "mean"),
    ).reset_index()
    # numpy's rounding of repeated equal scores must not look like variation, hence the range decides.
    spread = grouped["accuracy"].std(ddof=0).to_numpy(dtype=float, na_value=np.nan)
    tasks["accuracy_range"] = (tasks["highest"] - tasks["lowest"]).where(tasks["n_scored"] >= 2)
    tasks["accuracy_std_dev"] = np.where(tasks["accuracy_range"] == 0, 0.0, spread)
    tasks.loc[tasks["n_scored"] < 2, "accuracy_std_dev"] = np.nan
    flaky = (tasks["accuracy_range"] > FLAKY_RANGE + 1e-9).astype(float)
    tasks["flaky"] = flaky.where(tasks["accuracy_range"].notna())
    tasks["flaky_sigma"] = tasks["accuracy_range"] / tasks["n_scored"].map(d2).astype(float)
    for column in ("cost_usd", "input_tokens", "output_tokens", "duration_ms"):
        tasks[column] = grouped[column].sum(min_count=1).to_numpy()
    return _typed(tasks, TASKS)


def arm_frame(attempts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per arm with every metric of metrics.METRICS."""
    return metrics.grouped(attempts, tasks, ("arm",))


def model_frame(attempts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per (model, arm) with every metric."""
    return metrics.grouped(attempts, tasks, ("model", "arm"))


def tier_frame(attempts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per (tier, arm) with every metric, over the tasks that name a tier."""
    return metrics.grouped(attempts, tasks, ("tier", "arm"))


def judge_type_frame(attempts: pd.DataFrame, tasks: pd.DataFrame) -> pd.DataFrame:
    """One row per (judge type, arm) with every metric."""
    return metrics.grouped(attempts, tasks, ("judge", "arm"))


def values(column: pd.Series[Any]) -> list[Any]:
    """The cells of a column as a list; iterating over a column of strings itself is several times slower."""
    return list(column.to_numpy(dtype=object))


def named_rows(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a frame, with its columns as attributes."""
    row = namedtuple("row", frame.columns)  # type: ignore[misc]  # its fields are known at run time only
    return map(row._make, zip(*(values(frame[name]) for name in frame.columns), strict=True))


def _frame(row_list: list[rows.Row], columns: dict[str, str]) -> tuple[pd.DataFrame, int]:
    """The rows as a frame, numbers out of range made NaN, and how many of those there were."""
    cells = zip(*row_list, strict=True) if row_list else ([] for _ in columns)
    series: dict[str, pd.Series[Any]] = {}
    bad = 0
    for (name, kind), column in zip(columns.items(), cells, strict=True):
        made = _series(column, kind)
        if kind == "float" and name in _LIMITS:
            low, high = _LIMITS[name]
            outside = made.notna() & ~made.between(low, high)
            bad += int(outside.sum())
            made = made.mask(outside)
        series[name] = made
    return pd.DataFrame(series), bad


def _below(
    attempts: pd.DataFrame, row_lists: list[list[rows.Row]], columns: dict[str, str]
) -> tuple[pd.DataFrame, int]:
    """The rows that belong to each attempt, in its order, with the attempt's key and tier in front."""
    shared = [*KEY, "tier"]
    own = {name: kind for name, kind in columns.items() if name not in shared}
    frame, bad = _frame([row for row_list in row_lists for row in row_list], own)
    keys = attempts[shared].take(np.repeat(np.arange(len(row_lists)), [len(one) for one in row_lists]))
    return pd.concat([keys.reset_index(drop=True), frame], axis=1), bad


def _series(column: Iterable[Any], kind: str) -> pd.Series[Any]:
    if kind in _NUMPY:
        return pd.Series(_numbers(list(column), _NUMPY[kind]))
    if kind == "object":
        return pd.Series(list(column), dtype=object)
    return pd.Series(list(column), dtype="str")


def _numbers(cells: list[Any], kind: Any) -> np.ndarray[Any, Any]:
    try:
        return np.fromiter(cells, kind, len(cells))
    except TypeError:  # some are None
        return np.array(cells, dtype=kind)
    except OverflowError:  # an integer that no float can hold is out of every range
        return np.array(
            [math.inf if isinstance(cell, int) and abs(cell) > _HUGE else cell for cell in cells], kind
        )


def _typed(frame: pd.DataFrame, columns: dict[str, str]) -> pd.DataFrame:
    kinds = {name: kind if kind == "str" else _NUMPY[kind] for name, kind in columns.items()}
    return frame[list(columns)].astype(kinds)


def _left_out(collected: rows.Collected, bad: int) -> Iterable[str]:
    for arm, count in sorted(collected.unknown_arms.items()):
        yield f"{count} records of unknown arm {plain(arm, 40)} were left out"
    if collected.duplicates:
        yield f"{collected.duplicates} records repeat an attempt that has one already; one of each was kept"
    if bad:
        yield f"{bad} numbers out of range were treated as missing"
