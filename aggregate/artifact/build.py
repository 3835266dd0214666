"""Build the artifacts of a run from its records: every number of each candidate against the baseline, and the verdict.

The same records and run info give the same bytes, whenever and in whatever order they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from aggregate.artifact import answer, blocks, comparison, diagnosis, file, sentences
from aggregate.artifact.comparison import Comparison
from aggregate.artifact.model import SCHEMA_VERSION, Artifact
from aggregate.formulas.intervals import MOST_SURE, Interval, fixed_suite_interval
from aggregate.formulas.power_and_stopping import ALPHA, DecisionLook, look_at_decision, plan_looks
from aggregate.formulas.rates import cost_weighted_advantage
from aggregate.formulas.significance import holm
from aggregate.formulas.verdict import (
    ArmErrors,
    Decision,
    Reason,
    Verdict,
    decision,
    decision_level,
    error_reasons,
    verdict,
)
from aggregate.records.frames import Frames, collect, task_frame, values
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE, CANDIDATE, ORACLE, CandidateInfo, RunInfo
from aggregate.text.formats import DIGITS, clean, plain, rounded

_OF_A_LOOK = ("round", "spent_alpha", "conditional_power", "stop")
_MESSAGE = 200
_SHOWN_DROPPED = 100
_SHOWN_ERRORS = 3
_SHOWN_FLAKY = 10
_NAME = 40
_UNEVEN = 1.2  # errors take a few attempts from an arm


def build(info: RunInfo, records: Iterable[AttemptRecord]) -> list[Artifact]:
    """One artifact per candidate, in the order of `info.candidates`; records are read once and not kept."""
    return from_frames(info, collect(records, info.tasks))


def from_frames(info: RunInfo, frames: Frames) -> list[Artifact]:
    """The artifacts of records that are frames already."""
    # Earlier runs that were compared with the same cached baseline are looks at it too.
    comparisons = max(1, len(info.ran)) + info.baseline_reuse_count - 1
    level = decision_level(comparisons)
    measured = {
        candidate.arm: _measured(_Candidate(info, frames, candidate.arm, level, comparisons))
        for candidate in info.ran
    }
    adjusted = holm([fields["p_value"] for fields in measured.values()], comparisons)
    for fields, p_value in zip(measured.values(), adjusted, strict=True):
        fields |= {"p_value_adjusted": p_value}
    fresh = int((~frames.attempts["cached"]).sum())
    speed = fresh / info.wall_seconds if info.wall_seconds else None
    shared = {
        **{name: field.get_default() for name, field in Artifact.model_fields.items()},
        **info.model_dump(include=set(Artifact.model_fields)),
        "schema_version": SCHEMA_VERSION,
        "simulated": any(map(sentences.is_simulated, info.models)),
        "comparisons": comparisons,
        "stop_early": "decision" if info.stop_early else None,
        "environment": {
            # The run's own time and speed, not this process's.
            "wall_seconds": info.wall_seconds,
            "attempts_per_second": rounded(speed, 3),
            **info.environment,
        },
    }
    return [
        _artifact(shared, frames, candidate, measured.get(candidate.arm) or _unmeasured(info, candidate))
        for candidate in info.candidates
    ]


def _artifact(
    shared: dict[str, Any], frames: Frames, candidate: CandidateInfo, fields: dict[str, Any]
) -> Artifact:
    own = {
        "arm": candidate.arm,
        "candidate_id": candidate.candidate_id,
        "candidate_score": candidate.score,
        "quoting_tasks": candidate.quoting,
        "warnings": [*shared["warnings"], *fields.get("warnings", ()), *frames.warnings],
    }
    artifact = Artifact.model_validate(clean({**shared, **fields, **own}, DIGITS))
    artifact = artifact.model_copy(update={"diagnosis": diagnosis.causes(artifact)})
    said = answer.answer_of(artifact)
    summary = ". ".join([said.headline, *(line.text for line in said.lines)])
    return file.with_pipeline_fields(artifact.model_copy(update={"answer": said, "summary": summary}))


def _unmeasured(info: RunInfo, candidate: CandidateInfo) -> dict[str, Any]:
    """The fields of a candidate that was not run."""
    gate = verdict(None, None, candidate_score=candidate.score, eval_threshold=info.eval_threshold)
    if info.is_below(candidate):
        reasons = gate.reasons
    elif candidate.reason:
        reasons = (Reason("cannot_be_run", {"why": candidate.reason}),)
    else:
        reasons = (Reason("not_run"),)
    return {"verdict": candidate.verdict or "skipped", **_reason(reasons)}


def _reason(reasons: Sequence[Reason]) -> dict[str, Any]:
    return {"reason": sentences.words(reasons), "reason_codes": [reason.code for reason in reasons]}


@dataclass
class _Candidate:
    """One candidate's view of a run: what is compared, over which tasks."""

    info: RunInfo
    frames: Frames
    arm: str
    level: float
    comparisons: int

    @cached_property
    def arms(self) -> list[str]:
        """The candidate, the baseline and, where it ran, the oracle."""
        oracle = [ORACLE] if (self.frames.attempts["arm"] == ORACLE).any() else []
        return [self.arm, BASELINE, *oracle]

    @cached_property
    def all_units(self) -> pd.DataFrame:
        return comparison.units(self.frames.tasks, self.arm)

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
        """The power is that of the interval in use: of a run that may stop early, that of its last look."""
        asked = {"level": self.level, "effect": self.info.effect}
        if self.sequential is not None:
            asked["power_level"] = self.sequential.block["plan"][-1]["level"]
        return comparison.compare_units(self.paired, **asked)

    @cached_property
    def overall(self) -> dict[str, comparison.Metrics]:
        return comparison.overall(self.frames.attempts, self.frames.tasks, self.arms, self.info.pass_k)

    @cached_property
    def errors(self) -> dict[str, ArmErrors]:
        arms = [self.arm] if self.info.baseline == "none" else [self.arm, BASELINE]
        return {arm: _arm_errors(self.frames.attempts, arm) for arm in arms}

    @cached_property
    def sequential(self) -> Sequential | None:
        if not self.info.stop_early or self.info.pass_k < 2 or self.info.baseline == "none":
            return None
        return looks(self.info, self.frames.attempts, self.arm, self.comparisons)

    @cached_property
    def consistency(self) -> dict[str, dict[str, Any] | None]:
        frames = self.frames
        return {arm: blocks.consistency_block(frames.attempts, frames.tasks, arm) for arm in self.arms}

    @cached_property
    def served(self) -> blocks.Served:
        return blocks.served_block(self.frames.attempts, self.arms)

    @cached_property
    def loads(self) -> blocks.Loads:
        """A bare model has no skill to load, whatever its records say."""
        arms = [self.arm, *([BASELINE] if self.info.baseline == "skill" else [])]
        return blocks.loads(self.frames.attempts, self.info, arms)


