"""Records as tidy tables, with fixed columns even when empty, sorted by key.

Keys come first in every frame. `n` counts the attempts that were run, `n_judged` those that passed, failed or
timed out, `n_scored` those with a score. This is the only place where None becomes NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd

from aggregate.formulas.consistency import FLAKY_RANGE, d2
from aggregate.records import rows
from aggregate.records.record import AttemptRecord
from aggregate.records.rows import Column, Kind
from aggregate.records.run_info import TaskInfo
from aggregate.text.files import no_cycle_search

# Per (task, model, arm). The source of a column is one of attempts and how it is summed up; none: computed.
TASKS: dict[str, Column] = {
    "task": Column("str", "id of the task"),
    "model": Column("str", "the model that was asked"),
    "arm": Column("str", "`baseline`, `candidate`, `candidate:ID` or `oracle`"),
    "tier": Column("str", "the task's tier", "tier.first"),
    "judge": Column("str", "the judge's type", "judge.first"),
    "n": Column("int", "attempts that were run", "outcome.size"),
    "n_judged": Column("int", "attempts that passed, failed or timed out", "judged.sum"),
    "n_scored": Column("int", "attempts with a score", "score.count"),
    "n_errors": Column("int", "attempts that could not be judged", "is_error.sum"),
    "n_timeouts": Column("int", "attempts that timed out", "is_timeout.sum"),
    "n_cost_known": Column("int", "attempts whose cost is known", "cost_usd.count"),
    "n_unpriced": Column("int", "judged attempts whose cost is unknown", "is_unpriced.sum"),
    "passes": Column("int", "attempts that passed", "passed.sum"),
    "passed": Column(
        "float", "whether any attempt passed, 1 or 0; missing when none was judged", "passed.max"
    ),
    "first_passed": Column(
        "float", "the first attempt, of merged runs their mean; missing when it was not judged", "first.mean"
    ),
    "pass_rate": Column("float", "`passes` / `n_judged`", "passed.mean"),
    "program_pass_rate": Column("float", "mean", "program_passed.mean"),
    "score": Column("float", "mean", "score.mean"),
    "impl_rate": Column("float", "mean", "impl_rate.mean"),
    "median_impl_rate": Column("float", "median", "impl_rate.median"),
    "std_impl_rate": Column("float", "standard deviation of a sample; missing under two", "impl_rate.std"),
    "accuracy_std_dev": Column("float", "standard deviation of 100 × score; missing under two scores"),
    "accuracy_range": Column("float", "from the lowest to the highest 100 × score"),
    "flaky": Column("float", f"1 when that range exceeds {FLAKY_RANGE:g} points"),
    "flaky_sigma": Column("float", "range / d2(`n_scored`)"),
    "cost_usd": Column("float", "sum of what is known", "cost_usd.total"),
    "turns": Column("float", "mean", "turns.mean"),
    "input_tokens": Column("float", "sum", "input_tokens.total"),
    "output_tokens": Column("float", "sum", "output_tokens.total"),
    "duration_ms": Column("float", "sum of model and judge time", "duration_ms.total"),
}
_HUGE = 10**300


@dataclass(frozen=True)
class Frames:
    """All frames that come straight from records, and what was left out on the way."""

    attempts: pd.DataFrame
    judgments: pd.DataFrame
    criteria: pd.DataFrame
    tasks: pd.DataFrame
    checks: pd.DataFrame
    measured: tuple[rows.Measured, ...] = ()
    warnings: tuple[str, ...] = ()


def collect(records: Iterable[AttemptRecord], tasks: Iterable[TaskInfo] = ()) -> Frames:
    """All frames in one pass; `tasks` fills in tiers and judge types that records do not say."""
    with no_cycle_search():
        by_attempt, warnings = rows.collect(records, tasks)
        attempts, bad = _frame([each.attempt for each in by_attempt], rows.ATTEMPT_ROW, rows.ATTEMPTS)
        # A task has one tier and one judge, the first that is named: a time-out has no judgment to name it.
        for name in ("tier", "judge"):
            attempts[name] = attempts.groupby("task")[name].transform("first")
        below = {}
        for name, (order, columns) in rows.BELOW.items():
            below[name], more = _below(attempts, [getattr(each, name) for each in by_attempt], order, columns)
            bad += more
        _keep_programs_apart(attempts, below["judgments"], below["checks"])
        measured = tuple(rows.measured(by_attempt, values(attempts["judge"])))
        del by_attempt  # or they would be searched at once
    if bad:
        warnings.append(f"{bad} numbers out of range were treated as missing")
    return Frames(attempts, tasks=task_frame(attempts), **below, measured=measured, warnings=tuple(warnings))


def _keep_programs_apart(attempts: pd.DataFrame, judgments: pd.DataFrame, checks: pd.DataFrame) -> None:
    """What programs alone say: a time-out has failed by them too; missing in runs where only one kind judges."""
    by_model = (checks["by"] == "model").any() or judgments["judge"].str.contains("llm-rubric").any()
    by_program = set(attempts.loc[attempts["program_passed"].notna(), "task"])
    if not by_model or not by_program:
        attempts["program_passed"] = np.nan
    else:
        late = (attempts["outcome"] == "timeout") & attempts["task"].isin(by_program)
        attempts.loc[late, "program_passed"] = 0.0


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
    sources = {name: column.source.split(".") for name, column in TASKS.items() if column.source}
    summed = {name: (column, how) for name, (column, how) in sources.items() if how != "total"}
    tasks = grouped.agg(highest=("accuracy", "max"), lowest=("accuracy", "min"), **summed).reset_index()
    # numpy's rounding of repeated equal scores must not look like variation, hence the range decides.
    spread = grouped["accuracy"].std(ddof=0).to_numpy(dtype=float, na_value=np.nan)
    tasks["accuracy_range"] = (tasks["highest"] - tasks["lowest"]).where(tasks["n_scored"] >= 2)
    tasks["accuracy_std_dev"] = np.where(tasks["accuracy_range"] == 0, 0.0, spread)
    tasks.loc[tasks["n_scored"] < 2, "accuracy_std_dev"] = np.nan
    flaky = (tasks["accuracy_range"] > FLAKY_RANGE + 1e-9).astype(float)
    tasks["flaky"] = flaky.where(tasks["accuracy_range"].notna())
    tasks["flaky_sigma"] = tasks["accuracy_range"] / tasks["n_scored"].map(d2).astype(float)
    for name, (column, how) in sources.items():
        if how == "total":  # unlike pandas' own sum, missing where nothing is known
            tasks[name] = grouped[column].sum(min_count=1).to_numpy()
    return tasks[list(TASKS)].astype({name: column.kind for name, column in TASKS.items()})


def values(column: pd.Series[Any]) -> list[Any]:
    """The cells of a column as a list; iterating over a column of strings itself is several times slower."""
    return list(column.to_numpy(dtype=object))


def _frame(
    row_list: list[rows.Row], order: Iterable[str], columns: dict[str, Column]
) -> tuple[pd.DataFrame, int]:
    """The rows, whose cells are in `order`, as a frame with these columns; and how many numbers were out of range.

    Those are made NaN.
    """
    cells = dict(zip(order, zip(*row_list, strict=True) if row_list else repeat(()), strict=bool(row_list)))
    frame = pd.DataFrame({name: _series(cells.pop(name), column.kind) for name, column in columns.items()})
    bad = 0
    for name, column in columns.items():
        if column.kind == "float" and (limits := rows.limits(column)):
            outside = (frame[name] < limits.low) | (frame[name] > limits.high)
            if outside.any():
                bad += int(outside.sum())
                frame.loc[outside, name] = np.nan
    return frame, bad


def _below(
    attempts: pd.DataFrame, row_lists: list[list[rows.Row]], order: Iterable[str], columns: dict[str, Column]
) -> tuple[pd.DataFrame, int]:
    """The rows that belong to each attempt, in its order, with the attempt's key and tier in front."""
    shared = [*rows.KEY, "tier"]
    own = {name: column for name, column in columns.items() if name not in shared}
    frame, bad = _frame([row for row_list in row_lists for row in row_list], order, own)
    keys, lengths = attempts[shared], list(map(len, row_lists))
    if lengths.count(1) < len(lengths):
        keys = keys.take(np.repeat(np.arange(len(lengths)), lengths)).reset_index(drop=True)
    return pd.concat([keys, frame], axis=1), bad


def _series(column: Iterable[Any], kind: Kind) -> pd.Series[Any]:
    cells: Any = list(column)
    if kind in ("str", "object"):
        return pd.Series(cells, dtype=kind)
    try:
        return pd.Series(np.fromiter(cells, kind, len(cells)))
    except TypeError:  # some are None
        return pd.Series(np.array(cells, kind))
    except OverflowError:  # an integer that no float can hold is out of every range
        cells = [math.inf if isinstance(cell, int) and abs(cell) > _HUGE else cell for cell in cells]
        return pd.Series(np.array(cells, kind))
