"""What is known of a run beside its records: who was compared, under which rules, and how the run ended."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aggregate.records.record import AttemptRecord
from aggregate.records.settings import ResultSettings

BASELINE = "baseline"
CANDIDATE = "candidate"
ORACLE = "oracle"
UNKNOWN_MODEL = "unknown"
STANDALONE = "standalone"

Baseline = Literal["skill", "bare", "none"]
Status = Literal["finished", "cancelled", "over_budget", "hopeless", "weak_baseline", "skipped"]
Unfinished = Literal["cancelled", "over_budget", "hopeless", "weak_baseline"]


def is_candidate(arm: str) -> bool:
    """True for `candidate` and for `candidate:<id>` with a non-empty id."""
    return arm == CANDIDATE or (arm.startswith(f"{CANDIDATE}:") and len(arm) > len(CANDIDATE) + 1)


@lru_cache(maxsize=256)
def is_known_arm(arm: str) -> bool:
    """True for the arms that a run can have: baseline, oracle and candidates."""
    return arm in (BASELINE, ORACLE) or is_candidate(arm)


class _Info(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TaskInfo(_Info):
    """A task of the suite, as far as the numbers need it; `judge` is the judge's type."""

    id: str
    tier: str | None = None
    tags: tuple[str, ...] = ()
    judge: str | None = None
    should_trigger: bool | None = None


class CandidateInfo(_Info):
    """One candidate: its arm in the records, and its id and score where a ranking gave them.

    `verdict` and `reason` are there for one that cannot be run, whatever its score. `quoting` names the tasks whose
    prompts hold a part of its skill.
    """

    arm: str = CANDIDATE
    candidate_id: str | None = None
    score: float | None = None
    verdict: Literal["skipped", "error"] | None = None
    reason: str = ""
    quoting: tuple[str, ...] = ()


class RunInfo(ResultSettings):
    """A run's settings and end. Times come from the run, never from the clock of whoever aggregates.

    `baseline_reuse_count` counts this run and each earlier one compared with the same cached baseline.
    `planned_attempts` covers all arms and models; plan minus records is what was skipped. `why` is the message
    that ended a run before its time. `assumed_usd` counts towards the budget for calls of unknown cost.
    `mounted` are the models for which skills are mounted. `rejudged_from` is the run whose completions these are,
    `baseline_run_id` the one whose candidate, blessed, is the baseline. `lane` is the pipeline's, which has nothing
    to do with queues; `source_run_id` and `source_ranking_artifact` are the run id and the path of the ranking.
    """

    run_id: str
    created_at: str | None = None
    wall_seconds: float | None = None
    lane: str = STANDALONE
    skill_id: str = ""
    task_suite: str = ""
    models: tuple[str, ...] = ()
    tasks: tuple[TaskInfo, ...] = ()
    candidates: tuple[CandidateInfo, ...] = (CandidateInfo(),)
    baseline: Baseline = "skill"
    status: Status = "finished"
    why: str = ""
    baseline_reuse_count: int = 1
    spent_usd: float | None = None
    assumed_usd: float = 0.0
    wasted_usd: float | None = None
    wasted_attempts: int = 0
    planned_attempts: int | None = None
    mounted: tuple[str, ...] = ()
    rejudged_from: str | None = None
    baseline_run_id: str | None = None
    source_run_id: str | None = None
    source_ranking_artifact: str | None = None
    environment: dict[str, Any] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def ran(self) -> tuple[CandidateInfo, ...]:
        """The candidates that were run, or are to be: not those below the threshold, nor those that cannot be."""
        if self.status == "skipped":
            return ()
        return tuple(one for one in self.candidates if one.verdict is None and not self.is_below(one))

    def is_below(self, candidate: CandidateInfo) -> bool:
        """Whether the ranking puts a candidate below the threshold."""
        return candidate.score is not None and candidate.score < self.eval_threshold

    @property
    def baseline_must_pass(self) -> bool:
        """Whether a weak baseline is an error: one without a skill, or mocked, is none, and people may forgive it."""
        mocked = bool(self.models) and all(model.partition(":")[0] == "mock" for model in self.models)
        return self.weak_baseline == "error" and self.baseline == "skill" and not mocked

    @property
    def unfinished(self) -> Unfinished | None:
        """How the run ended before all its attempts were made; None where it did not."""
        if self.status == "finished" or self.status == "skipped":  # mypy narrows only this
            return None
        return self.status

    @classmethod
    def from_records(cls, records: Iterable[AttemptRecord]) -> RunInfo:
        """What records from anywhere tell of their run; independent of their order.

        Merged runs get an id made from theirs. A baseline, where there is one, counts as a skill.
        """
        observer = Observer()
        for _ in observer.watch(records):
            pass
        return observer.info()


