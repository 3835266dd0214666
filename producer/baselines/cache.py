"""Baseline attempts kept for a week, so that an unchanged baseline is not paid for again.

An entry is found by a digest of everything that its outcome depends on. A task's description, tier and tags
change neither the question nor the judging: they are left out, and taken from the suite of the day. `look_up` says
which baseline attempts of a plan are there already, and which entries the run will fill.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from aggregate.records.record import AttemptRecord
from aggregate.text import files
from aggregate.text.files import make_folder, write_text
from judges.errors import UpliftError
from producer.baselines import fingerprints
from producer.baselines.bless import Blessed, baseline_records
from producer.baselines.fingerprints import FORMAT_VERSION, fixture_digests, key, paid_before, served
from producer.plan import Plan
from workers.attempts.workspace import reads_files
from workers.models.choose import agent_version, is_simulated

MAX_AGE_SECONDS = 7 * 24 * 60 * 60
MAX_ENTRY_BYTES = 64 * 1024 * 1024
_COMPARISONS = "comparisons"
_ANSWERS = "answers"


class UnusableCache(UpliftError):
    """A cache folder that cannot be made or written; one line with the remedy."""


class BaselineCache:
    """Records by key, in a folder that several processes may share. Times are UTC seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UnusableCache(
                f"baseline cache folder {folder} cannot be written: {error.strerror}; choose another one"
            ) from error

    def get(self, key: str, now: float) -> AttemptRecord | None:
        """The record, marked as cached; None where it is missing, not readable or over 7 days old."""
        try:
            entry = _Entry.model_validate_json(files.read(self._place(key), MAX_ENTRY_BYTES))
        except (OSError, ValueError):
            return None
        age = now - entry.created
        if entry.key != key or not 0 <= age <= MAX_AGE_SECONDS or not entry.record.judged:
            return None
        return entry.record.model_copy(update={"cached": True})

    def answer(self, key: str, now: float) -> AttemptRecord | None:
        """The record of the latest attempt with this answer's key, however it was judged."""
        with suppress(OSError, ValueError):
            return self.get(files.read(self._folder / _ANSWERS / key, 200).decode(), now)
        return None

    def put(self, key: str, record: AttemptRecord, now: float, answer: str | None = None) -> bool:
        """Keep a record and say whether it was kept: errors and cached ones never are, nor on a full disk.

        `answer` is the key by which it is found when only its judging has changed.
        """
        if not record.judged or record.cached:
            return False
        try:
            entry = _Entry(format=FORMAT_VERSION, key=key, created=now, record=record)
            write_text(entry.model_dump_json(), self._place(key))
            if answer is not None:
                write_text(key, self._folder / _ANSWERS / answer)
        except (OSError, ValueError):
            return False
        return True

    def note_comparison(self, baseline: str, candidate: str, now: float) -> int:
        """How many different candidates met this baseline within 7 days, this one included.

        `baseline` comes from `baseline_key`, `candidate` is a bundle's digest. Each candidate has a file of
        its own, so that processes that note at the same time lose nothing.
        """
        folder, met = self._folder / _COMPARISONS / baseline, {candidate}
        with suppress(OSError):
            write_text(repr(now), folder / candidate)
        with suppress(OSError):
            met |= {path.name for path in folder.iterdir() if 0 <= now - _noted(path) <= MAX_AGE_SECONDS}
        return len(met)

    def _place(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    key: str
    created: float
    record: AttemptRecord


def _noted(path: Path) -> float:
    """When a comparison was noted; long ago where that is not readable, or still being written."""
    with suppress(OSError, ValueError):
        if not path.name.startswith("."):
            return float(files.read(path, 40))
    return float("-inf")


@dataclass(frozen=True)
class Reuse:
    """Records to take over, by attempt index, and the cache keys of all baseline attempts.

    `answers` are only to be judged again, and `answer_keys` find those of this run later.
    `comparisons` counts this candidate and the earlier ones that were compared with the same cached baseline.
    `told` says what the records are, after their number.
    """

    folder: Path | None = None
    cached: dict[int, AttemptRecord] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    answers: dict[int, AttemptRecord] = field(default_factory=dict)
    answer_keys: dict[int, str] = field(default_factory=dict)
    comparisons: int = 1
    told: str = "baseline attempts come from the cache"


def look_up(plan: Plan, now: float, *, only_look: bool = False) -> Reuse:
    """Ask the cache that the flags name; without one, or without a baseline, there is nothing to reuse.

    Unless it is to `only_look`, it notes in the cache that this candidate is compared with the baseline.
    """
    baseline, folder = plan.baseline, plan.options.baseline_cache_dir
    if plan.blessed is not None:
        return _blessed(plan, plan.blessed, now, only_look=only_look)
    if folder is None or baseline is None or (only_look and not folder.is_dir()):
        return Reuse()
    cache = BaselineCache(folder)
    grid, arm = plan.grid, plan.arms.index(baseline)
    fixtures, given = (
        fixture_digests(plan.whole_suite, plan.suite.folder, judged=judged) for judged in (True, False)
    )
    versions = {model: agent_version(model) for model in plan.options.models}
    cached, keys, answers, answer_keys = {}, {}, {}, {}
    for index in range(arm, grid.attempts, grid.arms):
        cell = grid.cell(index)
        task, model = plan.suite.tasks[cell.task], plan.options.models[cell.model]
        key_of = partial(
            key,
            skill=baseline.bundle.digest if baseline.bundle else None,
            task=task,
            model=model,
            settings=plan.options.settings,
            judge_model=plan.options.judge_model,
            skill_mode=plan.options.skill_mode,
            agent_version=versions[model],
            attempt=cell.number,
            sandbox=plan.options.sandbox,
            spare=plan.options.spare_checks,
        )
        keys[index] = key_of(fixtures=fixtures[task.id])
        record = cache.get(keys[index], now)
        if record is None and not is_simulated(model):
            answer_keys[index] = key_of(fixtures=given[task.id], judged=False)
            record = cache.answer(answer_keys[index], now)
            if record is not None and record.outcome != "timeout":
                if record.completion is not None and not (record.workspace and reads_files(task)):
                    answers[index] = paid_before(record)
                continue
        if record is not None:
            cached[index] = served(record, run_id=plan.run_id, task=task)
    return Reuse(
        folder=folder.resolve(),
        cached=cached,
        keys=keys,
        answers=answers,
        answer_keys=answer_keys,
        comparisons=1 if only_look else _comparisons(plan, cache, keys, now),
    )


def _blessed(plan: Plan, blessed: Blessed, now: float, *, only_look: bool) -> Reuse:
    """All baseline attempts from a file; a cache folder, where one is named, counts who is compared with it."""
    folder, comparisons = plan.options.baseline_cache_dir, 1
    if folder is not None and not only_look:
        comparisons = _comparisons(plan, BaselineCache(folder), {0: blessed.digest}, now)
    told = f"baseline attempts come from run {blessed.run_id}, which was blessed"
    records, now_grounds = baseline_records(plan, blessed), fingerprints.of(plan)
    anew = {
        index: paid_before(record)
        for index, record in records.items()
        if now_grounds.tasks[record.task] != blessed.grounds.tasks[record.task]
        and record.outcome != "timeout"
    }
    kept = {index: record for index, record in records.items() if index not in anew}
    return Reuse(cached=kept, answers=anew, comparisons=comparisons, told=told)


def _comparisons(plan: Plan, cache: BaselineCache, keys: dict[int, str], now: float) -> int:
    """How many earlier candidates were held against this baseline, and one for this run."""
    shared, seen = fingerprints.baseline_key(keys.values()), 0
    candidates = [arm.bundle.digest for arm in plan.arms if arm.name != "baseline" and arm.bundle]
    for digest in candidates:
        seen = cache.note_comparison(shared, digest, now)
    return max(1, seen - len(candidates) + 1)
