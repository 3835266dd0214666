"""Baseline attempts kept for a week, so that an unchanged baseline is not paid for again.

An entry is found by a digest of everything that its outcome depends on. A task's description, tier and tags
change neither the question nor the judging: they are left out, and taken from the suite of the day.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from aggregate.files import write_text
from aggregate.records import AttemptRecord
from judges.spec import Benchmark, Pytest, Rubric
from workers import bundles
from workers.messages import ModelSettings, SkillMode, Task
from workers.models.choose import parse

# Raise it when the same ingredients come to mean another question, for example other words around a skill.
FORMAT_VERSION: Literal[1] = 1
MAX_AGE_SECONDS = 7 * 24 * 60 * 60
MAX_ENTRY_BYTES = 64 * 1024 * 1024
FIXTURES = "fixtures"
_COMPARISONS = "comparisons"
LABELS = {"description", "tier", "tags"}


class UnusableCache(Exception):
    """A cache folder that cannot be made or written; one line with the remedy."""


def key(
    *,
    skill: str | None,
    task: Task,
    fixtures: str,
    model: str,
    settings: ModelSettings,
    judge_model: str | None,
    skill_mode: SkillMode | None,
    agent_version: str | None,
    attempt: int,
) -> str:
    """What an attempt depends on, as one digest.

    `skill` is its bundle's digest (None: the bare model), `fixtures` comes from `fixture_digests`,
    `agent_version` is that of an agent's program. The attempt's number makes k attempts k calls.
    """
    return digest(
        {
            "format": FORMAT_VERSION,
            "skill": skill,
            "task": task.model_dump(mode="json", exclude=LABELS),
            "fixtures": fixtures,
            "model": model,
            "settings": used_settings(settings, model, judge_model, *panel(task)),
            "judge_model": judge_model,
            "skill_mode": skill_mode,
            "agent_version": agent_version,
            "attempt": attempt,
        }
    )


def baseline_key(keys: Iterable[str]) -> str:
    """One digest for a whole baseline, from the keys of its attempts in any order."""
    return digest(sorted(keys))


def fixture_digests(tasks: Sequence[Task], suite_folder: Path) -> dict[str, str]:
    """For each task id, a digest of the files that the task depends on; give all tasks of the suite.

    A task depends on the files that it names. A pytest or benchmark judge may import helpers, so there the
    files that no task names count too; a helper that another task names is not noticed.
    """
    files = _Files(suite_folder)
    named = {task.id: frozenset(_named(task)) for task in tasks}
    shared = files.names - frozenset[str]().union(*named.values())
    digests = {}
    for task in tasks:
        imports = isinstance(task.judge, Pytest | Benchmark)
        parts = [files.digest_of(named[task.id]), files.digest_of(shared) if imports else None]
        digests[task.id] = digest(parts)
    return digests


def fixture_digest(task: Task, suite_folder: Path, all_tasks: Sequence[Task]) -> str:
    """The digest of one task's files; for many tasks use `fixture_digests`, which reads each file once."""
    return fixture_digests(all_tasks, suite_folder)[task.id]


class BaselineCache:
    """Records by key, in a folder that several processes may share. Times are UTC seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UnusableCache(
                f"baseline cache folder {folder} cannot be written: {error.strerror}; choose another one"
            ) from error

    def get(self, key: str, now: float) -> AttemptRecord | None:
        """The record, marked as cached; None where it is missing, not readable or over 7 days old."""
        try:
            with self._place(key).open("rb") as file:
                entry = _Entry.model_validate_json(file.read(MAX_ENTRY_BYTES))
        except (OSError, ValueError):
            return None
        age = now - entry.created
        if entry.key != key or not 0 <= age <= MAX_AGE_SECONDS or not entry.record.judged:
            return None
        return entry.record.model_copy(update={"cached": True})

    def put(self, key: str, record: AttemptRecord, now: float) -> bool:
        """Keep a record and say whether it was kept: errors and cached ones never are, nor on a full disk."""
        if not record.judged or record.cached:
            return False
        try:
            entry = _Entry(format=FORMAT_VERSION, key=key, created=now, record=record)
            write_text(entry.model_dump_json(), self._place(key))
        except (OSError, ValueError):
            return False
        return True

    def note_comparison(self, baseline: str, candidate: str, now: float) -> int:
        """How many different candidates met this baseline within 7 days, this one included.

        `baseline` comes from `baseline_key`, `candidate` is a bundle's digest. Each candidate has a file of
        its own, so that processes that note at the same time lose nothing.
        """
        folder = self._folder / _COMPARISONS / baseline
        with suppress(OSError):
            write_text(repr(now), folder / candidate)
        met = {path.name for path in _listed(folder) if 0 <= now - _noted(path) <= MAX_AGE_SECONDS}
        return len(met | {candidate})

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def served(record: AttemptRecord, *, run_id: str, task: Task) -> AttemptRecord:
    """A cached record as part of a run: with the run's id and the task's labels of today."""
    return record.model_copy(update={"run_id": run_id, "tier": task.tier, "tags": task.tags, "cached": True})


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    key: str
    created: float
    record: AttemptRecord


class _Files:
    """The content of a suite's fixtures, each file read at most once."""

    def __init__(self, suite_folder: Path) -> None:
        folder = suite_folder / FIXTURES
        found = bundles.files(folder) if folder.is_dir() else {}
        self._paths = {f"{FIXTURES}/{name}": path for name, path in found.items()}
        self._known: dict[str, str] = {}
        self._sets: dict[frozenset[str], str] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._paths)

    def digest_of(self, names: frozenset[str]) -> str:
        if names not in self._sets:
            self._sets[names] = digest([[name, self._file(name)] for name in sorted(names)])
        return self._sets[names]

    def _file(self, name: str) -> str | None:
        if name not in self._known and (path := self._paths.get(name)):
            runnable = bool(path.stat().st_mode & stat.S_IXUSR)
            with path.open("rb") as file:
                self._known[name] = f"{hashlib.file_digest(file, 'sha256').hexdigest()} {runnable}"
        return self._known.get(name)


def _named(task: Task) -> Iterator[str]:
    judged = [value for setting, value in task.judge if setting.endswith("_file") and value]
    replies = [task.replies.passing, task.replies.failing] if task.replies else []
    for name in (*task.files, *judged, *replies):
        if name:
            yield posixpath.normpath(name)


def panel(task: Task) -> list[str]:
    return task.judge.judges if isinstance(task.judge, Rubric) else []


def used_settings(settings: ModelSettings, *models: str | None) -> dict[str, Any]:
    """What of the settings changes these models' answers; prices, limits and retries do not."""
    used: dict[str, Any] = {"params": settings.params, "tools": settings.tools}
    for model in filter(None, models):
        spec = parse(model)
        if spec.kind == "command" and spec.name in settings.commands:
            used[model] = settings.commands[spec.name].model_dump(mode="json")
        if spec.kind == "replay":
            with suppress(OSError), Path(settings.replays.get(model, spec.name)).open("rb") as file:
                used[model] = hashlib.file_digest(file, "sha256").hexdigest()
    return used


def digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _listed(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []


def _noted(path: Path) -> float:
    """When a comparison was noted; long ago where that is not readable."""
    try:
        return float(path.read_text()[:40])
    except (OSError, ValueError):
        return float("-inf")
