"""Every number of one candidate against the baseline, with the verdict and the decision they lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from aggregate import (
    comparison,
    consistency_block,
    costs,
    early_stop,
    groups,
    panels,
    speedup_block,
    task_results,
    triggers,
)
from aggregate.comparison import Comparison
from aggregate.frames import Frames, collect, values
from aggregate.plain_text import plain
from aggregate.run_info import BASELINE, CandidateInfo, RunInfo
from aggregate.standard_json import DIGITS
from aggregate.stats import cost_weighted_advantage
from aggregate.verdict import ArmErrors, BaselineKind, Verdict, decision, error_reasons, verdict

_MESSAGE = 200
_SHOWN_DROPPED = 100
_SHOWN_FLAKY = 20
_UNEVEN = 1.2  # errors take a few attempts from an arm


@dataclass(frozen=True)
class Numbers:
    """The artifact's measured fields, and what is needed beside them to finish it."""

    fields: dict[str, Any]
    p_value: float
    warnings: tuple[str, ...]


def measure(
    info: RunInfo, frames: Frames, candidate: CandidateInfo, level: float, comparisons: int
) -> Numbers:
    """All fields of one candidate's artifact that come from records."""
    one = _Candidate(info, frames, candidate, level, comparisons)
    told = comparison.block(one.compared, curtailed=one.curtailed)
    gate = _verdict(one)
    baseline_results = task_results.results(frames.attempts, one.tasks, BASELINE, DIGITS)
    candidate_results = task_results.results(frames.attempts, one.tasks, one.arm, DIGITS)
    fields = {
        **{name: told[name] for name in ("execution_pass_rate", "baseline_pass_rate", "delta")},
        "verdict": gate.verdict,
        "reason": gate.reason,
        **_decision(one, gate),
        **told,
        **_counts(one),
        **_early_stop(one, told),
        "consistency": one.consistency,
        "cost": costs.block(info, frames.attempts, one.overall, costs.extra(one.both, told["attempt_delta"])),
        "cost_weighted_advantage": _weighted_advantage(one),
        "speedups": one.speedups,
        "judges": panels.block(_of(frames.judgments, one.arms), _of(frames.attempts, one.arms)),
        "triggers": triggers.block(frames.attempts, info.tasks, one.arm),
        "arms": one.overall,
        **_groupings(one, told),
        "changes": [] if one.curtailed else comparison.changes(one.paired, DIGITS),
        "candidate_results": task_results.with_intervals(candidate_results, baseline_results, level),
        "baseline_results": baseline_results,
    }
    p_value = fields["p_value"]
    return Numbers(fields, math.nan if p_value is None else p_value, (*gate.warnings, *_warnings(one)))


def unmeasured(info: RunInfo, candidate: CandidateInfo) -> dict[str, Any]:
    """The same fields for a candidate that was not run: every number is missing."""
    nothing = measure(info, collect([]), candidate, 0.95, 1).fields
    blank: dict[str, Any] = {name: [] if isinstance(value, list) else None for name, value in nothing.items()}
    below = candidate.score is not None and candidate.score < info.eval_threshold
    gate = verdict(None, None, candidate_score=candidate.score, eval_threshold=info.eval_threshold)
    blank["verdict"] = "skipped"
    blank["reason"] = gate.reason if below else "nothing was run"
    blank["curtailed"] = False
    return blank


