"""Recorded completions, read where a run starts: workers find them in the store, as those of a run judged again."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aggregate.records.record import AttemptRecord
from aggregate.text import files
from judges.judgment import COUNT, Completion
from judges.safe_text import broken_fields, storable
from workers.models.model import ModelFailed
from workers.store import bundles

MAX_BYTES = bundles.MAX_TOTAL_BYTES


class _Line(BaseModel):
    """One line of a recording: a record, or just `task`, `arm`, `attempt` and `text`."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    task: str = Field(min_length=1)
    arm: str = Field(min_length=1)
    attempt: int = Field(ge=1, le=COUNT.high)
    text: str | None = None
    completion: Completion | None = None


def read(path: Path, model: str) -> list[AttemptRecord]:
    """The answers in a JSONL recording, or in the compressed records of a state root, as a model's unjudged records.

    Raises ModelFailed with the line that is unreadable or contradicts another. An attempt without an answer is left
    out. A cost that is known was paid before.
    """
    records: dict[tuple[str, str, int], AttemptRecord] = {}
    try:
        for number, line in enumerate(files.lines(path, most=MAX_BYTES), start=1):
            if not line.strip() or (record := _record(line, f"{path}:{number}", model)) is None:
                continue
            key = record.task, record.arm, record.attempt
            if records.setdefault(key, record) != record:
                raise ModelFailed(
                    f"{path}:{number}: a second, different completion of task {key[0]!r}, arm {key[1]!r}, "
                    f"attempt {key[2]}; keep one model and one run in a recording",
                    hopeless=True,
                )
    except OSError as problem:
        words = problem.strerror or str(problem)
        raise ModelFailed(f"recording {path} cannot be read: {words}", hopeless=True) from None
    return list(records.values())


def _record(line: bytes, place: str, model: str) -> AttemptRecord | None:
    try:
        parsed = _Line.model_validate(json.loads(line.decode("utf-8-sig")))
    except ValidationError as problem:
        raise ModelFailed(f"{place}: {broken_fields(problem, whole='line')[0]}", hopeless=True) from None
    except (ValueError, RecursionError) as problem:
        raise ModelFailed(f"{place}: not a line of JSON: {problem}", hopeless=True) from None
    completion = parsed.completion
    if completion is None:
        if parsed.text is None:
            return None
        completion = Completion(text=parsed.text)
    elif completion.cost_usd is not None:
        completion = completion.model_copy(update={"cost_source": "replay"})
    return AttemptRecord(
        task=parsed.task,
        arm=parsed.arm,
        model=model,
        attempt=parsed.attempt,
        outcome="error",  # nobody has judged it yet
        completion=storable(completion),
    )
