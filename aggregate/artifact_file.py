"""What is made of a finished artifact: its file, the trace of a failure, and the line that a run prints.

Apart from building one, because whoever only writes an artifact should not have to load pandas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aggregate import files
from aggregate.standard_json import dumps

SCHEMA_VERSION = "1.0"
TRACE_CHARACTERS = 200
_STDOUT = ("execution_pass_rate", "baseline_pass_rate", "delta", "verdict")


def trace(artifact: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a failed candidate leaves for whoever revises it: failed tasks, why, scores before and after."""
    if artifact["verdict"] != "fail":
        return None
    failed = failed_tasks(artifact["candidate_results"], artifact["baseline_results"])
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": artifact["run_id"],
        "stage": "evaluated",
        "skill_id": artifact["skill_id"],
        "candidate_id": artifact["candidate_id"],
        "verdict": artifact["verdict"],
        "reason": artifact["reason"],
        "scores": {
            "before": artifact["baseline_pass_rate"],
            "after": artifact["execution_pass_rate"],
            "delta": artifact["delta"],
        },
        "failed_tasks": failed,
        "next_step": artifact["next_step"],
        "next_owner": artifact["next_owner"],
    }


def stdout_line(artifact: Mapping[str, Any]) -> str:
    """The one line of JSON that a run prints."""
    return dumps({name: artifact[name] for name in _STDOUT})


def write(artifact: Mapping[str, Any], path: Path) -> Path:
    """Write the artifact with its own absolute path as `truth_anchor`; whole or not at all."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a symlink that was meant
    return write_json({**artifact, "truth_anchor": str(path)}, path)


def write_json(value: Mapping[str, Any], path: Path) -> Path:
    """Write standard JSON through a temporary file beside it, so that no reader ever sees a part."""
    return files.write_text(dumps(value, indent=2) + "\n", path)


def failed_category(result: dict[str, Any]) -> str:
    """Why a task failed: efficiency for time-outs, accuracy for rubric failures, execution for all else."""
    if result["outcome"] == "timeout":
        return "efficiency"
    return "accuracy" if result["judge"] == "llm-rubric" else "execution"


def failed_tasks(candidate: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks that the candidate did not pass, with its details cut short and scores before and after."""
    before = {(result["task_id"], result["model"]): result for result in baseline}
    return [
        {
            "task_id": result["task_id"],
            "model": result["model"],
            "failed_category": failed_category(result),
            "details": (result["details"] or result["error"] or "")[:TRACE_CHARACTERS],
            "score_before": before.get((result["task_id"], result["model"]), {}).get("score"),
            "score_after": result["score"],
            "passed_before": before.get((result["task_id"], result["model"]), {}).get("passed"),
        }
        for result in candidate
        if result["passed"] is False
    ]
