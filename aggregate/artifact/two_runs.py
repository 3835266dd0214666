"""Compare two runs of one suite: the second's candidate with the first's, task by task."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from aggregate.artifact import blocks, comparison, sentences
from aggregate.artifact.model import RunsCompared
from aggregate.formulas.verdict import MARGIN, ArmErrors, decision
from aggregate.records import frames, metrics
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, is_candidate
from aggregate.text.formats import clean, plain

_RUNS = ("first", "second")


def compare(
    records_a: Iterable[AttemptRecord],
    records_b: Iterable[AttemptRecord],
    *,
    level: float = 0.95,
    margin: float = MARGIN,
) -> RunsCompared:
    """The second run's candidate arm against the first's, over the (task, model) units that both have judged.

    A run without a candidate arm is compared by its baseline; one with several candidates is a ValueError. Two
    runs of one model each are paired by task alone: which model does better is then what is asked.
    """
    arms, sides, attempts = zip(
        *(_one_arm(frames.collect(records)) for records in (records_a, records_b)), strict=True
    )
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
    errors = {
        f"{name}-run": ArmErrors(int(tasks["n"].sum()), int(tasks["n_errors"].sum()))
        for name, tasks in zip(_RUNS, sides, strict=True)
    }
    decided = decision(compared.tasks_like_these, margin, errors)
    fields = {
        **compared.fields,
        "n_dropped": len(paired) - len(both),
        "first_run": _rates(both, "baseline"),
        "second_run": _rates(both, "candidate"),
        "decision": decided.decision,
        "decision_reason": sentences.words(decided.reasons),
        "margin": margin,
        "models": models,
        "paired_by_model": by_model,
        "changes": comparison.changes(both),
    }
    result = RunsCompared.model_validate(clean(fields))
    summary = (
        *(_stands_in(name, arm) for name, arm in zip(_RUNS, arms, strict=True)),
        sentences.found(result, "the second run", "the first"),
        _alone(result),
        sentences.decided(result),
        sentences.power(result),
        sentences.simulated(result),
        *(f"{warning}." for warning in _served(attempts)),
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


def _served(attempts: Iterable[pd.DataFrame]) -> list[str]:
    both = pd.concat([one.assign(arm=name) for one, name in zip(attempts, _RUNS, strict=True)])
    told = blocks.served_block(both, list(_RUNS))
    return blocks.served_differences(told, ("second", "the second run"), ("first", "the first"))


def _rates(both: pd.DataFrame, side: str) -> dict[str, float]:
    """What the differences are differences of: means over the tasks for which both runs have a number."""
    return {
        name: both.dropna(subset=[f"candidate_{column}", f"baseline_{column}"])[f"{side}_{column}"].mean()
        for name, column in metrics.COMPARED.items()
    }


def _stands_in(name: str, arm: str) -> str:
    return f"The {name} run has no candidate: its baseline is compared." if arm == BASELINE else ""


def _alone(result: RunsCompared) -> str:
    if not result.n_dropped:
        return ""
    return f"Left out, as not judged in both runs: {sentences.cells(result, result.n_dropped)}."
