"""Whether the skill was invoked when it should be, for tasks that say so and models that tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from aggregate.run_info import TaskInfo


def block(attempts: pd.DataFrame, tasks: Iterable[TaskInfo], arm: str) -> dict[str, Any] | None:
    """Share of attempts that did right by `should_trigger`, and which tasks did not; None when unknown."""
    wanted = {task.id: task.should_trigger for task in tasks if task.should_trigger is not None}
    mine = attempts[(attempts["arm"] == arm) & attempts["task"].isin(list(wanted))]
    mine = mine[mine["skill_invoked"].notna()]
    if mine.empty:
        return None
    invoked = mine["skill_invoked"] > 0
    expected = mine["task"].map(wanted).astype(bool)
    missed, false = mine[expected & ~invoked], mine[~expected & invoked]
    return {
        "n": len(mine),
        "rate": float((invoked == expected).mean()),
        "trigger_rate": _share(invoked[expected]),
        "false_trigger_rate": _share(invoked[~expected]),
        "missed": len(missed),
        "false_triggers": len(false),
        "missed_tasks": sorted(missed["task"].unique()),
        "false_trigger_tasks": sorted(false["task"].unique()),
    }


def _share(invoked: pd.Series[bool]) -> float:
    return float(invoked.mean()) if len(invoked) else float("nan")
