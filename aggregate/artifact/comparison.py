"""Compare two arms, overall, by group and task by task, and two runs: differences, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from aggregate.artifact import blocks, sentences
from aggregate.artifact.model import CandidateResult, RunsCompared, TaskBounds, TaskChange, TaskResult
from aggregate.formulas.intervals import (
    Floats,
    Interval,
    differences_interval,
    fixed_suite_interval,
    paired_counts,
)
from aggregate.formulas.power_and_stopping import attempts_needed, min_detectable_effect, tasks_needed
from aggregate.formulas.rates import normalized_gain, rounded_delta
from aggregate.formulas.significance import (
    fisher_by_task,
    mcnemar_exact,
    share_at_most_zero,
    sign_flip_test,
    suite_share_at_most_zero,
    two_sided,
)
from aggregate.formulas.verdict import MARGIN, ArmErrors, decision
from aggregate.records import frames, metrics
from aggregate.records.frames import values
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, CANDIDATE, is_candidate
from aggregate.text.formats import Cleaned, clean, cleaned_rows, plain, rounded

UNIT = ["task", "model"]
_PAIRED = [
    *("passed", "passes", "n_judged", "pass_rate", "score", "impl_rate"),
    *("cost_usd", "n_cost_known", "n_unpriced"),
]
ADVISED_ATTEMPTS = 5
P_VALUES = (
    *("p_value", "p_value_greater", "suite_p_value"),
    *("sign_flip_p_value", "sign_flip_p_value_greater", "mcnemar_p_value"),
)
_RUNS = ("first", "second")
GROUPINGS = {"by_model": "model", "by_tier": "tier", "by_judge": "judge"}
MOST_GROUPS = 200
_RANK = {"passed": 0, "failed": 1, "timeout": 1, "error": 2}
# Fields of a task's result that are a column of the tasks.
_COLUMNS = {
    "task_id": "task",
    "attempts": "n",
    "judged": "n_judged",
    "errors": "n_errors",
    **{name: name for name in ("model", "tier", "judge", "score", "duration_ms", "passes", "cost_usd")},
    **{name: name for name in ("accuracy_std_dev", "accuracy_range")},
}

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What two arms show: the fields that an artifact, a group and a comparison of runs share, and both intervals.

    NaN is unknown. `n_pairs` counts tasks judged in both arms, `n_cells` their pairs of task and model, and
    `n_dropped` pairs of task and model that were not judged in both.
    """

    fields: dict[str, Any]
    tasks_like_these: Interval
    exactly_this_suite: Interval


def units(tasks: pd.DataFrame, candidate: str, baseline: str = BASELINE) -> pd.DataFrame:
    """One row per (task, model), with `candidate_…` and `baseline_…` columns; NaN where an arm is absent."""
    sides = []
    for arm, name in ((candidate, CANDIDATE), (baseline, BASELINE)):
        side = tasks[tasks["arm"] == arm].set_index(UNIT)
        sides.append(side[_PAIRED].add_prefix(f"{name}_").assign(**{f"{name}_there": 1.0}))
    labels = (
        tasks[tasks["arm"].isin([candidate, baseline])].groupby(UNIT, sort=True)[["tier", "judge"]].first()
    )
    return labels.join(sides[0], how="left").join(sides[1], how="left").reset_index()


def in_both(paired: pd.DataFrame) -> pd.DataFrame:
    """The units that were judged in both arms."""
    return paired[(paired["candidate_n_judged"] > 0) & (paired["baseline_n_judged"] > 0)]


