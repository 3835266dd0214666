"""What a plan would do, for `--dry-run`: how many calls, on what, and what they may cost."""

from __future__ import annotations

import time
from typing import Any

from producer.plan import Plan
from producer.reuse import look_up


def estimate(plan: Plan) -> dict[str, Any]:
    """Facts of a plan in the order in which people want them; None where something is not known."""
    grid = plan.grid
    cached = len(look_up(plan, time.time(), only_look=True).cached) if plan.arms else 0
    judged = sum(task.judge.type == "llm-rubric" for task in plan.suite.tasks)
    return {
        "suite": str(plan.suite.path),
        "tasks": grid.tasks,
        "arms": ", ".join(arm.name for arm in plan.arms) or "none",
        "skipped": ", ".join(arm.candidate_id or arm.name for arm in plan.skipped) or "none",
        "models": ", ".join(plan.options.models),
        "attempts_per_task": grid.pass_k,
        "model_calls": grid.attempts - cached,
        "from_cache": cached,
        "rubric_calls": judged * (grid.attempts // grid.tasks),
        "estimated_cost_usd": None,
    }
