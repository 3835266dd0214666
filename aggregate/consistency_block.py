"""How steady an arm's repeated attempts are, as the artifact tells it."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from aggregate.consistency import Repeats, consistency_of, flaky_text
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


def block(attempts: pd.DataFrame, arm: str) -> dict[str, Any] | None:
    """Spread over repeated attempts, with the range of each flaky task; None when nothing was repeated.

    With several models a task is named with its model. Per-task numbers of all others are in the tasks frame.
    """
    scored = attempts[(attempts["arm"] == arm) & attempts["score"].notna()]
    several = scored["model"].nunique() > 1
    columns = (values(scored[name]) for name in ("task", "model", "score", "matched"))
    repeats: dict[str, Repeats] = {}
    for task, model, score, matched in zip(*columns, strict=True):
        accuracies, found_items = repeats.setdefault(f"{task} ({model})" if several else task, ([], []))
        accuracies.append(100 * score)
        found_items.append(matched)
    found = consistency_of(repeats)
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


def flaky_words(found: dict[str, Any] | None) -> list[str]:
    """Each flaky task with its range: "a: range 35 points over 5 attempts"."""
    if found is None:
        return []
    return [
        f"{task}: {flaky_text(spread, found['attempts'][task])}" for task, spread in found["ranges"].items()
    ]
