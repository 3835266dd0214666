"""Look which baseline attempts of a plan are in the cache already, and which entries the run will fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aggregate.records import AttemptRecord
from producer.baseline_cache import BaselineCache, baseline_key, fixture_digests, key, served
from producer.blessing import Blessed, baseline_records
from producer.plan import Plan
from workers.models.choose import agent_version


@dataclass(frozen=True)
class Reuse:
    """Records to take over, by attempt index, and the cache keys of all baseline attempts.

    `comparisons` counts this candidate and the earlier ones that were compared with the same cached baseline.
    `told` says what the records are, after their number.
    """

    folder: Path | None = None
    cached: dict[int, AttemptRecord] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    comparisons: int = 1
    told: str = "baseline attempts come from the cache"


def look_up(plan: Plan, now: float, *, only_look: bool = False) -> Reuse:
    """Ask the cache that the flags name; without one, or without a baseline, there is nothing to reuse.

    Unless it is to `only_look`, it notes in the cache that this candidate is compared with the baseline.
    """
    baseline = plan.baseline
    if plan.blessed is not None:
        return _blessed(plan, plan.blessed, now, only_look=only_look)
    if plan.options.baseline_cache_dir is None or baseline is None:
        return Reuse()
    if only_look and not plan.options.baseline_cache_dir.is_dir():
        return Reuse()
    cache = BaselineCache(plan.options.baseline_cache_dir)
    grid, arm = plan.grid, plan.arms.index(baseline)
    fixtures = fixture_digests(plan.whole_suite, plan.suite.folder)
    versions = {model: agent_version(model) for model in plan.options.models}
    cached, keys = {}, {}
    for index in range(arm, grid.attempts, grid.arms):
        cell = grid.cell(index)
        task, model = plan.suite.tasks[cell.task], plan.options.models[cell.model]
        keys[index] = key(
            skill=baseline.bundle.digest if baseline.bundle else None,
            task=task,
            fixtures=fixtures[task.id],
            model=model,
            settings=plan.options.settings,
            judge_model=plan.options.judge_model,
            skill_mode=plan.options.skill_mode,
            agent_version=versions[model],
            attempt=cell.number,
        )
        found = cache.get(keys[index], now)
        if found is not None:
            cached[index] = served(found, run_id=plan.run_id, task=task)
    return Reuse(
        folder=plan.options.baseline_cache_dir.resolve(),
        cached=cached,
        keys=keys,
        comparisons=1 if only_look else _comparisons(plan, cache, keys, now),
    )


def _blessed(plan: Plan, blessed: Blessed, now: float, *, only_look: bool) -> Reuse:
    """All baseline attempts from a file; a cache folder, where one is named, counts who is compared with it."""
    folder, comparisons = plan.options.baseline_cache_dir, 1
    if folder is not None and not only_look:
        comparisons = _comparisons(plan, BaselineCache(folder), {0: blessed.digest}, now)
    told = f"baseline attempts come from run {blessed.run_id}, which was blessed"
    return Reuse(cached=baseline_records(plan), comparisons=comparisons, told=told)


def _comparisons(plan: Plan, cache: BaselineCache, keys: dict[int, str], now: float) -> int:
    """How many earlier candidates were held against this baseline, and one for this run."""
    shared, seen = baseline_key(keys.values()), 0
    candidates = [arm for arm in plan.arms if arm.name != "baseline" and arm.bundle is not None]
    for arm in candidates:
        assert arm.bundle is not None
        seen = cache.note_comparison(shared, arm.bundle.digest, now)
    return max(1, seen - len(candidates) + 1)
