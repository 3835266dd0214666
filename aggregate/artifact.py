"""The JSON file that a run ends in, one per candidate: built from records, written atomically.

The same records and run info give the same bytes, whenever and in whatever order they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aggregate import sentences
from aggregate.artifact_file import SCHEMA_VERSION, stdout_line, trace, write, write_json
from aggregate.candidate import Numbers, measure, unmeasured
from aggregate.frames import Frames, collect
from aggregate.records import AttemptRecord
from aggregate.run_info import CandidateInfo, RunInfo
from aggregate.standard_json import DIGITS, clean, rounded
from aggregate.stats import holm
from aggregate.verdict import decision_level

__all__ = ["build", "from_frames", "is_skipped", "stdout_line", "trace", "write", "write_json"]


def build(info: RunInfo, records: Iterable[AttemptRecord]) -> list[dict[str, Any]]:
    """One artifact per candidate, in the order of `info.candidates`; records are read once and not kept."""
    return from_frames(info, collect(records, info.tasks))


def from_frames(info: RunInfo, frames: Frames) -> list[dict[str, Any]]:
    """The artifacts of records that are frames already."""
    ran = [one for one in info.candidates if not is_skipped(info, one)]
    # Earlier runs that were compared with the same cached baseline are looks at it too.
    comparisons = max(1, len(ran)) + info.baseline_reuse_count - 1
    level = decision_level(comparisons)
    numbers = {one.arm: measure(info, frames, one, level, comparisons) for one in ran}
    adjusted = holm([numbers[one.arm].p_value for one in ran], comparisons)
    by_arm = {one.arm: p_value for one, p_value in zip(ran, adjusted, strict=True)}
    return [
        _artifact(info, frames, one, numbers.get(one.arm), by_arm.get(one.arm), comparisons)
        for one in info.candidates
    ]


def is_skipped(info: RunInfo, candidate: CandidateInfo) -> bool:
    """True when nothing was run for it: its score is below the threshold, or the whole run was skipped."""
    below = candidate.score is not None and candidate.score < info.eval_threshold
    return below or info.status == "skipped"


def _artifact(
    info: RunInfo,
    frames: Frames,
    candidate: CandidateInfo,
    numbers: Numbers | None,
    adjusted: float | None,
    comparisons: int,
) -> dict[str, Any]:
    measured = numbers.fields if numbers is not None else unmeasured(info, candidate)
    artifact: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": info.run_id,
        "stage": "evaluated",
        "status": info.status,
        "created_at": info.created_at,
        "lane": info.lane,
        "skill_id": info.skill_id,
        "task_suite": info.task_suite,
        "pass_k": info.pass_k,
        "models": list(info.models),
        "simulated": any(map(sentences.is_simulated, info.models)),
        "arm": candidate.arm,
        "candidate_id": candidate.candidate_id,
        "candidate_score": candidate.score,
        **measured,
        "p_value_adjusted": adjusted,
        "comparisons": comparisons,
        "baseline": info.baseline,
        "baseline_reuse_count": info.baseline_reuse_count,
        "stop_early": info.stop_early,
        "rejudged_from": info.rejudged_from,
        "baseline_run_id": info.baseline_run_id,
        "margin": info.margin,
        "gate": info.gate,
        "warnings": [*info.warnings, *(numbers.warnings if numbers else ()), *frames.warnings],
        "environment": _environment(info, frames),
        "truth_anchor": None,
    }
    finished: dict[str, Any] = clean(artifact, DIGITS)
    finished["summary"] = " ".join(sentences.summary(finished))
    finished["next_step"], finished["next_owner"] = sentences.next_step(finished)
    return finished


def _environment(info: RunInfo, frames: Frames) -> dict[str, Any]:
    """What the run says of where it ran, with wall time and speed: the run's, not this process's."""
    made = int((~frames.attempts["cached"]).sum())
    speed = made / info.wall_seconds if info.wall_seconds else None
    return {"wall_seconds": info.wall_seconds, "attempts_per_second": rounded(speed, 3), **info.environment}
