"""Stopping early, through real runs: decisions that come between rounds, and baselines that are too weak."""

from functools import partial

import pytest
from running import SKILL, worker

from producer import aevaluate

pytestmark = pytest.mark.slow

TASKS, PASS_K = 6, 4
SUITE = {
    "skill_id": "haiku",
    "version": "1.0",
    "tasks": [
        {"id": f"t{n}", "prompt": f"Say word{n}.", "judge": {"type": "contains", "expected": [f"word{n}"]}}
        for n in range(TASKS)
    ],
}


@pytest.fixture
def evaluated(valkey, short_tmp):
    """Run the suite on a broker with one worker."""
    (short_tmp / "skill").mkdir()
    (short_tmp / "skill/SKILL.md").write_text(SKILL)
    options = {"broker": valkey, "state_root": short_tmp / "state", "pass_k": PASS_K}
    with worker(valkey, short_tmp):
        yield partial(aevaluate, SUITE, short_tmp / "skill", **options)


async def test_a_clear_difference_is_decided_between_rounds_and_the_plan_of_looks_is_told(evaluated):
    run = await evaluated(model="sim:baseline=0,candidate=1", stop_early=True)
    attempts, sequential = run.artifact.attempts, run.artifact.sequential
    assert (run.verdict, run.decision) == ("pass", "improved")
    assert attempts.run < attempts.planned
    assert attempts.run % (2 * TASKS) == 0  # whole rounds only
    assert len(sequential.looks) == attempts.run // (2 * TASKS)
    assert run.interval.low > 0


async def test_a_weak_baseline_ends_the_run_and_from_the_cache_it_costs_nothing(evaluated, short_tmp):
    (short_tmp / "before").mkdir()
    (short_tmp / "before/SKILL.md").write_text(f"{SKILL}Rhyme.\n")
    options = {
        "model": "sim:baseline=0,candidate=1,cost=0.01",
        "baseline": short_tmp / "before",
        "baseline_cache_dir": short_tmp / "cache",
    }
    first = await evaluated(**options)
    assert (first.verdict, first.artifact.status) == ("error", "weak_baseline")
    assert "baseline pass rate can reach" in first.artifact.reason
    second = await evaluated(**options)
    assert (second.verdict, second.spent_usd) == ("error", 0.0)
    attempts = second.artifact.attempts
    assert attempts.run == attempts.cached == sum(attempts.by_arm["baseline"].values())
    assert attempts.skipped == attempts.planned - attempts.cached
