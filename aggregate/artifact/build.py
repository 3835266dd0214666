"""Build the artifacts of a run from its records: every number of each candidate against the baseline, and the verdict.

The same records and run info give the same bytes, whenever and in whatever order they are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from aggregate.artifact import blocks, comparison, costs, file, sentences, sequential, task_results
from aggregate.artifact.comparison import Comparison
from aggregate.artifact.model import SCHEMA_VERSION, Artifact
from aggregate.formulas.rates import cost_weighted_advantage
from aggregate.formulas.significance import holm
from aggregate.formulas.verdict import (
    ArmErrors,
    BaselineKind,
    DecisionName,
    Verdict,
    decision,
    decision_level,
    error_reasons,
    verdict,
)
from aggregate.records.frames import Frames, collect, values
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, CandidateInfo, RunInfo
from aggregate.text.formats import DIGITS, clean, plain, rounded

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
    told = comparison.block(one.compared)
    gate = _verdict(one)
    baseline_results = task_results.results(frames.attempts, one.tasks, BASELINE, DIGITS)
    candidate_results = task_results.results(frames.attempts, one.tasks, one.arm, DIGITS)
    grouped = _groupings(one, told)
    gain = costs.extra(one.both, told["attempt_delta"])
    fields = {
        **{name: told[name] for name in ("execution_pass_rate", "baseline_pass_rate", "delta")},
        "verdict": gate.verdict,
        "reason": gate.reason,
        **_decisions(one),
        **told,
        **_counts(one),
        **_early_stop(one, told),
        "consistency": one.consistency,
        "cost": costs.costs_block(info, frames.attempts, one.overall, grouped, gain),
        "cost_weighted_advantage": _weighted_advantage(one),
        "efficiency": _efficiency(one),
        "speedups": one.speedups,
        "judges": blocks.panels_block(_of(frames.judgments, one.arms), _of(frames.attempts, one.arms)),
        "served": one.served,
        "skill_loads": one.loads,
        "triggers": blocks.triggers_block(frames.attempts, info.tasks, one.arm),
        "arms": one.overall,
        **grouped,
        "changes": comparison.changes(one.paired, DIGITS),
        "candidate_results": task_results.with_intervals(candidate_results, baseline_results, level),
        "baseline_results": baseline_results,
    }
    p_value = fields["p_value"]
    return Numbers(fields, math.nan if p_value is None else p_value, (*gate.warnings, *_warnings(one)))


def unmeasured(info: RunInfo, candidate: CandidateInfo) -> dict[str, Any]:
    """The same fields for a candidate that was not run: every number is missing."""
    gate = verdict(None, None, candidate_score=candidate.score, eval_threshold=info.eval_threshold)
    return {
        **{name: field.get_default() for name, field in Artifact.model_fields.items()},
        "verdict": candidate.verdict or "skipped",
        "reason": candidate.reason or (gate.reason if info.is_below(candidate) else "nothing was run"),
    }


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
        self.arms = task_results.arms_of(self.arm, frames.attempts)

    @property
    def tasks(self) -> pd.DataFrame:
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
    def overall(self) -> dict[str, task_results.Metrics]:
        return task_results.overall(self.frames.attempts, self.tasks, self.arms, self.info.pass_k)

    @cached_property
    def errors(self) -> dict[str, ArmErrors]:
        arms = [self.arm] if self.info.baseline == "none" else [self.arm, BASELINE]
        return {arm: _arm_errors(self.frames.attempts, arm) for arm in arms}

    @cached_property
    def sequential(self) -> sequential.Sequential | None:
        if not self.info.stop_early or self.info.pass_k < 2 or self.info.baseline == "none":
            return None
        return sequential.looks(self.info, self.frames.attempts, self.arm, self.comparisons)

    @cached_property
    def consistency(self) -> dict[str, dict[str, Any] | None]:
        return {arm: blocks.consistency_block(self.frames.attempts, self.tasks, arm) for arm in self.arms}

    @cached_property
    def served(self) -> blocks.Served:
        return blocks.served_block(self.frames.attempts, self.arms)

    @cached_property
    def loads(self) -> blocks.Loads:
        """A bare model has no skill to load, whatever its records say."""
        arms = [self.arm, *([BASELINE] if self.info.baseline == "skill" else [])]
        return blocks.loads(self.frames.attempts, self.info.tasks, arms)

    @cached_property
    def speedups(self) -> dict[str, Any] | None:
        return blocks.speedup_block(self.frames.measured, self.arms)


def _verdict(one: _Candidate) -> Verdict:
    info = one.info
    return verdict(
        one.compared.candidate_rate,
        one.compared.baseline_rate,
        arms=one.errors,
        status=info.unfinished or "complete",
        why=info.why,
        weak_baseline=info.weak_baseline,
        baseline_kind=_baseline_kind(info),
        no_baseline=info.baseline == "none",
        n_pairs=one.compared.n_pairs,
    )


def _baseline_kind(info: RunInfo) -> BaselineKind:
    if info.models and all(model.partition(":")[0] == "mock" for model in info.models):
        return "mock"
    return "bare" if info.baseline == "bare" else "skill"


def _decisions(one: _Candidate) -> dict[str, Any]:
    """What is decided for tasks like these and for exactly this suite, and why; missing without a baseline."""
    if one.info.baseline == "none":
        return _told(None, "there is no baseline to compare with")
    if one.info.status == "weak_baseline":
        return _told("inconclusive", "the run ended once its baseline was too weak")
    made = decision(one.compared.tasks_like_these, one.info.margin, one.errors)
    name, reason = made.decision, made.reason
    suite_interval = one.compared.exactly_this_suite
    if one.sequential is not None:
        suite_interval = one.sequential.suite_interval or suite_interval
        if not error_reasons(one.errors):
            name, reason = one.sequential.decision, one.sequential.reason
    suite = decision(suite_interval, one.info.margin, one.errors)
    missed = None
    if suite.decision == "inconclusive" and len(one.both):
        missed = comparison.could_miss(one.both, suite_interval, one.info.pass_k)
    return {
        **_told(name, reason),
        "suite_decision": suite.decision,
        "suite_decision_reason": suite.reason,
        "could_miss": missed,
    }


def _told(name: DecisionName | None, reason: str) -> dict[str, Any]:
    told = {"decision": name, "decision_reason": reason}
    return told | {f"suite_{field}": value for field, value in told.items()} | {"could_miss": None}


def _early_stop(one: _Candidate, told: dict[str, Any]) -> dict[str, Any]:
    """What belongs to runs that may stop early; the repeated interval takes the place of the plain one."""
    fields: dict[str, Any] = {
        "sequential": one.sequential.block if one.sequential else None,
    }
    if one.sequential is not None and one.sequential.interval is not None:
        repeated = one.sequential.interval
        fields["attempt_delta"] = repeated.estimate
        fields["interval"] = {
            **told["interval"],
            "level": repeated.level,
            "tasks_like_these": comparison.bounds(repeated),
            "exactly_this_suite": comparison.bounds(one.sequential.suite_interval or repeated),
            "repeated": True,
        }
        # Tests that know of one look only would claim too much after several.
        fields |= dict.fromkeys(comparison.P_VALUES)
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
    left_out = task_results.too_many(one.tasks)
    for name, column in task_results.GROUPINGS.items():
        if name in left_out:
            made[name] = {}
            continue
        if (only := task_results.only_one(column, one.frames.attempts, one.tasks)) is not None:
            made[name] = {only: {**told, "arms": one.overall}}
            continue
        arms = task_results.by(column, one.frames.attempts, one.tasks, one.arms, one.info.pass_k)
        compared = task_results.compared(column, one.paired, level=one.level, effect=one.info.effect)
        made[name] = {key: {**compared.get(key, {}), "arms": arms[key]} for key in arms}
    if one.sequential is not None:
        # A group has no looks of its own, and numbers that know of a single look would claim too much.
        unknown = dict.fromkeys(("interval", *comparison.P_VALUES))
        for groups_of in made.values():
            for group in groups_of.values():
                group |= unknown
    return made


def _arm_errors(attempts: pd.DataFrame, arm: str) -> ArmErrors:
    run = attempts[(attempts["arm"] == arm) & (attempts["outcome"] != "skipped")]
    failed = run[run["outcome"] == "error"]
    messages = tuple(plain(message, _MESSAGE) for message in failed["error"].dropna())
    return ArmErrors(len(run), len(failed), messages)


def _weighted_advantage(one: _Candidate) -> float | None:
    """Advantage per dollar: over the oracle where there are benchmarks, else of scores over the baseline."""
    advantage = blocks.mean_advantage(one.speedups, one.arm)
    if advantage is None:
        advantage = one.compared.score_delta
    return cost_weighted_advantage(advantage, one.overall.get(one.arm, {}).get("mean_cost_per_task"))


def _efficiency(one: _Candidate) -> dict[str, Any] | None:
    """None without a baseline."""
    if one.info.baseline == "none":
        return None
    return costs.efficiency_block(one.frames.attempts, one.arm, one.level)


def _warnings(one: _Candidate) -> list[str]:
    dropped = len(one.dropped)
    found = [f"{dropped} pairs were dropped: no judged attempt in both arms"] if dropped else []
    found += _uneven(one)
    found += _answered_by_others(one)
    found += blocks.never_loaded(one.loads, {one.arm: "the candidate", BASELINE: "the baseline"})
    found += task_results.too_many(one.tasks).values()
    for arm, block in one.consistency.items():
        words = blocks.flaky_words(block, _SHOWN_FLAKY)
        found += [f"flaky task {plain(word)} ({arm})" for word in words]
        if block is not None and (more := len(block["flaky_tasks"]) - len(words)):
            found.append(f"flaky tasks in {arm}: {more} more; see flaky_tasks")
    return found


def _uneven(one: _Candidate) -> list[str]:
    """Whoever has more attempts passes more tasks by luck, since one pass is enough."""
    mine, other = int(one.both["candidate_n_judged"].sum()), int(one.both["baseline_n_judged"].sum())
    if max(mine, other) <= _UNEVEN * min(mine, other):
        return []
    words = f"{mine} judged attempts of {plain(one.arm)} against {other} of the baseline on the same tasks"
    return [f"{words}: more attempts pass more tasks; compare the attempts passed"]


def _answered_by_others(one: _Candidate) -> list[str]:
    """An alias that moved, or a baseline of last week, is compared all the same, but not without a word."""
    baseline = one.frames.attempts["arm"] == BASELINE
    cached = one.frames.attempts["cached"][baseline].any()
    other = (BASELINE, "the baseline, which is cached" if cached else "the baseline")
    return blocks.served_differences(one.served, (one.arm, "the candidate"), other)


def _units(paired: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(values(paired["task"]), values(paired["model"]), strict=True))


def _of(frame: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    return frame[frame["arm"].isin(arms)]


def build(info: RunInfo, records: Iterable[AttemptRecord]) -> list[Artifact]:
    """One artifact per candidate, in the order of `info.candidates`; records are read once and not kept."""
    return from_frames(info, collect(records, info.tasks))


def from_frames(info: RunInfo, frames: Frames) -> list[Artifact]:
    """The artifacts of records that are frames already."""
    ran = info.ran
    # Earlier runs that were compared with the same cached baseline are looks at it too.
    comparisons = max(1, len(ran)) + info.baseline_reuse_count - 1
    level = decision_level(comparisons)
    numbers = {one.arm: measure(info, frames, one, level, comparisons) for one in ran}
    adjusted = holm([numbers[one.arm].p_value for one in ran], comparisons)
    by_arm = {one.arm: p_value for one, p_value in zip(ran, adjusted, strict=True)}
    return [
        _artifact(info, frames, one, numbers.get(one.arm), by_arm.get(one.arm), comparisons)
        for one in info.candidates
    ]


def _artifact(
    info: RunInfo,
    frames: Frames,
    candidate: CandidateInfo,
    numbers: Numbers | None,
    adjusted: float | None,
    comparisons: int,
) -> Artifact:
    measured = numbers.fields if numbers is not None else unmeasured(info, candidate)
    fields = {
        **measured,
        "schema_version": SCHEMA_VERSION,
        "run_id": info.run_id,
        "stage": "evaluated",
        "status": info.status,
        "created_at": info.created_at,
        "lane": info.lane,
        "source_run_id": info.source_run_id,
        "source_ranking_artifact": info.source_ranking_artifact,
        "skill_id": info.skill_id,
        "task_suite": info.task_suite,
        "pass_k": info.pass_k,
        "models": list(info.models),
        "simulated": any(map(sentences.is_simulated, info.models)),
        "arm": candidate.arm,
        "candidate_id": candidate.candidate_id,
        "candidate_score": candidate.score,
        "p_value_adjusted": adjusted,
        "comparisons": comparisons,
        "baseline": info.baseline,
        "baseline_reuse_count": info.baseline_reuse_count,
        "stop_early": "decision" if info.stop_early else None,
        "rejudged_from": info.rejudged_from,
        "baseline_run_id": info.baseline_run_id,
        "margin": info.margin,
        "gate": info.gate,
        "gate_cost": info.gate_cost,
        "weak_baseline": info.weak_baseline,
        "eval_threshold": info.eval_threshold,
        "warnings": [*info.warnings, *(numbers.warnings if numbers else ()), *frames.warnings],
        "environment": _environment(info, frames),
        "truth_anchor": None,
    }
    artifact = Artifact.model_validate(clean(fields, DIGITS))
    summary = " ".join(sentences.summary(artifact))
    return file.with_pipeline_fields(artifact.model_copy(update={"summary": summary}))


def _environment(info: RunInfo, frames: Frames) -> dict[str, Any]:
    """What the run says of where it ran, with wall time and speed: the run's, not this process's."""
    made = int((~frames.attempts["cached"]).sum())
    speed = made / info.wall_seconds if info.wall_seconds else None
    return {"wall_seconds": info.wall_seconds, "attempts_per_second": rounded(speed, 3), **info.environment}
