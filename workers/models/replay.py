"""Recorded completions, given again, so that judges can be re-run without paying for the model twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aggregate.text import files
from judges.judgment import Completion
from judges.safe_text import broken_fields
from workers.models.model import UNBILLED, ModelFailed, Request
from workers.store import bundles

Key = tuple[str, str, int]
MAX_BYTES = bundles.MAX_TOTAL_BYTES  # a recording travels as a bundle


class _Line(BaseModel):
    """One line of a recording: a record, or just `task`, `arm`, `attempt` and `text`."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    task: str = Field(min_length=1)
    arm: str = Field(min_length=1)
    attempt: int = Field(ge=1)
    text: str | None = None
    completion: Completion | None = None


class Replay:
    """Answers from a recording, by task, arm and attempt; what was not recorded is an error."""

    def __init__(self, completions: dict[Key, Completion], source: str) -> None:
        self.completions = completions
        self.source = source

    async def complete(self, request: Request) -> Completion:
        task = request.task.id if request.task else ""
        completion = self.completions.get((task, request.arm, request.attempt))
        if completion is None:
            wanted = f"task {task!r}, arm {request.arm!r}, attempt {request.attempt}"
            raise ModelFailed(f"{self.source} holds no completion of {wanted}", completion=UNBILLED)
        if completion.cost_usd is None:
            return completion
        return completion.model_copy(update={"cost_source": "replay"})

    async def close(self) -> None:
        pass


def load(path: Path) -> Replay:
    """Read a JSONL recording; raises ModelFailed with the line that is unreadable or contradicts another."""
    completions: dict[Key, Completion] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        key, completion = _parsed(line, f"{path}:{number}")
        if completion is None:
            continue
        if completions.setdefault(key, completion) != completion:
            raise ModelFailed(
                f"{path}:{number}: a second, different completion of task {key[0]!r}, arm {key[1]!r}, "
                f"attempt {key[2]}; keep one model and one run in a recording",
                hopeless=True,
            )
    return Replay(completions, str(path))


def content(path: Path) -> bytes:
    """A recording as plain JSONL; the compressed records of a state root will do, too. Raises ModelFailed."""
    return b"".join(_lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from files.lines(path, most=MAX_BYTES)
    except OSError as problem:
        told = problem.strerror or str(problem)
        raise ModelFailed(f"recording {path} cannot be read: {told}", hopeless=True) from None


def _parsed(line: bytes, place: str) -> tuple[Key, Completion | None]:
    """A line's key and its completion; None for a record of an attempt that got no answer."""
    try:
        parsed = _Line.model_validate(json.loads(line.decode("utf-8-sig")))
    except ValidationError as problem:
        raise ModelFailed(f"{place}: {broken_fields(problem, whole='line')[0]}", hopeless=True) from None
    except (ValueError, RecursionError) as problem:
        raise ModelFailed(f"{place}: not a line of JSON: {problem}", hopeless=True) from None
    completion = parsed.completion
    if completion is None and parsed.text is not None:
        completion = Completion(text=parsed.text)
    return (parsed.task, parsed.arm, parsed.attempt), completion