def _measured(view: _Candidate) -> dict[str, Any]:
    """All fields of one candidate's artifact that come from records."""
    info, frames = view.info, view.frames
    shared = view.compared.fields
    gate = _verdict(view)
    grouped = _groupings(view)
    gain = blocks.extra(view.both, shared["attempt_delta"])
    speedups = blocks.speedup_block(frames.measured, view.arms)
    advantage = blocks.mean_advantage(speedups, view.arm)
    if advantage is None:  # no benchmarks: that of scores over the baseline
        advantage = shared["score_delta"]
    cost_per_task = view.overall.get(view.arm, {}).get("mean_cost_per_task")
    alone = info.baseline == "none"
    candidate_results, baseline_results = (
        comparison.results(frames.attempts, frames.tasks, arm, DIGITS) for arm in (view.arm, BASELINE)
    )
    changes = comparison.changes(view.paired, DIGITS)
    return {
        **shared,
        "verdict": gate.verdict,
        **_reason([_with_tasks(reason, view) for reason in gate.reasons]),
        **_decisions(view),
        **_counts(view),
        **_early_stop(view),
        "consistency": view.consistency,
        "cost": blocks.costs_block(info, frames.attempts, view.overall, grouped, gain),
        "cost_weighted_advantage": cost_weighted_advantage(advantage, cost_per_task),
        "efficiency": None if alone else blocks.efficiency_block(frames.attempts, view.arm, view.level),
        "speedups": speedups,
        "judges": blocks.panels_block(_of(frames.judgments, view.arms), _of(frames.attempts, view.arms)),
        "served": view.served,
        "skill_loads": view.loads,
        "triggers": blocks.triggers_block(frames.attempts, info.tasks, view.arm),
        "arms": view.overall,
        **grouped,
        "changes": changes,
        "candidate_results": comparison.with_intervals(
            candidate_results, baseline_results, view.level, changes
        ),
        "baseline_results": baseline_results,
        "checks": blocks.check_results(_of(frames.checks, view.arms), DIGITS),
        "warnings": [
            *(sentences.words([_with_tasks(weak, view)]) for weak in gate.warnings),
            *_warnings(view),
        ],
    }


def _verdict(view: _Candidate) -> Verdict:
    info, compared = view.info, view.compared.fields
    return verdict(
        compared["execution_pass_rate"],
        compared["baseline_pass_rate"],
        arms=view.errors,
        status=info.unfinished or "complete",
        why=info.why,
        baseline_must_pass=info.baseline_must_pass,
        no_baseline=info.baseline == "none",
        n_pairs=compared["n_pairs"],
        skill_use=blocks.skill_misuse(info, view.frames.attempts, view.loads.get(view.arm, {})),
    )


