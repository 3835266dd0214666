"""Write down how an attempt ended: the record that is stored and that aggregate reads."""

from __future__ import annotations

from typing import Any

from aggregate.records import AttemptRecord, Outcome
from judges.judgment import Judgment
from workers.attempt import Answer, Attempt
from workers.claims import Claim
from workers.runs import Run


def record(
    attempt: Attempt,
    run: Run,
    claim: Claim,
    answer: Answer,
    judged: tuple[Judgment, float] | None,
    worker: str,
    workspace: str | None = None,
) -> AttemptRecord:
    """Everything that is known of this attempt, as it will be stored."""
    judgment, judge_seconds = judged if judged is not None else (None, 0.0)
    return AttemptRecord(
        **_identity(attempt, run, claim, worker),
        outcome=_outcome(answer, judgment),
        score=_score(answer, judgment),
        details=judgment.details if judgment else None,
        error=answer.error or (judgment.error if judgment else None),
        judgments=_judgments(judgment),
        benchmarks=judgment.benchmarks if judgment else (),
        tests=judgment.tests if judgment else None,
        snapshot=judgment.snapshot if judgment else None,
        completion=answer.completion,
        model_ms=round(answer.seconds * 1000, 3),
        judge_ms=round(judge_seconds * 1000, 3) if judgment else None,
        started_at=answer.started_at,
        retries=answer.retries,
        workspace=workspace,
    )


def poisoned(attempt: Attempt, run: Run, claim: Claim, worker: str) -> AttemptRecord:
    """The record of an attempt that killed every process that tried it."""
    return AttemptRecord(
        **_identity(attempt, run, claim, worker),
        outcome="error",
        error="poison: every process that ran this attempt died, at last one that ran nothing else",
    )


def _identity(attempt: Attempt, run: Run, claim: Claim, worker: str) -> dict[str, Any]:
    """Which attempt it was and who made it."""
    return {
        "run_id": run.manifest.run_id,
        "task": attempt.task.id,
        "tier": attempt.task.tier,
        "tags": attempt.task.tags,
        "should_trigger": attempt.task.should_trigger,
        "arm": attempt.arm,
        "model": attempt.model,
        "attempt": attempt.number,
        "worker": worker,
        "deliveries": claim.deliveries,
    }


def _outcome(answer: Answer, judgment: Judgment | None) -> Outcome:
    if answer.outcome is not None:
        return answer.outcome
    if judgment is None or judgment.passed is None:
        return "error"
    return "passed" if judgment.passed else "failed"


def _score(answer: Answer, judgment: Judgment | None) -> float | None:
    # A time-out counts as failed, so it weighs as much as a failed answer; an error weighs nothing.
    if answer.outcome == "timeout":
        return 0.0
    return judgment.score if judgment else None


def _judgments(judgment: Judgment | None) -> tuple[Judgment, ...]:
    if judgment is None:
        return ()
    if judgment.panel:
        return judgment.panel
    if judgment.benchmarks or judgment.tests or judgment.snapshot:  # the record has them itself
        return (judgment.model_copy(update={"benchmarks": (), "tests": None, "snapshot": None}),)
    return (judgment,)