def compare_units(
    paired: pd.DataFrame, *, level: float = 0.95, effect: float = 0.10, power_level: float | None = None
) -> Comparison:
    """Every difference between the arms of `units`; the pass rates cover all that each arm was judged on.

    `power_level` is the level at which differences are looked for, where that is not the intervals'.
    """
    both = in_both(paired)
    passes = counts(both)
    differences = task_differences(both)
    like_these = _settled(differences_interval(differences, level))
    this_suite = _settled(fixed_suite_interval(*passes, level=level))
    candidate_rate, baseline_rate = (
        round(float(paired[f"{arm}_passed"].mean()), 4) for arm in (CANDIDATE, BASELINE)
    )
    flips = sign_flip_test(differences)
    at_most_zero = share_at_most_zero(differences)
    one_model = len(both) == len(differences)  # several models of a task are no independent pairs of bits
    won = int(((both["candidate_passed"] > 0) & (both["baseline_passed"] == 0)).sum())
    lost = int(((both["candidate_passed"] == 0) & (both["baseline_passed"] > 0)).sum())
    gain = normalized_gain(both["candidate_pass_rate"].mean(), both["baseline_pass_rate"].mean())
    shared = {
        "n_pairs": len(differences),
        "n_cells": len(both),
        "n_dropped": len(paired) - len(both),
        "execution_pass_rate": candidate_rate,
        "baseline_pass_rate": baseline_rate,
        "delta": rounded_delta(candidate_rate, baseline_rate) if len(both) else math.nan,
        "attempt_delta": like_these.estimate,
        "score_delta": _difference(both, "score"),
        "impl_rate_delta": _difference(both, "impl_rate"),
        "normalized_gain": gain,
        "interval": intervals(like_these, this_suite, len(differences)),
        "p_value": two_sided(at_most_zero),
        "p_value_greater": at_most_zero,
        "suite_p_value": two_sided(suite_share_at_most_zero(paired_counts(*passes))),
        "sign_flip_p_value": flips.two_sided,
        "sign_flip_p_value_greater": flips.greater,
        "mcnemar_p_value": mcnemar_exact(lost, won) if len(both) and one_model else math.nan,
        "only_candidate_passed": won,
        "only_baseline_passed": lost,
        **_power(both, differences, power_level or level, effect),
    }
    return Comparison(shared, like_these, this_suite)


def intervals(like_these: Interval, this_suite: Interval, n: int | None) -> dict[str, Any]:
    """Both intervals of `attempt_delta`, each under the question it answers."""
    return {
        "of": "attempt_delta",
        "level": like_these.level,
        "n": n,
        "tasks_like_these": vars(like_these),
        "exactly_this_suite": vars(this_suite),
    }


def task_differences(both: pd.DataFrame) -> Floats:
    """One difference of pass rates per task, the mean over its models; models of a task share their luck."""
    differences = both["candidate_pass_rate"] - both["baseline_pass_rate"]
    return differences.groupby(both["task"], sort=True).mean().to_numpy(dtype=float)


def could_miss(both: pd.DataFrame, interval: Interval, more_attempts: int) -> dict[str, float]:
    """How large a loss on exactly these tasks the interval leaves open, and what more attempts a task would leave."""
    passes, judged, other_passes, other_judged = counts(both)
    longer = [1 + more_attempts / attempts for attempts in (judged, other_judged)]
    then = fixed_suite_interval(
        *(passes * longer[0], judged * longer[0], other_passes * longer[1], other_judged * longer[1]),
        level=interval.level,
    )
    loss, loss_then = (max(0.0, -one.low) for one in (interval, then))
    return {"loss": loss, "more_attempts": more_attempts, "loss_then": loss_then}


def counts(both: pd.DataFrame) -> tuple[Any, Any, Any, Any]:
    columns = ("candidate_passes", "candidate_n_judged", "baseline_passes", "baseline_n_judged")
    first, second, third, fourth = (both[column].to_numpy(dtype=float) for column in columns)
    return first, second, third, fourth


