"""What a run that may stop early can claim: the looks it took, repeated from its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from aggregate.artifact import comparison
from aggregate.artifact.sentences import words
from aggregate.formulas.intervals import MOST_SURE, Interval, fixed_suite_interval
from aggregate.formulas.stopping_rules import ALPHA, DecisionLook, look_at_decision, plan_looks
from aggregate.formulas.verdict import Decision, Reason
from aggregate.records import frames
from aggregate.records.run_info import BASELINE, RunInfo

_OF_A_LOOK = ("round", "spent_alpha", "conditional_power", "stop")


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
    plan = plan_looks(info.pass_k, ALPHA / comparisons)
    taken: list[DecisionLook] = []
    suite = last = None
    for number in range(1, _finished_rounds(info, attempts, arm) + 1):
        so_far = frames.task_frame(attempts[attempts["attempt"] <= number])
        both = comparison.in_both(comparison.units(so_far, arm))
        counts, tasks = comparison.counts(both), frames.values(both["task"])
        last = look_at_decision(plan, number, *counts, tasks=tasks, effect=info.effect, margin=info.margin)
        taken.append(last)
        suite = fixed_suite_interval(*counts, level=min(last.interval.level, MOST_SURE))
        if last.stop:
            break
    reasons = last.reasons if last else (Reason("no_round"),)
    return Sequential(
        block={
            "mode": "decision",
            "effect": info.effect,
            "plan": [vars(look) for look in plan],
            "looks": [
                {
                    **vars(look.interval),
                    **{name: getattr(look, name) for name in _OF_A_LOOK},
                    "reason": words(look.reasons),
                }
                for look in taken
            ],
            "stopped_after": last.round if last and last.stop else None,
            "spent_alpha": last.spent_alpha if last else 0.0,
        },
        interval=last.interval if last else None,
        suite_interval=suite,
        decision=Decision((last and last.decision) or "inconclusive", reasons),
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


def settled(info: RunInfo, attempts: pd.DataFrame) -> tuple[bool, str]:
    """Whether a run may stop after this round by its statistics, for all its candidates, and why or why not."""
    comparisons = len(info.ran) + info.baseline_reuse_count - 1
    reasons = []
    for candidate in info.ran:
        taken = looks(info, attempts, candidate.arm, comparisons)
        if taken.block["stopped_after"] is None:
            return False, words(taken.decision.reasons)
        reasons.append(words(taken.decision.reasons))
    return True, "; ".join(dict.fromkeys(reasons))