def _with_tasks(reason: Reason, view: _Candidate) -> Reason:
    """A reason that counts tasks with its metric, and where arms differ with the tasks that only one arm passed."""
    if "tasks" not in reason.values:
        return reason
    each = (view.sequential and view.sequential.block["stopped_after"]) or view.info.pass_k
    values = {**reason.values, "tasks": f"tasks passed{f' in any of {each} attempts' if each > 1 else ''}"}
    if not reason.code.startswith("delta_"):
        return Reason(reason.code, values)
    both, several = view.both, len(view.info.models) > 1
    ours, theirs = (both[f"{arm}_passed"] > 0 for arm in (CANDIDATE, BASELINE))
    names = ""
    for word, moved in (("lost", theirs & ~ours), ("gained", ours & ~theirs)):
        rows = both.loc[moved, ["task", "model"]].itertuples(index=False)
        short = sentences.short_models(view.info.models)
        tasks = [f"{task} ({short.get(model, model)})" if several else task for task, model in rows]
        names += f"{'; ' if names else ': '}{word} {sentences.listed(tasks, _NAME)}" if tasks else ""
    values["names"] = names
    net = int(ours.sum()) - int(theirs.sum())
    if len(both) == len(view.paired) and net:
        pairs = " pairs of task and model" if several else ""
        values["moved"] = f"{'rose' if net > 0 else 'fell'} by {abs(net)} of {len(both)}{pairs}"
    return Reason(reason.code, values)


def _decisions(view: _Candidate) -> dict[str, Any]:
    """What is decided for tasks like these and for exactly this suite, and why; missing without a baseline.

    Missing too where the run ended before its attempts were made: whoever may end it by hand may do so when it looks
    good. One that was given up shows nothing.
    """
    if view.info.baseline == "none" or view.info.status in ("cancelled", "over_budget", "weak_baseline"):
        code = "no_baseline" if view.info.baseline == "none" else "ended"
        reason = sentences.words([Reason(code)])
        return {"decision_reason": reason, "suite_decision_reason": reason}
    if view.info.status == "hopeless":
        hopeless = Decision("inconclusive", tuple(_verdict(view).reasons))
        return _decided(hopeless, hopeless)
    like_these = decision(view.compared.tasks_like_these, view.info.margin, view.errors)
    suite_interval = view.compared.exactly_this_suite
    if view.sequential is not None:
        suite_interval = view.sequential.suite_interval or suite_interval
        if not error_reasons(view.errors):
            like_these = view.sequential.decision
    suite = decision(suite_interval, view.info.margin, view.errors)
    missed = None
    if suite.decision == "inconclusive" and len(view.both) and _verdict(view).verdict != "error":
        missed = comparison.could_miss(view.both, suite_interval, view.info.pass_k)
    return {**_decided(like_these, suite), "could_miss": missed}


def _decided(like_these: Decision, suite: Decision) -> dict[str, Any]:
    return {
        "decision": like_these.decision,
        "decision_reason": sentences.words(like_these.reasons),
        "suite_decision": suite.decision,
        "suite_decision_reason": sentences.words(suite.reasons),
    }


def _early_stop(view: _Candidate) -> dict[str, Any]:
    """What belongs to runs that may stop early; the repeated interval takes the place of the plain one."""
    if view.sequential is None or view.sequential.interval is None:
        return {"sequential": view.sequential and view.sequential.block}
    repeated = view.sequential.interval
    suite = view.sequential.suite_interval or repeated
    n_pairs = view.compared.fields["n_pairs"]
    return {
        "sequential": view.sequential.block,
        "attempt_delta": repeated.estimate,
        "interval": {**comparison.intervals(repeated, suite, n_pairs), "repeated": True},
        # Tests that know of one look only would claim too much after several.
        **dict.fromkeys(comparison.P_VALUES),
    }


def _counts(view: _Candidate) -> dict[str, Any]:
    """How many attempts there are, and which pairs could not be compared."""
    attempts = _of(view.frames.attempts, view.arms)
    planned = view.info.planned_attempts
    run_by_all = int((view.frames.attempts["outcome"] != "skipped").sum())
    return {
        "n_dropped": len(view.dropped),
        "dropped_pairs": view.dropped[:_SHOWN_DROPPED],
        "attempts": {
            "planned": planned,
            "run": int((attempts["outcome"] != "skipped").sum()),
            "skipped": max(0, planned - run_by_all) if planned is not None else None,
            "cached": int(attempts["cached"].sum()),
            "by_arm": {
                arm: part["outcome"].value_counts().sort_index().to_dict()
                for arm, part in attempts.groupby("arm", sort=True)
            },
        },
        "errors": {arm: _common_errors(attempts, arm) for arm in view.errors},
    }


