"""The stored outcome of an attempt, the only thing that aggregate reads, whoever wrote it; and its steps beside it."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aggregate.text import files
from judges.judgment import COUNT, BenchmarkTimes, Completion, Count, Judgment, Range, Score, Snapshot, Tests
from judges.trajectory import Trajectory

Milliseconds = Annotated[float | None, Range(0, 1e12)]
Outcome = Literal["passed", "failed", "timeout", "error", "skipped"]
JUDGED: frozenset[str] = frozenset({"passed", "failed", "timeout"})


class AttemptRecord(BaseModel):
    """One attempt. Only task, arm, attempt and outcome are required; what is missing stays missing.

    `workspace` is the digest of the bundle with the files that an agent left, `trajectory` that of the steps, or why
    they are not kept; `should_trigger` is what the task
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
    trajectory: str | None = None
    should_trigger: bool | None = None

    @property
    def judged(self) -> bool:
        return self.outcome in JUDGED


SKILL = "skill:"  # and the digest of a skill's text, which the steps of all attempts leave out
MAX_STEPS_BYTES = 64 * 1024 * 1024


def unpack_steps(data: bytes) -> bytes:
    """What was packed; raises ValueError for what cannot be unpacked, or to too much."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            unpacked = packed.read(MAX_STEPS_BYTES + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise ValueError(f"steps that cannot be unpacked: {problem}") from None
    if len(unpacked) > MAX_STEPS_BYTES:
        raise ValueError("steps of too many bytes")
    return unpacked


class KeptSteps:
    """The archive with the steps of a run's attempts, by digest; each entry is compressed JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def packed(self, digests: set[str]) -> Iterator[tuple[str, bytes]]:
        """The entries of these digests as they were packed, and the skills' texts with them."""
        if not files.is_file(self._path):  # a run of a version that kept none, or that had none to keep
            return
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(self._path) as archive:
            for name in archive.namelist():
                digest = name.removesuffix(".gz")
                if digest in digests or digest.startswith(SKILL):
                    yield digest, archive.open(name).read(MAX_STEPS_BYTES)

    def of(self, record: AttemptRecord) -> Trajectory | None:
        """An attempt's steps with its skill's text in its place; None where they are not kept, or not readable."""
        found = dict(self.packed({record.trajectory or ""}))
        with suppress(ValueError, KeyError):
            trajectory = Trajectory.model_validate_json(unpack_steps(found[record.trajectory or ""]))
            if trajectory.skill is not None:
                text = unpack_steps(found[SKILL + trajectory.skill]).decode("utf-8", "replace")
                trajectory = trajectory.with_skill(text)
            return trajectory
        return None
