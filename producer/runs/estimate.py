"""What a plan would do: how many calls, on what, what they may cost, and how much of the server's memory they take."""

from __future__ import annotations

import os
import time
from collections.abc import Container
from typing import Any

from judges.errors import INFRASTRUCTURE, UpliftError
from producer.baselines.cache import Reuse, look_up
from producer.plan import Plan, mounts
from workers.models.choose import asked, graders, is_agent, lacking
from workers.models.prices import attempt_estimate, longest_answer
from workers.store import keys, redis_client
from workers.store.run_store import Store, pack, pack_task

# Bytes, measured with `python -m bench.server_memory`; docs/scaling.md has its table.
ENTRY = 64  # what the server needs for a task or a record beside its text
SMALLEST_RECORD = 400  # with an answer of a few words
TYPICAL_RECORD = 900  # with an answer of 1 kB
MESSAGE = 120  # an attempt's share of its batch
FIXED = 700_000  # manifest, scripts, connections of a few workers
# In tokens, a few paragraphs: an assumption, and told beside the figure that rests on it.
TYPICAL_ANSWER = 300


def asked_by(plan: Plan) -> list[str]:
    """The models that a plan asks; none where nothing is run."""
    options, rejudged = plan.options, plan.rejudged_from is not None
    if not plan.arms:
        return []
    return asked(options.models, plan.suite.tasks, options.judge_model, rejudged=rejudged)


def estimate(plan: Plan, *, private: bool) -> dict[str, Any]:
    """Facts of a plan in the order in which people want them; None where something is not known.

    What is missing is known for a `private` worker only: others have surroundings of their own.
    """
    grid = plan.grid
    reuse = look_up(plan, time.time(), only_look=True) if plan.arms else Reuse()
    cached = {**reuse.cached, **reuse.answers}
    lacks = lacking(asked_by(plan), plan.options.settings, os.environ) if private else []
    judged = sum(len(task.rubrics) for task in plan.suite.tasks)
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


class DoesNotFit(UpliftError):
    """The server has less memory left than the run needs at least."""

    exit_code = INFRASTRUCTURE


def check_size(store: Store, plan: Plan, reuse: Reuse) -> str | None:
    """What to say of a run that may not fit into the server's maxmemory; raises DoesNotFit for one that cannot.

    New records are taken to be as large as those that are there already: from a cache, a blessed baseline or a
    recording. What agents leave in their folders is not foreseen.
    """
    memory = redis_client.memory(store.client)
    if memory is None or store.client.exists(keys.Keys(plan.run_id).state):
        return None
    used, most = memory
    reused = [len(pack(record)) + ENTRY for record in reuse.cached.values()]
    recorded = [len(pack(record)) + ENTRY for _, record in plan.placed(plan.recorded)]
    tasks = sum(len(pack_task(task)) + ENTRY for task in plan.suite.tasks)
    bundles = sum(
        len(data)
        for digest, data in {bundle.digest: bundle.data for bundle in plan.bundles}.items()
        if not store.client.exists(keys.bundle(digest))
    )
    known = tasks + bundles + sum(reused) + sum(recorded)
    new, options, seen = plan.grid.attempts - len(reused), plan.options, reused + recorded
    certain = 0 if options.stop_early or options.budget_usd is not None else new
    least = known + certain * SMALLEST_RECORD
    each = max(SMALLEST_RECORD, sum(seen) // len(seen)) if seen else TYPICAL_RECORD
    likely = known + new * (each + MESSAGE) + FIXED
    parts = f"tasks {_mb(tasks)}, bundles {_mb(bundles)}, records that are there {_mb(sum(seen))}"
    left = f"{_mb(max(0, most - used))} of its maxmemory ({_mb(most)}) are left"
    remedy = "raise maxmemory, delete runs, or run fewer attempts"
    if least > most - used:
        raise DoesNotFit(
            f"the run needs at least {_mb(least)} on the server ({parts}, and {certain:,} new ones of "
            f"{SMALLEST_RECORD} bytes), but {left}; {remedy}"
        )
    if likely > most - used:
        basis = f"as in the {len(seen):,} that are there" if seen else "an assumption"
        return (
            f"the run may fill the server: it takes about {_mb(likely)} ({parts}, and {new:,} new ones of "
            f"{each:,} bytes, {basis}), but {left}; while it is full the run waits: {remedy}"
        )
    return None


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