def _power(both: pd.DataFrame, differences: Floats, level: float, effect: float) -> dict[str, Any]:
    """What this many tasks and attempts can show, and what it would take to see `effect`."""
    n = len(differences)
    needed = {"effect": effect, "n_pairs": n, "tasks_at_attempts": ADVISED_ATTEMPTS}
    if n == 0:
        return {"min_detectable_effect": math.nan, "needed": {**needed, "attempts": None, "tasks": None}}
    rate = float((both["candidate_pass_rate"].mean() + both["baseline_pass_rate"].mean()) / 2)
    by_task = (1 / both["candidate_n_judged"] + 1 / both["baseline_n_judged"]).groupby(both["task"])
    # Chance moves a task's difference, the mean over its models, as it would with this many attempts of one.
    attempts = 2 / float((by_task.mean() / by_task.size()).mean())
    models = len(both) / n
    # What differences vary beyond the coin flips inside a task is how much the effect itself varies.
    variance = float(np.var(differences, ddof=1)) if n > 1 else 0.0
    task_sd = math.sqrt(max(0.0, variance - 2 * rate * (1 - rate) / attempts))
    of_one_model = attempts_needed(effect, n, rate, task_sd, level)
    return {
        "min_detectable_effect": min_detectable_effect(n, attempts, rate, task_sd, level),
        "needed": {
            **needed,
            "attempts": None if of_one_model is None else math.ceil(of_one_model / models),
            "tasks": tasks_needed(effect, round(ADVISED_ATTEMPTS * models), rate, task_sd, level),
        },
    }


def changes(paired: pd.DataFrame, digits: int | None = None) -> Cleaned[TaskChange]:
    """The tasks whose pass rate differs, losses first and the largest of each, with Fisher's p and its correction."""
    both = in_both(paired)
    tested = fisher_by_task(*counts(both))
    moved = both.assign(
        difference=both["candidate_pass_rate"] - both["baseline_pass_rate"],
        p_value=tested.p_values,
        adjusted_p_value=tested.adjusted,
    )
    moved = moved[moved["difference"] != 0]
    order = {"gained": moved["difference"] > 0, "size": -moved["difference"].abs()}
    moved = moved.assign(**order).sort_values([*order, *UNIT], kind="stable")
    moved = moved.assign(
        task_id=moved["task"], change=np.where(moved["difference"] > 0, "better", "worse").astype(object)
    )
    columns = {field.name: values(moved[field.name]) for field in fields(TaskChange)}
    return cleaned_rows(TaskChange, columns, digits)


def _difference(both: pd.DataFrame, column: str) -> float:
    return float((both[f"candidate_{column}"] - both[f"baseline_{column}"]).mean())


def _settled(interval: Interval) -> Interval:
    """Thirds that cancel out leave a difference of 1e-17, which is none."""
    return replace(interval, estimate=round(interval.estimate, 12) + 0.0)


def results(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str, digits: int | None = None
) -> Cleaned[TaskResult]:
    """Each task of the arm with its pass, mean score, details and time, details from its telling attempt.

    The telling attempt is the first that passed, else the first that was judged, else the first.
    """
    mine = tasks[tasks["arm"] == arm]
    telling, errors, failures, missed = _telling(attempts[attempts["arm"] == arm], mine)
    columns = {
        **{name: values(mine[column]) for name, column in _COLUMNS.items()},
        "passed": [None if np.isnan(value) else bool(value) for value in mine["passed"].tolist()],
        "outcome": values(telling["outcome"]),
        "details": values(telling["details"]),
        "error": values(errors),
        "failure": values(failures),
        "missed": [one if isinstance(one, tuple) else () for one in missed.tolist()],
    }
    return cleaned_rows(TaskResult, columns, digits)


