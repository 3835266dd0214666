"""What a run that may stop early can claim: bounds on its delta, or the looks it took."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from aggregate import comparison, frames
from aggregate.run_info import BASELINE, RunInfo
from aggregate.stats import Interval
from aggregate.stopping import DecisionLook, TaskProgress, look_at_decision, look_at_verdict, plan_looks
from aggregate.verdict import DecisionName


@dataclass(frozen=True)
class Sequential:
    """The looks of a `--stop-early decision` run and what the last of them says."""

    block: dict[str, Any]
    interval: Interval | None
    decision: DecisionName
    reason: str


def decided_only(tasks: pd.DataFrame, pass_k: int) -> pd.DataFrame:
    """The tasks frame with `passed` missing where further attempts could still change it."""
    undecided = (tasks["passes"] == 0) & (tasks["n_judged"] < pass_k)
    return tasks.assign(passed=tasks["passed"].mask(undecided))


def delta_bounds(info: RunInfo, tasks: pd.DataFrame, arm: str) -> tuple[float, float]:
    """Between which values delta would end, however the attempts that were left out had gone."""
    look = look_at_verdict(_progress(info, tasks, arm), _progress(info, tasks, BASELINE))
    return look.delta_bounds


def _progress(info: RunInfo, tasks: pd.DataFrame, arm: str) -> list[TaskProgress]:
    mine = tasks[tasks["arm"] == arm]
    made = {
        (row.task, row.model): TaskProgress(
            passed=row.passes > 0, judged=int(row.n_judged), remaining=max(0, info.pass_k - int(row.n))
        )
        for row in frames.named_rows(mine)
    }
    for task in info.tasks:
        for model in info.models:
            made.setdefault((task.id, model), TaskProgress(passed=False, judged=0, remaining=info.pass_k))
    return [made[unit] for unit in sorted(made)]


def looks(info: RunInfo, attempts: pd.DataFrame, arm: str, comparisons: int = 1) -> Sequential:
    """Repeat the looks of a group-sequential run from its records, one after each finished round.

    Alpha is shared out among `comparisons`. Attempts after the look that stopped the run decide nothing.
    """
    plan = plan_looks(info.pass_k, 0.025 / comparisons)
    taken: list[DecisionLook] = []
    for number in range(1, _finished_rounds(info, attempts, arm) + 1):
        so_far = frames.task_frame(attempts[attempts["attempt"] <= number])
        both = comparison.in_both(comparison.units(so_far, arm))
        counts = comparison.counts(both)
        taken.append(look_at_decision(plan, number, *counts, effect=info.effect, margin=info.margin))
        if taken[-1].stop:
            break
    last = taken[-1] if taken else None
    return Sequential(
        block={
            "mode": "decision",
            "effect": info.effect,
            "plan": [
                {"round": look.round, "spent_alpha": look.spent_alpha, "bound": look.bound} for look in plan
            ],
            "looks": [_look(look) for look in taken],
            "stopped_after": last.round if last and last.stop else None,
            "spent_alpha": last.spent_alpha if last else 0.0,
        },
        interval=last.interval if last else None,
        decision=(last.decision if last else None) or "inconclusive",
        reason=last.reason if last else "no round of attempts was finished",
    )


def _finished_rounds(info: RunInfo, attempts: pd.DataFrame, arm: str) -> int:
    """How many rounds have a record for every task in both arms."""
    mine = attempts[attempts["arm"].isin([arm, BASELINE]) & (attempts["outcome"] != "skipped")]
    per_round = mine.groupby("attempt").size()
    planned = 2 * len(info.tasks) * len(info.models) or int(per_round.get(1, 0))
    finished = 0
    while finished < info.pass_k and planned and per_round.get(finished + 1, 0) >= planned:
        finished += 1
    return finished


def _look(look: DecisionLook) -> dict[str, Any]:
    return {
        "round": look.round,
        "estimate": look.interval.estimate,
        "low": look.interval.low,
        "high": look.interval.high,
        "level": look.interval.level,
        "spent_alpha": look.spent_alpha,
        "conditional_power": None if math.isnan(look.conditional_power) else look.conditional_power,
        "stop": look.stop,
        "reason": look.reason,
    }


def settled(info: RunInfo, attempts: pd.DataFrame) -> tuple[bool, str]:
    """Whether a run may stop after this round by its statistics, for all its candidates, and why or why not."""
    comparisons = len(info.candidates) + info.baseline_reuse_count - 1
    reasons = []
    for candidate in info.candidates:
        found = looks(info, attempts, candidate.arm, comparisons)
        if found.block["stopped_after"] is None:
            return False, found.reason
        reasons.append(found.reason)
    return True, "; ".join(dict.fromkeys(reasons))
