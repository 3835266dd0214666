"""Compare two runs of one suite: the second's candidate with the first's, task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from aggregate import comparison, early_stop, frames, sentences
from aggregate.records import AttemptRecord
from aggregate.run_info import BASELINE, is_candidate
from aggregate.standard_json import clean
from aggregate.verdict import MARGIN, ArmErrors, Decision, decision

_RATES = {"attempt_pass_rate": "pass_rate", "mean_score": "score"}


def compare(
    records_a: Iterable[AttemptRecord],
    records_b: Iterable[AttemptRecord],
    *,
    level: float = 0.95,
    margin: float = MARGIN,
    curtailed_at: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:
    """The second run's candidate arm against the first's, paired by (task, model).

    A run without a candidate arm is compared by its baseline; one with several candidates is a ValueError. Two
    runs of one model each are paired by task alone: which model does better is then what is asked. `curtailed_at`
    is the number of attempts that were planned of a run that stopped once its verdict was certain.
    """
    first, second = (
        _one_arm(frames.collect(records).tasks, planned)
        for records, planned in zip((records_a, records_b), curtailed_at, strict=True)
    )
    models = sorted({*first["model"].unique(), *second["model"].unique()})
    by_model = first["model"].nunique() > 1 or second["model"].nunique() > 1
    if not by_model:
        first, second = (tasks.assign(model=" / ".join(models)) for tasks in (first, second))
    joined = pd.concat([first.assign(arm="a"), second.assign(arm="b")], ignore_index=True)
    paired = comparison.units(joined, candidate="b", baseline="a")
    compared = comparison.compare_units(paired, level=level)
    if not compared.n_pairs:
        raise ValueError("no task was judged in both runs, so there is nothing to compare")
    curtailed = any(curtailed_at)
    if curtailed:
        made = Decision("inconclusive", "a run stopped once its verdict was certain", margin)
    else:
        errors = {"first-run": _errors(first), "second-run": _errors(second)}
        made = decision(compared.tasks_like_these, margin, errors)
    told = {
        **comparison.block(compared, curtailed=curtailed),
        "curtailed": curtailed,
        "first_run": {} if curtailed else _rates(paired, "baseline"),
        "second_run": {} if curtailed else _rates(paired, "candidate"),
        "decision": made.decision,
        "decision_reason": made.reason,
        "margin": margin,
        "models": models,
        "paired_by_model": by_model,
        "changes": [] if curtailed else comparison.changes(paired),
    }
    result: dict[str, Any] = clean(told)
    said = (
        sentences.found(result, "the second run", "the first"),
        _alone(compared.n_dropped),
        _left_out(curtailed_at),
        sentences.decided(result),
        sentences.power(result),
        sentences.simulated(result),
    )
    return {**result, "summary": " ".join(filter(None, said))}


def _one_arm(tasks: pd.DataFrame, planned: int | None) -> pd.DataFrame:
    arms = sorted(tasks["arm"].unique())
    candidates = [arm for arm in arms if is_candidate(arm)]
    if len(candidates) > 1:
        raise ValueError(f"a run has several candidates ({', '.join(candidates)}); compare runs of one")
    wanted = candidates[0] if candidates else BASELINE
    chosen = tasks[tasks["arm"] == wanted]
    return chosen if planned is None else early_stop.decided_only(chosen, planned)


def _rates(paired: pd.DataFrame, side: str) -> dict[str, float]:
    """What the differences are differences of: means over the tasks that both runs have."""
    both = comparison.in_both(paired)
    return {name: float(both[f"{side}_{column}"].mean()) for name, column in _RATES.items()}


def _errors(tasks: pd.DataFrame) -> ArmErrors:
    return ArmErrors(int(tasks["n"].sum()), int(tasks["n_errors"].sum()))


def _alone(dropped: int) -> str:
    if not dropped:
        return ""
    return f"Not judged in both runs, and so not in the difference by attempts: {dropped} of their tasks."


def _left_out(curtailed_at: tuple[int | None, int | None]) -> str:
    runs = [name for name, planned in zip(("first", "second"), curtailed_at, strict=True) if planned]
    if not runs:
        return ""
    which, whose = ("Both runs", "their") if len(runs) == 2 else (f"The {runs[0]} run", "its")
    return (
        f"{which} left out attempts that could not change {whose} verdict: only tasks passed can be compared."
    )
