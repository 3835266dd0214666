"""What is made of a finished artifact: its file, the trace of a failure, and the line that a run prints.

Apart from building one, because whoever only writes an artifact should not have to load pandas.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aggregate.artifact import model
from aggregate.artifact.model import Artifact, NotAnArtifact, PipelineEvaluation, PipelineResult
from aggregate.text import files
from aggregate.text.formats import dumps

TRACE_CHARACTERS = 200
_TRACED = ("run_id", "stage", "skill_id", "candidate_id", "verdict", "reason")
_STDOUT = ("execution_pass_rate", "baseline_pass_rate", "delta", "verdict")


def load(path: Path, max_bytes: int) -> Artifact:
    """Read an artifact's file; raises OSError, and NotAnArtifact for a file that holds something else."""
    try:
        return model.loads(files.read(path, max_bytes))
    except NotAnArtifact as problem:
        raise NotAnArtifact(f"{path} is not an artifact of this or an earlier version: {problem}") from None


def trace(artifact: Artifact) -> dict[str, Any] | None:
    """What a failed candidate leaves for whoever revises it: failed tasks, why, scores before and after."""
    if artifact.verdict != "fail":
        return None
    return {
        "schema_version": model.SCHEMA_VERSION,
        **{name: getattr(artifact, name) for name in _TRACED},
        "scores": {
            "before": artifact.baseline_pass_rate,
            "after": artifact.execution_pass_rate,
            "delta": artifact.delta,
        },
        "failed_tasks": list(_failed_tasks(artifact)),
        "next_step": artifact.next_step,
        "next_owner": artifact.next_owner,
    }


def stdout_line(artifact: Artifact) -> str:
    """The line of JSON that a run prints for a candidate, with its id where a ranking gave it one."""
    names = _STDOUT if artifact.candidate_id is None else ("candidate_id", *_STDOUT)
    return dumps({name: getattr(artifact, name) for name in names})


def write(artifact: Artifact, path: Path) -> Path:
    """Write the artifact with its own absolute path as `truth_anchor`; whole or not at all."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a symlink that was meant
    anchored = artifact.model_copy(update={"truth_anchor": str(path)})
    return files.write_text(anchored.model_dump_json(indent=2, exclude_unset=True) + "\n", path)


def write_json(value: Mapping[str, Any], path: Path) -> Path:
    """Write standard JSON through a temporary file beside it, so that no reader ever sees a part."""
    return files.write_text(dumps(value, indent=2) + "\n", path)


def _failed_tasks(artifact: Artifact) -> Iterator[dict[str, Any]]:
    """The tasks that the candidate did not pass, with its details cut short and scores before and after."""
    others = {(result.task_id, result.model): result for result in artifact.baseline_results}
    for result in artifact.candidate_results:
        if result.passed is False:
            before = others.get((result.task_id, result.model))
            rubric = result.judge == "llm-rubric"
            late = result.outcome == "timeout"
            yield {
                "task_id": result.task_id,
                "model": result.model,
                "failed_category": "efficiency" if late else "accuracy" if rubric else "execution",
                "details": (result.details or result.error or "")[:TRACE_CHARACTERS],
                "score_before": before.score if before else None,
                "score_after": result.score,
                "passed_before": before.passed if before else None,
            }


def with_pipeline_fields(artifact: Artifact) -> Artifact:
    """The artifact with what the improvement pipeline around a run reads: next step, its owner, results in its words.

    They say again what other fields say, in the names and places in which the pipeline's other programs look for it.
    """
    step, owner = ("abort", "human") if artifact.verdict == "error" else ("gate_decision", "gate")
    passes = [result.passed for result in artifact.candidate_results]
    evaluation = PipelineEvaluation(
        **{name: getattr(artifact, name) for name in (*_STDOUT, "reason")},
        pass_rate=artifact.execution_pass_rate,
        total_tasks=len(passes),
        passed=passes.count(True),
        failed=passes.count(False),
    )
    results = [
        PipelineResult(
            one.task_id, one.passed, one.score, one.duration_ms, one.details or "", one.error or ""
        )
        for one in artifact.candidate_results
    ]
    fields = {"next_step": step, "next_owner": owner, "evaluation": evaluation, "task_results": results}
    return artifact.model_copy(update=fields)
