"""What a run that may stop early can claim: the looks it took, repeated from its records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from aggregate.artifact import comparison
from aggregate.formulas.intervals import MOST_SURE, Interval, fixed_suite_interval
from aggregate.formulas.stopping_rules import DecisionLook, look_at_decision, plan_looks
from aggregate.formulas.verdict import Decision, Reason
from aggregate.records import frames
from aggregate.records.run_info import BASELINE, RunInfo


@dataclass(frozen=True)
class Sequential:
    """The looks of a `--stop-early` run and what the last of them says."""

    block: dict[str, Any]
    interval: Interval | None
    suite_interval: Interval | None
    decision: Decision


def looks(info: RunInfo, attempts: pd.DataFrame, arm: str, comparisons: int = 1) -> Sequential:
    """Repeat the looks of a group-sequential run from its records, one after each finished round.

    Alpha is shared out among `comparisons`. Attempts after the look that stopped the run decide nothing.
    """
    plan = plan_looks(info.pass_k, 0.025 / comparisons)
    taken: list[DecisionLook] = []
    suite = None
    for number in range(1, _finished_rounds(info, attempts, arm) + 1):
        so_far = frames.task_frame(attempts[attempts["attempt"] <= number])
        both = comparison.in_both(comparison.units(so_far, arm))
        counts = comparison.counts(both)
        taken.append(
            look_at_decision(
                plan,
                number,
                *counts,
                tasks=frames.values(both["task"]),
                effect=info.effect,
                margin=info.margin,
            )
        )
        suite = fixed_suite_interval(*counts, level=min(taken[-1].interval.level, MOST_SURE))
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
        suite_interval=suite,
        decision=Decision(
            (last.decision if last else None) or "inconclusive",
            last.reasons if last else (Reason("no_round"),),
        ),
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
    comparisons = len(info.ran) + info.baseline_reuse_count - 1
    reasons = []
    for candidate in info.ran:
        found = looks(info, attempts, candidate.arm, comparisons)
        if found.block["stopped_after"] is None:
            return False, found.decision.reason
        reasons.append(found.decision.reason)
    return True, "; ".join(dict.fromkeys(reasons))