class _Candidate:
    """One candidate's view of a run: what is compared, over which tasks."""

    def __init__(
        self, info: RunInfo, frames: Frames, candidate: CandidateInfo, level: float, comparisons: int
    ) -> None:
        self.info = info
        self.frames = frames
        self.candidate = candidate
        self.arm = candidate.arm
        self.level = level
        self.comparisons = comparisons
        self.curtailed = info.stop_early == "verdict"
        self.arms = groups.arms_of(self.arm, frames.attempts)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        if self.curtailed:
            return early_stop.decided_only(self.frames.tasks, self.info.pass_k)
        return self.frames.tasks

    @cached_property
    def all_units(self) -> pd.DataFrame:
        return comparison.units(self.tasks, self.arm)

    @cached_property
    def paired(self) -> pd.DataFrame:
        """An unfinished run has arms of different length, so only its pairs are comparable."""
        if self.info.unfinished and self.info.baseline != "none":
            return self.both
        return self.all_units

    @cached_property
    def both(self) -> pd.DataFrame:
        return comparison.in_both(self.all_units)

    @cached_property
    def dropped(self) -> list[dict[str, str]]:
        """Units of the plan or of the records that lack a judged attempt in an arm; none without a baseline."""
        if self.info.baseline == "none":
            return []
        kept = _units(self.both)
        known = _units(self.all_units)
        # Without a plan, as of merged runs, a task need not have been meant for every model.
        met = {task for task, _ in known} if self.info.planned_attempts is None else set()
        known |= {
            (task.id, model) for task in self.info.tasks for model in self.info.models if task.id not in met
        }
        return [{"task_id": task, "model": model} for task, model in sorted(known - kept)]

    @cached_property
    def compared(self) -> Comparison:
        return comparison.compare_units(self.paired, level=self.level, effect=self.info.effect)

    @cached_property
    def overall(self) -> dict[str, groups.Metrics]:
        return groups.overall(
            self.frames.attempts, self.tasks, self.arms, self.info.pass_k, curtailed=self.curtailed
        )

    @cached_property
    def errors(self) -> dict[str, ArmErrors]:
        arms = [self.arm] if self.info.baseline == "none" else [self.arm, BASELINE]
        return {arm: _arm_errors(self.info, self.frames.attempts, arm) for arm in arms}

    @cached_property
    def bounds(self) -> tuple[float, float] | None:
        if not self.curtailed or self.info.baseline == "none":
            return None
        return early_stop.delta_bounds(self.info, self.tasks, self.arm)

    @cached_property
    def sequential(self) -> early_stop.Sequential | None:
        if self.info.stop_early != "decision" or self.info.pass_k < 2 or self.info.baseline == "none":
            return None
        return early_stop.looks(self.info, self.frames.attempts, self.arm, self.comparisons)

    @cached_property
    def consistency(self) -> dict[str, dict[str, Any] | None]:
        return {
            arm: None if self.curtailed else consistency_block.block(self.frames.attempts, self.tasks, arm)
            for arm in self.arms
        }

    @cached_property
    def speedups(self) -> dict[str, Any] | None:
        return speedup_block.block(self.frames.measured, self.arms)


def _verdict(one: _Candidate) -> Verdict:
    info, bounds = one.info, one.bounds
    settled = bounds is not None and (bounds[0] >= 0 or bounds[1] < 0)
    return verdict(
        one.compared.candidate_rate,
        one.compared.baseline_rate,
        arms=one.errors,
        status=info.unfinished or "complete",
        why=info.why,
        weak_baseline="warn" if info.weak_baseline == "warn" else "fail",
        baseline_kind=_baseline_kind(info),
        no_baseline=info.baseline == "none",
        # A run that was cut off while its sign was open is an error by its status; bounds say nothing.
        delta_bounds=bounds if settled else None,
        n_pairs=one.compared.n_pairs,
    )


def _baseline_kind(info: RunInfo) -> BaselineKind:
    if info.models and all(model.partition(":")[0] == "mock" for model in info.models):
        return "mock"
    return "bare" if info.baseline == "bare" else "skill"


def _decision(one: _Candidate, gate: Verdict) -> dict[str, Any]:
    """The decision and why; missing when there is nothing to compare with."""
    if one.info.baseline == "none":
        return {"decision": None, "decision_reason": "there is no baseline to compare with"}
    if one.curtailed:
        return {"decision": "inconclusive", "decision_reason": "the run stopped once its verdict was certain"}
    if one.sequential is not None and not error_reasons(one.errors):
        return {"decision": one.sequential.decision, "decision_reason": one.sequential.reason}
    made = decision(one.compared.tasks_like_these, one.info.margin, one.errors)
    return {"decision": made.decision, "decision_reason": made.reason}


def _early_stop(one: _Candidate, told: dict[str, Any]) -> dict[str, Any]:
    """What belongs to runs that may stop early; the repeated interval takes the place of the plain one."""
    fields: dict[str, Any] = {
        "curtailed": one.curtailed,
        "delta_bounds": list(one.bounds) if one.bounds else None,
        "sequential": one.sequential.block if one.sequential else None,
    }
    if one.sequential is not None and one.sequential.interval is not None:
        repeated = one.sequential.interval
        fields["attempt_delta"] = repeated.estimate
        fields["interval"] = {
            **told["interval"],
            "level": repeated.level,
            "tasks_like_these": comparison.bounds(repeated),
            "exactly_this_suite": None,
            "repeated": True,
        }
        # Tests that know of one look only would claim too much after several.
        fields |= {"p_value": None, "p_value_greater": None, "mcnemar_p_value": None}
    return fields


