"""Compare two runs of one suite: the second's candidate with the first's, task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from aggregate import comparison, frames, sentences
from aggregate.number_formats import points
from aggregate.plain_text import plain
from aggregate.records import AttemptRecord
from aggregate.run_info import BASELINE, is_candidate
from aggregate.standard_json import clean
from aggregate.verdict import MARGIN, ArmErrors, Decision, decision

_RATES = {"attempt_pass_rate": "pass_rate", "mean_score": "score"}
_RUNS = ("first", "second")


def compare(
    records_a: Iterable[AttemptRecord],
    records_b: Iterable[AttemptRecord],
    *,
    level: float = 0.95,
    margin: float = MARGIN,
    curtailed_at: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:
    """The second run's candidate arm against the first's, over the (task, model) units that both have judged.

    A run without a candidate arm is compared by its baseline; one with several candidates is a ValueError. Two
    runs of one model each are paired by task alone: which model does better is then what is asked. `curtailed_at`
    is the number of attempts that were planned of a run that stopped once its verdict was certain.
    """
    arms, sides = zip(*(_one_arm(frames.collect(records)) for records in (records_a, records_b)), strict=True)
    models = sorted({model for tasks in sides for model in tasks["model"].unique()})
    by_model = any(tasks["model"].nunique() > 1 for tasks in sides)
    named = [
        tasks.assign(arm=name, model=tasks["model"] if by_model else " / ".join(models))
        for tasks, name in zip(sides, _RUNS, strict=True)
    ]
    paired = comparison.units(pd.concat(named, ignore_index=True), candidate="second", baseline="first")
    both = comparison.in_both(paired)
    if both.empty:
        how = " with the same model" if by_model else ""
        raise ValueError(f"no task was judged in both runs{how}, so there is nothing to compare")
    compared = comparison.compare_units(both, level=level)
    curtailed = any(curtailed_at)
    if curtailed:
        made = Decision("inconclusive", "a run stopped once its verdict was certain", margin)
    else:
        errors = {f"{name}-run": _errors(tasks) for name, tasks in zip(_RUNS, sides, strict=True)}
        made = decision(compared.tasks_like_these, margin, errors)
    told = {
        **comparison.block(compared, curtailed=curtailed),
        "n_dropped": len(paired) - len(both),
        "curtailed": curtailed,
        "delta_bounds": None,
        "first_run": {} if curtailed else _rates(both, "baseline"),
        "second_run": {} if curtailed else _rates(both, "candidate"),
        "decision": made.decision,
        "decision_reason": made.reason,
        "margin": margin,
        "models": models,
        "paired_by_model": by_model,
        "changes": [] if curtailed else comparison.changes(both),
    }
    if curtailed:
        told |= _bounded(both, curtailed_at)
    result: dict[str, Any] = clean(told)
    said = (
        *(_stands_in(name, arm) for name, arm in zip(_RUNS, arms, strict=True)),
        _left_out(result, curtailed_at) or sentences.found(result, "the second run", "the first"),
        _alone(result),
        sentences.decided(result),
        sentences.power(result),
        sentences.simulated(result),
    )
    return {**result, "summary": " ".join(filter(None, said))}


def _one_arm(made: frames.Frames) -> tuple[str, pd.DataFrame]:
    """The arm that a run is compared by, and its tasks; one that was skipped is still the candidate."""
    candidates = sorted(arm for arm in made.attempts["arm"].unique() if is_candidate(arm))
    if len(candidates) > 1:
        names = ", ".join(plain(arm, 60) for arm in candidates)
        raise ValueError(f"a run has several candidates ({names}); compare runs of one")
    wanted = candidates[0] if candidates else BASELINE
    return wanted, made.tasks[made.tasks["arm"] == wanted]


def _bounded(both: pd.DataFrame, curtailed_at: tuple[int | None, int | None]) -> dict[str, Any]:
    """Between which values rates and delta would lie, had no attempt been left out; exact ones where they meet."""
    ends = []
    for side, planned in zip(("baseline", "candidate"), curtailed_at, strict=True):
        passed = both[f"{side}_passes"] > 0
        open_still = ~passed & (both[f"{side}_n_judged"] < (planned or 0))
        ends.append((float(passed.mean()), float((passed | open_still).mean())))
    (first_low, first_high), (second_low, second_high) = ends
    rates = [round(low, 4) if low == high else None for low, high in ends]
    bounds = [round(second_low - first_high, 4), round(second_high - first_low, 4)]
    return {
        "baseline_pass_rate": rates[0],
        "execution_pass_rate": rates[1],
        "delta": bounds[0] if bounds[0] == bounds[1] else None,
        "delta_bounds": bounds,
        "only_candidate_passed": None,
        "only_baseline_passed": None,
    }


def _rates(both: pd.DataFrame, side: str) -> dict[str, float]:
    """What the differences are differences of: means over the tasks for which both runs have a number."""
    known = {
        name: both[both[[f"candidate_{column}", f"baseline_{column}"]].notna().all(axis=1)]
        for name, column in _RATES.items()
    }
    return {name: float(known[name][f"{side}_{column}"].mean()) for name, column in _RATES.items()}


def _errors(tasks: pd.DataFrame) -> ArmErrors:
    return ArmErrors(int(tasks["n"].sum()), int(tasks["n_errors"].sum()))


def _stands_in(name: str, arm: str) -> str:
    return f"The {name} run has no candidate: its baseline is compared." if arm == BASELINE else ""


def _alone(result: dict[str, Any]) -> str:
    dropped = result["n_dropped"]
    if not dropped:
        return ""
    return f"Left out, as not judged in both runs: {sentences.units(result, dropped)}."


def _left_out(result: dict[str, Any], curtailed_at: tuple[int | None, int | None]) -> str:
    runs = [name for name, planned in zip(_RUNS, curtailed_at, strict=True) if planned]
    if not runs:
        return ""
    which, whose = ("Both runs", "their") if len(runs) == 2 else (f"The {runs[0]} run", "its")
    low, high = result["delta_bounds"]
    known = (
        f"is {points(low)} points" if low == high else f"lies between {points(low)} and {points(high)} points"
    )
    return (
        f"{which} left out attempts that could not change {whose} verdict. "
        f"However those had gone, the difference in tasks passed {known}."
    )
