"""The stored outcome of an attempt: the only thing that aggregate reads, whoever wrote it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from judges.judgment import COUNT, BenchmarkTimes, Completion, Count, Judgment, Range, Score, Snapshot, Tests

Milliseconds = Annotated[float | None, Range(0, 1e12)]
Outcome = Literal["passed", "failed", "timeout", "error", "skipped"]
JUDGED: frozenset[str] = frozenset({"passed", "failed", "timeout"})


class AttemptRecord(BaseModel):
    """One attempt. Only task, arm, attempt and outcome are required; what is missing stays missing.

    `workspace` is the digest of the bundle with the files that an agent left; `should_trigger` is what the task
    says of the skill, so that records alone tell right triggers from wrong ones.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    run_id: str | None = None
    task: Annotated[str, Field(min_length=1)]
    tier: str | None = None
    tags: tuple[str, ...] = ()
    arm: Annotated[str, Field(min_length=1)]
    model: str | None = None
    attempt: Annotated[int, Field(ge=1, le=COUNT.high)]
    outcome: Outcome
    score: Score = None
    details: str | None = None
    error: str | None = None
    judgments: tuple[Judgment, ...] = ()
    benchmarks: tuple[BenchmarkTimes, ...] = ()
    tests: Tests | None = None
    snapshot: Snapshot | None = None
    completion: Completion | None = None
    model_ms: Milliseconds = None
    judge_ms: Milliseconds = None
    started_at: str | None = None
    worker: str | None = None
    cached: bool = False
    deliveries: Count = None
    retries: Count = None
    workspace: str | None = None
    should_trigger: bool | None = None

    @property
    def judged(self) -> bool:
        return self.outcome in JUDGED