def with_intervals(
    candidate: Iterable[TaskResult],
    baseline: Iterable[TaskResult],
    level: float,
    changes: Iterable[TaskChange] = (),
) -> Cleaned[CandidateResult]:
    """The candidate's results, each with the interval of its difference; None unless both arms were judged.

    It reaches to 0 where the task's corrected p does not rule chance out.
    """
    others = {(result.task_id, result.model): result for result in baseline}
    chance = {(one.task_id, one.model) for one in changes if (one.adjusted_p_value or 0.0) >= 1 - level}
    names = [field.name for field in fields(TaskResult)]
    results = Cleaned[CandidateResult]()
    for one in candidate:
        key, bounds = (one.task_id, one.model), None
        other = others.get(key)
        if other is not None and one.judged and other.judged:
            bounds = _bounds(one.passes, one.judged, other.passes, other.judged, level)
            if key in chance:
                bounds = TaskBounds(min(bounds.low or 0.0, 0.0), max(bounds.high or 0.0, 0.0))
        results.append(CandidateResult(**{name: getattr(one, name) for name in names}, interval=bounds))
    return results


@lru_cache(maxsize=4096)  # thousands of tasks share a few counts, and each interval is an integral
def _bounds(passes: int, judged: int, baseline_passes: int, baseline_judged: int, level: float) -> TaskBounds:
    interval = fixed_suite_interval([passes], [judged], [baseline_passes], [baseline_judged], level)
    return TaskBounds(rounded(interval.low), rounded(interval.high))


def _telling(
    attempts: pd.DataFrame, tasks: pd.DataFrame
) -> tuple[pd.DataFrame, pd.Series[Any], pd.Series[Any], pd.Series[Any]]:
    """Of each task the telling attempt, the first error, what was said of the first failure, and what that missed."""
    units = pd.MultiIndex.from_frame(tasks[UNIT])
    run = attempts.loc[attempts["outcome"] != "skipped", [*UNIT, "outcome", "details", "error", "missed"]]
    ranked = run.assign(rank=run["outcome"].map(_RANK)).sort_values("rank", kind="stable")
    telling = ranked.drop_duplicates(UNIT).set_index(UNIT)
    erred = run[run["error"].notna()].drop_duplicates(UNIT).set_index(UNIT)
    lost = run[run["outcome"].isin(["failed", "timeout"])].drop_duplicates(UNIT).set_index(UNIT)
    said = lost["details"].where(lost["outcome"] != "timeout", "timed out")
    missed = lost["missed"].reindex(units)
    return telling.reindex(units), erred["error"].reindex(units), said.reindex(units), missed


def overall(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arms: Iterable[str], pass_k: int
) -> dict[str, Metrics]:
    """The metrics of each arm that has attempts, with pass@k and pass^k for every k."""
    run = _numbers(attempts)[attempts["outcome"] != "skipped"]
    by_arm: dict[str, Metrics] = {}
    for arm in arms:
        mine = metrics.Group(run[run["arm"] == arm], tasks[tasks["arm"] == arm])
        if len(mine.attempts):
            by_arm[arm] = {**metrics.measure(mine), **metrics.pass_curves(mine.tasks, pass_k)}
    return by_arm


def by_group(
    attempts: pd.DataFrame, tasks: pd.DataFrame, arms: Iterable[str], pass_k: int, whole: dict[str, Metrics]
) -> dict[str, dict[str, dict[str, Metrics]]]:
    """The same by model, tier and judge type; tasks that name none (no tier) are left out.

    A group that everything is in has the numbers of the `whole`; a grouping with too many groups is empty.
    """
    left_out = too_many(tasks)
    grouped: dict[str, dict[str, dict[str, Metrics]]] = {}
    for name, column in GROUPINGS.items():
        if name in left_out:
            grouped[name] = {}
        elif (only := only_one(column, attempts, tasks)) is not None:
            grouped[name] = {only: whole}
        else:
            parts = dict(list(_numbers(attempts, column).groupby(column, sort=True)))
            grouped[name] = {
                str(group): overall(parts[group], part, arms, pass_k)
                for group, part in tasks.groupby(column, sort=True)
            }
    return grouped


def _numbers(attempts: pd.DataFrame, *more: str) -> pd.DataFrame:
    """The columns that metrics are made of; taking texts along would double the time that grouping takes."""
    numbers = attempts.select_dtypes(["number", "bool"]).columns
    return attempts[["arm", "outcome", *more, *numbers]]


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
    groups = attempts[column].unique()
    whole = len(groups) == 1 and isinstance(groups[0], str) and len(tasks) > 0
    return groups[0] if whole else None