def _counts(one: _Candidate) -> dict[str, Any]:
    """How many attempts there are, and which pairs could not be compared."""
    attempts = _of(one.frames.attempts, one.arms)
    dropped = one.dropped
    planned = one.info.planned_attempts
    made = int((one.frames.attempts["outcome"] != "skipped").sum())
    return {
        "n_dropped": len(dropped),
        "dropped_pairs": dropped[:_SHOWN_DROPPED],
        "attempts": {
            "planned": planned,
            "run": int((attempts["outcome"] != "skipped").sum()),
            "skipped": max(0, planned - made) if planned is not None else None,
            "cached": int(attempts["cached"].sum()),
            "by_arm": {
                arm: {
                    str(name): int(count)
                    for name, count in part["outcome"].value_counts().sort_index().items()
                }
                for arm, part in attempts.groupby("arm", sort=True)
            },
        },
        "errors": {arm: task_results.common_errors(attempts, arm) for arm in one.errors},
    }


def _groupings(one: _Candidate, told: dict[str, Any]) -> dict[str, Any]:
    """By model, tier and judge type: each arm's metrics, and the arms compared."""
    made: dict[str, Any] = {}
    left_out = groups.too_many(one.tasks)
    for name, column in groups.GROUPINGS.items():
        if name in left_out:
            made[name] = {}
            continue
        if (only := groups.only_one(column, one.frames.attempts, one.tasks)) is not None:
            made[name] = {only: {**told, "arms": one.overall}}
            continue
        arms = groups.by(
            column, one.frames.attempts, one.tasks, one.arms, one.info.pass_k, curtailed=one.curtailed
        )
        compared = groups.compared(
            column, one.paired, level=one.level, effect=one.info.effect, curtailed=one.curtailed
        )
        made[name] = {key: {**compared.get(key, {}), "arms": arms[key]} for key in arms}
    return made


def _arm_errors(info: RunInfo, attempts: pd.DataFrame, arm: str) -> ArmErrors:
    run = attempts[(attempts["arm"] == arm) & (attempts["outcome"] != "skipped")]
    failed = run[run["outcome"] == "error"]
    count = len(run)
    if info.stop_early == "verdict":
        # A stopped run answers for the full one, so its errors are weighed against all that was planned.
        count = max(count, len(info.tasks) * len(info.models) * info.pass_k)
    messages = tuple(plain(message, _MESSAGE) for message in failed["error"].dropna())
    return ArmErrors(count, len(failed), messages)


def _weighted_advantage(one: _Candidate) -> float | None:
    """Advantage per dollar: over the oracle where there are benchmarks, else of scores over the baseline."""
    if one.curtailed:
        return None
    advantage = speedup_block.mean_advantage(one.speedups, one.arm)
    if advantage is None:
        advantage = one.compared.score_delta
    return cost_weighted_advantage(advantage, one.overall.get(one.arm, {}).get("mean_cost_per_task"))


def _warnings(one: _Candidate) -> list[str]:
    dropped = len(one.dropped)
    found = [f"{dropped} pairs were dropped: no judged attempt in both arms"] if dropped else []
    found += _uneven(one)
    found += groups.too_many(one.tasks).values()
    for arm, block in one.consistency.items():
        words = consistency_block.flaky_words(block, _SHOWN_FLAKY)
        found += [f"flaky task {plain(word)} ({arm})" for word in words]
        if block is not None and (more := len(block["flaky_tasks"]) - len(words)):
            found.append(f"flaky tasks in {arm}: {more} more; see flaky_tasks")
    return found


def _uneven(one: _Candidate) -> list[str]:
    """Whoever has more attempts passes more tasks by luck, since one pass is enough."""
    mine, other = int(one.both["candidate_n_judged"].sum()), int(one.both["baseline_n_judged"].sum())
    if one.curtailed or max(mine, other) <= _UNEVEN * min(mine, other):
        return []
    words = f"{mine} judged attempts of {plain(one.arm)} against {other} of the baseline on the same tasks"
    return [f"{words}: more attempts pass more tasks; compare the attempts passed"]


def _units(paired: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(values(paired["task"]), values(paired["model"]), strict=True))


def _of(frame: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    return frame[frame["arm"].isin(arms)]
