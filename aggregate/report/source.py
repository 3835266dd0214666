"""What a report is made of: one candidate's artifact, the run's records, and what its tasks asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from aggregate.artifact.model import Artifact, CandidateResult, TaskResult
from aggregate.formulas.consistency import FLAKY_RANGE
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import BASELINE
from aggregate.text import files

_TOLERANCE = 1e-9


class TaskText(BaseModel):
    """A task as the suite told it; `judge` holds the judge's settings as in the YAML file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    description: str = ""
    prompt: str = ""
    tags: tuple[str, ...] = ()
    judge: dict[str, Any] = {}


@dataclass(frozen=True)
class Material:
    """One candidate of a run. `records` can be called again and again, and streams; tasks may be unknown."""

    artifact: Artifact
    records: Callable[[], Iterable[AttemptRecord]]
    tasks: Mapping[str, TaskText] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, str]:
        """The two arms that are compared, baseline first."""
        return BASELINE, self.artifact.arm

    def own_records(self) -> Iterator[AttemptRecord]:
        """The attempts that were run for this candidate and its baseline; other candidates' are left out."""
        return (one for one in self.records() if one.arm in self.arms and one.outcome != "skipped")


@dataclass(frozen=True)
class Unit:
    """One task with one model: what each arm made of it. None where an arm has no attempt."""

    task: str
    model: str
    tier: str | None
    judge: str | None
    baseline: TaskResult | None
    candidate: CandidateResult | None

    @property
    def difference(self) -> float | None:
        """Candidate's attempt pass rate minus the baseline's; None unless both were judged."""
        rates = [_rate(side) for side in (self.candidate, self.baseline)]
        return None if rates[0] is None or rates[1] is None else rates[0] - rates[1]

    @property
    def failed(self) -> bool:
        """No attempt of the candidate passed, though some were judged."""
        return self.candidate is not None and self.candidate.passed is False

    @property
    def changed(self) -> bool:
        return bool(self.difference)

    @property
    def flaky(self) -> bool:
        """The score varies by more than 20 points between attempts of one arm."""
        spreads = (side.accuracy_range for side in (self.candidate, self.baseline) if side is not None)
        return any(spread is not None and spread > FLAKY_RANGE + _TOLERANCE for spread in spreads)

    @property
    def has_errors(self) -> bool:
        return any(side is not None and side.errors > 0 for side in (self.candidate, self.baseline))


def units(artifact: Artifact) -> list[Unit]:
    """Every (task, model) of a run in order of their names."""
    mine = {(result.task_id, result.model): result for result in artifact.candidate_results}
    other = {(result.task_id, result.model): result for result in artifact.baseline_results}
    return [_unit(key, other.get(key), mine.get(key)) for key in sorted(mine.keys() | other.keys())]


def _unit(key: tuple[str, str], baseline: TaskResult | None, candidate: CandidateResult | None) -> Unit:
    sides = [side for side in (baseline, candidate) if side is not None]
    tier = next((side.tier for side in sides if side.tier), None)
    judge = next((side.judge for side in sides if side.judge), None)
    return Unit(*key, tier, judge, baseline, candidate)


def read_tasks(path: Path) -> dict[str, TaskText]:
    """The tasks that a run left beside its records; empty for runs that left none."""
    try:
        tasks = [TaskText.model_validate_json(line) for line in files.lines(path) if line.strip()]
    except FileNotFoundError:
        return {}
    return {task.id: task for task in tasks}


def _rate(side: TaskResult | None) -> float | None:
    return side.passes / side.judged if side is not None and side.judged else None