def _common_errors(attempts: pd.DataFrame, arm: str) -> list[dict[str, Any]]:
    """The most frequent messages of an arm's `error` attempts, with their counts."""
    failed = attempts[(attempts["arm"] == arm) & (attempts["outcome"] == "error")]
    counts = failed["error"].fillna("no message").value_counts()
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], str(entry[0])))
    return [{"message": str(message), "count": int(count)} for message, count in ordered[:_SHOWN_ERRORS]]


def _groupings(view: _Candidate) -> dict[str, dict[str, dict[str, Any]]]:
    """By model, tier and judge type: each arm's metrics, and the arms compared."""
    attempts, tasks = view.frames.attempts, view.frames.tasks
    arms = comparison.by_group(attempts, tasks, view.arms, view.info.pass_k, view.overall)
    grouped: dict[str, dict[str, dict[str, Any]]] = {}
    for name, column in comparison.GROUPINGS.items():
        if (only := comparison.only_one(column, attempts, tasks)) is not None:
            compared = {only: view.compared.fields}
        else:
            compared = {
                str(group): comparison.compare_units(part, level=view.level, effect=view.info.effect).fields
                for group, part in view.paired.groupby(column, sort=True)
                if group in arms[name]
            }
        grouped[name] = {key: {**compared.get(key, {}), "arms": arms[name][key]} for key in arms[name]}
    if view.sequential is not None:
        # A group has no looks of its own, and numbers that know of a single look would claim too much.
        unknown = dict.fromkeys(("interval", *comparison.P_VALUES))
        for groups in grouped.values():
            for group in groups.values():
                group |= unknown
    return grouped


def _arm_errors(attempts: pd.DataFrame, arm: str) -> ArmErrors:
    run = attempts.loc[(attempts["arm"] == arm) & (attempts["outcome"] != "skipped"), ["outcome", "error"]]
    failed = run[run["outcome"] == "error"]
    messages = tuple(plain(message, _MESSAGE) for message in failed["error"].dropna())
    return ArmErrors(len(run), len(failed), messages)


def _warnings(view: _Candidate) -> list[str]:
    dropped = len(view.dropped)
    warnings = [f"{dropped} pairs were dropped: no judged attempt in both arms"] if dropped else []
    # Whoever has more attempts passes more tasks by luck, since one pass is enough.
    mine, other = (int(view.both[f"{arm}_n_judged"].sum()) for arm in (CANDIDATE, BASELINE))
    if max(mine, other) > _UNEVEN * min(mine, other):
        counts = (
            f"{mine} judged attempts of {plain(view.arm)} against {other} of the baseline on the same tasks"
        )
        warnings.append(f"{counts}: more attempts pass more tasks; compare the attempts passed")
    # An alias that moved, or a baseline of last week, is compared all the same, but not without a word.
    attempts = view.frames.attempts
    cached = attempts["cached"][attempts["arm"] == BASELINE].any()
    whose = "the baseline, which is cached" if cached else "the baseline"
    warnings += blocks.served_differences(view.served, (view.arm, "the candidate"), (BASELINE, whose))
    warnings += blocks.never_loaded(view.loads, {view.arm: "the candidate", BASELINE: "the baseline"})
    warnings += blocks.spared(_of(view.frames.checks, view.arms))
    warnings += comparison.too_many(view.frames.tasks).values()
    for arm, block in view.consistency.items():
        flaky = blocks.flaky_words(block, _SHOWN_FLAKY)
        warnings += [f"flaky task {plain(task)} ({arm})" for task in flaky]
        if block is not None and (more := len(block["flaky_tasks"]) - len(flaky)):
            warnings.append(f"flaky tasks in {arm}: {more} more; see flaky_tasks")
    return warnings


def _units(paired: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(values(paired["task"]), values(paired["model"]), strict=True))


def _of(frame: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    chosen = frame["arm"].isin(arms)
    return frame if chosen.all() else frame[chosen]  # most runs have no other arm


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
        so_far = task_frame(attempts[attempts["attempt"] <= number])
        both = comparison.in_both(comparison.units(so_far, arm))
        counts, tasks = comparison.counts(both), values(both["task"])
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
                    "reason": sentences.words(look.reasons),
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
            return False, sentences.words(taken.decision.reasons)
        reasons.append(sentences.words(taken.decision.reasons))
    return True, "; ".join(dict.fromkeys(reasons))