def compare(
    first: Iterable[AttemptRecord], second: Iterable[AttemptRecord], *, margin: float = MARGIN
) -> RunsCompared:
    """The second run's candidate arm against the first's, over the (task, model) units that both have judged.

    A run without a candidate arm is compared by its baseline; one with several candidates is a ValueError. Two
    runs of one model each are paired by task alone: which model does better is then what is asked.
    """
    arms, sides, attempts = zip(*(_one_arm(frames.collect(run)) for run in (first, second)), strict=True)
    models = sorted({model for tasks in sides for model in tasks["model"].unique()})
    by_model = any(tasks["model"].nunique() > 1 for tasks in sides)
    named = [
        tasks.assign(arm=name, model=tasks["model"] if by_model else " / ".join(models))
        for tasks, name in zip(sides, _RUNS, strict=True)
    ]
    paired = units(pd.concat(named, ignore_index=True), candidate="second", baseline="first")
    both = in_both(paired)
    if both.empty:
        how = " with the same model" if by_model else ""
        raise ValueError(f"no task was judged in both runs{how}, so there is nothing to compare")
    compared = compare_units(both)
    errors = {
        f"{name}-run": ArmErrors(int(tasks["n"].sum()), int(tasks["n_errors"].sum()))
        for name, tasks in zip(_RUNS, sides, strict=True)
    }
    decided = decision(compared.tasks_like_these, margin, errors)
    fields = {
        **compared.fields,
        "n_dropped": len(paired) - len(both),
        "first_run": _means(both, "baseline"),
        "second_run": _means(both, "candidate"),
        "decision": decided.decision,
        "decision_reason": sentences.words(decided.reasons),
        "margin": margin,
        "models": models,
        "paired_by_model": by_model,
        "changes": changes(both),
    }
    result = RunsCompared.model_validate(clean(fields))
    alone = [name for name, arm in zip(_RUNS, arms, strict=True) if arm == BASELINE]
    left_out = sentences.cells(result, result.n_dropped) if result.n_dropped else ""
    by_run = [run.assign(arm=name) for run, name in zip(attempts, _RUNS, strict=True)]
    served = blocks.served_block(pd.concat(by_run), list(_RUNS))
    warnings = blocks.served_differences(served, ("second", "the second run"), ("first", "the first"))
    summary = (
        *(f"The {name} run has no candidate: its baseline is compared." for name in alone),
        sentences.found(result),
        left_out and f"Left out, as not judged in both runs: {left_out}.",
        sentences.decided(result),
        sentences.power(result),
        sentences.simulated(result),
        *(f"{warning}." for warning in warnings),
    )
    return result.model_copy(update={"summary": " ".join(filter(None, summary))})


def _one_arm(made: frames.Frames) -> tuple[str, pd.DataFrame, pd.DataFrame]:
    """The arm that a run is compared by, its tasks and attempts; one that was skipped is still the candidate."""
    candidates = sorted(arm for arm in made.attempts["arm"].unique() if is_candidate(arm))
    if len(candidates) > 1:
        names = ", ".join(plain(arm, 60) for arm in candidates)
        raise ValueError(f"a run has several candidates ({names}); compare runs of one")
    wanted = candidates[0] if candidates else BASELINE
    tasks, attempts = (frame[frame["arm"] == wanted] for frame in (made.tasks, made.attempts))
    return wanted, tasks, attempts


def _means(both: pd.DataFrame, side: str) -> dict[str, float]:
    """What the differences are differences of: means over the tasks for which both runs have a number."""
    return {
        name: both.dropna(subset=[f"candidate_{column}", f"baseline_{column}"])[f"{side}_{column}"].mean()
        for name, column in metrics.COMPARED.items()
    }
