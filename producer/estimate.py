"""What a plan would do, for `--dry-run`: how many calls, on what, and what they may cost."""

from __future__ import annotations

import time
from collections.abc import Container
from typing import Any

from producer.plan import Plan
from producer.reuse import look_up
from workers.models.choose import graders, mounts_skills
from workers.models.prices import attempt_estimate


def estimate(plan: Plan) -> dict[str, Any]:
    """Facts of a plan in the order in which people want them; None where something is not known."""
    grid = plan.grid
    cached = look_up(plan, time.time(), only_look=True).cached if plan.arms else {}
    judged = sum(task.judge.type == "llm-rubric" for task in plan.suite.tasks)
    return {
        "suite": str(plan.suite.path),
        "tasks": grid.tasks,
        "arms": ", ".join(arm.name for arm in plan.arms) or "none",
        "skipped": ", ".join(arm.candidate_id or arm.name for arm in plan.skipped) or "none",
        "models": ", ".join(plan.options.models),
        "attempts_per_task": grid.pass_k,
        "model_calls": grid.attempts - len(cached),
        "from_cache": len(cached),
        "rubric_calls": judged * (grid.attempts // grid.tasks),
        "estimated_cost_usd": _cost(plan, cached),
    }


def _cost(plan: Plan, cached: Container[int]) -> float | None:
    """What all calls may cost if each answer is as long as allowed; None where a model's price is unknown."""
    options, grid, total = plan.options, plan.grid, 0.0
    lengths = {arm.name: len(arm.skill.text) if arm.skill else 0 for arm in plan.arms}
    for index in range(grid.attempts):
        if index in cached:
            continue
        cell = grid.cell(index)
        task, spec = plan.suite.tasks[cell.task], options.models[cell.model]
        mounted = options.skill_mode == "mount" or (
            options.skill_mode is None and mounts_skills(spec, options.settings)
        )
        characters = len(task.prompt) + (0 if mounted else lengths[plan.arms[cell.arm].name])
        judging = graders(task, spec, options.judge_model)
        cost = attempt_estimate(spec, characters, judging, options.settings)
        if cost is None:
            return None
        total += cost
    return round(total, 6)
