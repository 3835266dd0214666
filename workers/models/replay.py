"""Recorded completions, given again, so that judges can be re-run without paying for the model twice."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from judges.judgment import Completion
from workers.models import ModelFailed, Request

Key = tuple[str, str, int]
MAX_BYTES = 256 * 1024 * 1024
_GZIP = b"\x1f\x8b"


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

    agent = False

    def __init__(self, completions: dict[Key, Completion], source: str) -> None:
        self.completions = completions
        self.source = source

    async def complete(self, request: Request) -> Completion:
        task = request.task.id if request.task else ""
        completion = self.completions.get((task, request.arm, request.attempt))
        if completion is None:
            wanted = f"task {task!r}, arm {request.arm!r}, attempt {request.attempt}"
            raise ModelFailed(f"{self.source} holds no completion of {wanted}")
        if completion.cost_usd is None:
            return completion
        return completion.model_copy(update={"cost_source": "replay"})

    async def close(self) -> None:
        pass


def load(path: Path) -> Replay:
    """Read a JSONL recording; raises ModelFailed with the line that is unreadable or contradicts another."""
    lines = content(path).split(b"\n")
    completions: dict[Key, Completion] = {}
    for number, line in enumerate(lines, start=1):
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
    try:
        data = path.read_bytes()
        if not data.startswith(_GZIP):
            return data
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            plain = file.read(MAX_BYTES + 1)
    except OSError as problem:
        told = problem.strerror or str(problem)
        raise ModelFailed(f"recording {path} cannot be read: {told}", hopeless=True) from None
    except (EOFError, zlib.error) as problem:
        raise ModelFailed(f"recording {path} is broken: {problem}", hopeless=True) from None
    if len(plain) > MAX_BYTES:
        raise ModelFailed(f"recording {path} unpacks to more than {MAX_BYTES} bytes", hopeless=True)
    return plain


def _parsed(line: bytes, place: str) -> tuple[Key, Completion | None]:
    """A line's key and its completion; None for a record of an attempt that got no answer."""
    try:
        parsed = _Line.model_validate(json.loads(line.decode("utf-8-sig")))
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "line"
        raise ModelFailed(f"{place}: {where}: {first['msg'].lower()}", hopeless=True) from None
    except (ValueError, RecursionError) as problem:
        raise ModelFailed(f"{place}: not a line of JSON: {problem}", hopeless=True) from None
    completion = parsed.completion
    if completion is None and parsed.text is not None:
        completion = Completion(text=parsed.text)
    return (parsed.task, parsed.arm, parsed.attempt), completion
