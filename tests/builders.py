"""Builders with defaults for what many tests need."""

from __future__ import annotations

from typing import Any

from aggregate.artifact import build
from aggregate.artifact.model import Artifact
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo


def a_record(
    task: str = "names-it", arm: str = "candidate", attempt: int = 1, **fields: Any
) -> AttemptRecord:
    """A passed attempt with a matching score, unless told otherwise."""
    outcome = fields.pop("outcome", "passed")
    scores = {"passed": 1.0, "failed": 0.0, "timeout": 0.0}
    fields.setdefault("score", scores.get(outcome))
    fields.setdefault("model", "anthropic:some-model")
    fields.setdefault("run_id", "run-1")
    return AttemptRecord(task=task, arm=arm, attempt=attempt, outcome=outcome, **fields)


def both_arms(candidate: dict[str, str], baseline: dict[str, str], **fields: Any) -> list[AttemptRecord]:
    """Records from a picture per task: "pf" is an attempt that passed and one that failed; e is error, t time-out."""
    outcomes = {"p": "passed", "f": "failed", "t": "timeout", "e": "error", "s": "skipped"}
    return [
        a_record(task, arm, number, outcome=outcomes[letter], **fields)
        for arm, tasks in (("candidate", candidate), ("baseline", baseline))
        for task, letters in tasks.items()
        for number, letter in enumerate(letters, start=1)
    ]


def built(records: list[AttemptRecord], **info: Any) -> Artifact:
    """The artifact of records with one candidate."""
    (only,) = build.build(RunInfo.from_records(records).model_copy(update=info), iter(records))
    return only


def an_artifact(**fields: Any) -> Artifact:
    """The artifact of a run without an attempt, but for these fields."""
    return built([]).model_copy(update=fields)


def many(letter: str, count: int, attempts: int = 1) -> dict[str, str]:
    """A picture for `both_arms` of many tasks that all went alike."""
    return {f"task-{number:02}": letter * attempts for number in range(count)}
