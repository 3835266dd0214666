"""What a plan would do, for `--dry-run`: how many calls, on what, and what they may cost."""

from __future__ import annotations

import os
import time
from collections.abc import Container
from typing import Any

from producer.baselines.cache import look_up
from producer.plan import Plan, mounts
from producer.runs.submit import asked_by
from workers.models.choose import graders, is_agent, lacking
from workers.models.prices import attempt_estimate, longest_answer

# In tokens, a few paragraphs: an assumption, and told beside the figure that rests on it.
TYPICAL_ANSWER = 300


def estimate(plan: Plan, *, private: bool) -> dict[str, Any]:
    """Facts of a plan in the order in which people want them; None where something is not known.

    What is missing is known for a `private` worker only: others have surroundings of their own.
    """
    grid = plan.grid
    cached = look_up(plan, time.time(), only_look=True).cached if plan.arms else {}
    lacks = lacking(asked_by(plan), plan.options.settings, os.environ) if private else []
    judged = sum(task.judge.type == "llm-rubric" for task in plan.suite.tasks)
    return {
        "suite": str(plan.suite.path),
        "tasks": grid.tasks,
        "arms": ", ".join(arm.name for arm in plan.arms) or "none",
        "not_run": "; ".join(f"{one.candidate_id} ({one.verdict}: {one.reason})" for one in plan.not_run)
        or "none",
        "models": ", ".join(plan.options.models),
        "missing": ("; ".join(need.found for need in lacks) or "none") if private else None,
        "attempts_per_task": grid.pass_k,
        "model_calls": grid.attempts - len(cached),
        "from_cache": len(cached),
        "rubric_calls": judged * (grid.attempts // grid.tasks),
        **_costs(plan, cached),
    }


def _costs(plan: Plan, cached: Container[int]) -> dict[str, float | str | None]:
    """What the calls may cost at most and what is likely, and what both figures rest on."""
    settings = plan.options.settings
    agents = [spec for spec in asked_by(plan) if is_agent(spec, settings)]
    if agents:
        assumed = f"how many turns {', '.join(agents)} takes, nobody can foresee"
        return {"cost_usd_at_most": None, "cost_usd_likely": None, "assumed": assumed}
    longest = longest_answer(settings)
    typical = min(TYPICAL_ANSWER, longest)
    return {
        "cost_usd_at_most": _cost(plan, cached, longest),
        "cost_usd_likely": _cost(plan, cached, typical),
        "assumed": f"each call made once; every answer has {longest} tokens at most, and {typical} likely",
    }


def _cost(plan: Plan, cached: Container[int], tokens: int) -> float | None:
    """What all calls cost if each answer has that many tokens; None where a model's price is unknown."""
    options, grid, total = plan.options, plan.grid, 0.0
    lengths = {arm.name: len(arm.skill.text) if arm.skill else 0 for arm in plan.arms}
    for index in range(grid.attempts):
        if index in cached:
            continue
        cell = grid.cell(index)
        task, spec = plan.suite.tasks[cell.task], options.models[cell.model]
        characters = len(task.prompt) + (0 if mounts(spec, options) else lengths[plan.arms[cell.arm].name])
        judging = graders(task, spec, options.judge_model)
        cost = attempt_estimate(spec, characters, judging, options.settings, tokens)
        if cost is None:
            return None
        total += cost
    return round(total, 6)