_OBSERVED = itemgetter(
    "task", "arm", "model", "run_id", "started_at", "tier", "tags", "should_trigger", "judgments"
)


class Observer:
    """What a pass over records has met so far, so that one pass can serve others too.

    `frames.collect(observer.watch(records))` reads a file once and leaves `observer.info()`.
    """

    def __init__(self) -> None:
        self.run_ids: set[str] = set()
        self.started: str | None = None
        self.attempts: Counter[tuple[str, str, str]] = Counter()
        self.tasks: dict[str, set[tuple[Any, ...]]] = defaultdict(set)  # what its records say of each

    def watch(self, records: Iterable[AttemptRecord]) -> Iterator[AttemptRecord]:
        """The same records, each noted as it goes by."""
        for record in records:
            task, arm, model, run_id, started, *facts, judgments = _OBSERVED(vars(record))
            unit = (task, arm, model or UNKNOWN_MODEL)
            self.attempts[unit] += 1
            if run_id:
                self.run_ids.add(run_id)
            if started and (self.started is None or started < self.started):
                self.started = started
            self.tasks[task].add((*facts, judgments[0].kind if judgments else None))
            yield record

    def info(self) -> RunInfo:
        """What the records seen so far tell of their run."""
        arms = {arm for _, arm, _ in self.attempts}
        candidates = (
            CandidateInfo(arm=arm, candidate_id=arm.partition(":")[2] or None)
            for arm in sorted(arms)
            if is_candidate(arm)
        )
        warnings: list[str] = []
        return RunInfo(
            run_id=_merged_id(self.run_ids),
            created_at=self.started,
            pass_k=max(self.attempts.values(), default=1),
            models=tuple(sorted({model for _, _, model in self.attempts})),
            tasks=tuple(_merged(task, self.tasks[task], warnings) for task in sorted(self.tasks)),
            candidates=tuple(candidates) or (CandidateInfo(),),
            baseline="skill" if BASELINE in arms else "none",
            warnings=tuple(sorted(warnings)),
        )


def _merged(task: str, facts: set[tuple[Any, ...]], warnings: list[str]) -> TaskInfo:
    """A task as all records together tell it; a warning is added where they do not agree."""
    tiers, tags, triggers, judges = (set(values) - {None, ""} for values in zip(*facts, strict=True))
    if len(triggers) > 1:
        warnings.append(f"task {task} should trigger and should not; that it should is used")
    if len(tiers) > 1:
        warnings.append(f"task {task} has more than one tier; the first in order is used")
    return TaskInfo(
        id=task,
        tier=min(tiers, default=None),
        tags=tuple(sorted(set().union(*tags))),
        judge=min(judges, default=None),
        should_trigger=max(triggers, default=None),
    )


def _merged_id(run_ids: set[str]) -> str:
    if len(run_ids) == 1:
        return next(iter(run_ids))
    if not run_ids:
        return "records"
    digest = hashlib.sha256("\n".join(sorted(run_ids)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"merged-{digest[:12]}"
