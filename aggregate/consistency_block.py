"""How steady an arm's repeated attempts are, as the artifact tells it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from aggregate.consistency import concept_overlap, consistency_of, flaky_text, spread_of
from aggregate.frames import values

_KEPT = (
    "n",
    "accuracy_std_dev",
    "accuracy_range",
    "consistency_score",
    "concept_overlap",
    "flaky_tasks",
    "flaky_by_sigma",
)


def block(attempts: pd.DataFrame, tasks: pd.DataFrame, arm: str) -> dict[str, Any] | None:
    """Spread over repeated attempts, with the range of each flaky task; None when nothing was repeated.

    With several models a task is named with its model. Per-task numbers of all others are in the tasks frame.
    """
    matched = _matched(attempts[(attempts["arm"] == arm) & attempts["score"].notna()])
    several = len({model for _, model in matched}) > 1
    repeated = tasks[(tasks["arm"] == arm) & (tasks["n_scored"] >= 2)]
    numbers = (repeated[name].tolist() for name in ("n_scored", "accuracy_std_dev", "accuracy_range"))
    columns = (values(repeated["task"]), values(repeated["model"]), *numbers)
    found = consistency_of(
        {
            f"{task} ({model})" if several else task: spread_of(
                n, std, spread, concept_overlap(matched[task, model])
            )
            for task, model, n, std, spread in zip(*columns, strict=True)
        }
    )
    if found is None:
        return None
    agreeing = found["unseen_bound"]
    flaky = {task: found["tasks"][task] for task in found["flaky_tasks"]}
    return {
        **{name: found[name] for name in _KEPT},
        "ranges": {task: spread["range"] for task, spread in flaky.items()},
        "attempts": {task: spread["n"] for task, spread in flaky.items()},
        "unseen_bound": {"tasks": len(agreeing), "bound": max(agreeing.values(), default=math.nan)},
    }


def _matched(scored: pd.DataFrame) -> dict[tuple[str, str], list[Iterable[str]]]:
    """What the attempts of each (task, model) matched."""
    found: dict[tuple[str, str], list[Iterable[str]]] = {}
    columns = (values(scored[name]) for name in ("task", "model", "matched"))
    for task, model, matched in zip(*columns, strict=True):
        found.setdefault((task, model), []).append(matched)
    return found


def flaky_words(found: dict[str, Any] | None, most: int) -> list[str]:
    """Flaky tasks with their range, at most so many: "a: range 35 points over 5 attempts"."""
    if found is None:
        return []
    shown = found["flaky_tasks"][:most]
    return [f"{task}: {flaky_text(found['ranges'][task], found['attempts'][task])}" for task in shown]
