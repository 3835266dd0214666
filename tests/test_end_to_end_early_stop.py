"""Stopping early, through real runs: the same verdict for fewer attempts, and decisions that come between rounds."""

import asyncio
from functools import partial

import pytest
from running import SKILL, worker

from producer import aevaluate
from producer.aggregation import compare_runs
from producer.places import Places

pytestmark = pytest.mark.slow

TASKS, PASS_K = 6, 4
# Base rates of both arms, so that verdicts of both kinds and close calls are among them.
RATES = [(0.2, 0.8), (0.8, 0.2), (0.5, 0.5), (0.9, 0.95)]
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


async def test_the_verdict_is_that_of_the_full_run_with_the_same_seeds_and_attempts_are_saved(evaluated):
    specs = [
        f"sim:baseline={baseline},candidate={candidate},error=0.03,cost=0.01,seed={seed}"
        for seed, (baseline, candidate) in enumerate(RATES)
    ]
    full = await asyncio.gather(*(evaluated(model=spec) for spec in specs))
    early = await asyncio.gather(*(evaluated(model=spec, stop_early="verdict") for spec in specs))
    assert [run.verdict for run in early] == [run.verdict for run in full]
    assert {"pass", "fail"} <= {run.verdict for run in full}
    for run in early:
        attempts = run.artifact["attempts"]
        assert attempts["planned"] == 2 * TASKS * PASS_K
        assert attempts["run"] + attempts["skipped"] == attempts["planned"]
        assert attempts["run"] == len(list(run.records()))
        assert run.decision == "inconclusive"  # of what was left out nobody can tell how sure it is
    saved = [run.artifact["attempts"]["skipped"] for run in early]
    assert all(saved)
    assert sum(run.spent_usd for run in early) < sum(run.spent_usd for run in full)
    places = Places(full[0].artifact_path.parent.parent)
    told = [compare_runs(runs[0].run_id, runs[1].run_id, places, margin=0.05) for runs in (full, early)]
    assert [comparison["curtailed"] for comparison in told] == [False, True]
    assert [comparison["decision"] for comparison in told] == ["worse", "inconclusive"]


async def test_a_clear_difference_is_decided_between_rounds_and_the_plan_of_looks_is_told(evaluated):
    run = await evaluated(model="sim:baseline=0,candidate=1", stop_early="decision")
    attempts, sequential = run.artifact["attempts"], run.artifact["sequential"]
    assert (run.verdict, run.decision) == ("pass", "improved")
    assert attempts["run"] < attempts["planned"]
    assert attempts["run"] % (2 * TASKS) == 0  # whole rounds only
    assert len(sequential["looks"]) == attempts["run"] // (2 * TASKS)
    assert run.interval.low > 0
