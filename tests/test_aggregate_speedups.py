"""Speedups, every rule with numbers worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aggregate.formulas.speedups import compute_advantage, group_name, summarize_speedups, task_payload
from judges import judgment
from judges.judgment import BenchmarkTimes, Snapshot

LEVELS = [f"agent_advantage_level{level}" for level in (1, 2, 3, 4)]


def a_benchmark(name="sort.Suite.time_sort(10)", nop=1.0, agent=0.5, oracle=0.4):
    return {"name": name, "nop_median": nop, "agent_median": agent, "oracle_median": oracle}


def test_one_benchmark_by_hand():
    # 1.0 / 0.5 = 2, 1.0 / 0.4 = 2.5, advantage -0.5
    found = compute_advantage([a_benchmark()], failed=False)
    assert found["task_speedup"] == pytest.approx(2)
    assert found["agent_advantage"] == pytest.approx(-0.5)
    assert [found[level] for level in LEVELS] == pytest.approx([-0.5] * 4)
    assert (found["num_benchmarks"], found["num_valid_benchmarks"]) == (1, 1)
    assert found["fallback_to_baseline"] is False
    (row,) = found["per_benchmark_speedups"]
    assert (row["agent_speedup"], row["oracle_speedup"], row["advantage"]) == pytest.approx((2, 2.5, -0.5))


def test_benchmarks_of_a_record_and_plain_mappings_are_read_alike():
    record = BenchmarkTimes(
        name="sort.Suite.time_sort(10)", nop_median=1, agent_median=0.5, oracle_median=0.4
    )
    assert compute_advantage([record], failed=False) == compute_advantage([a_benchmark()], failed=False)


def test_the_task_speedup_is_the_geometric_mean_of_valid_agent_speedups():
    # Speedups 2, 8 and 0.5: (2 · 8 · 0.5)^(1/3) = 2
    agents = (0.5, 0.125, 2.0)
    found = compute_advantage([a_benchmark(f"m.f{i}", agent=agent) for i, agent in enumerate(agents)], False)
    assert found["task_speedup"] == pytest.approx(2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"agent": None},
        {"agent": 0.0},
        {"agent": -0.5},
        {"agent": math.nan},
        {"agent": math.inf},
        {"nop": None},
        {"nop": 0.0},
        {"oracle": 0.0},
        {"oracle": None},
        {"oracle": math.inf},
        {"nop": 1e300, "agent": 1e-300},
    ],
)
def test_a_benchmark_without_two_finite_ratios_above_zero_is_counted_and_left_out(wrong):
    # Given one sound benchmark (2 against 2.5) and one that is not
    found = compute_advantage([a_benchmark(), a_benchmark("m.f", **wrong)], failed=False)
    assert (found["num_benchmarks"], found["num_valid_benchmarks"]) == (2, 1)
    assert found["task_speedup"] == pytest.approx(2)
    assert found["agent_advantage"] == pytest.approx(-0.5)


def test_without_any_valid_benchmark_the_speedup_is_one_and_advantages_are_missing():
    for nothing in ([], [a_benchmark(agent=None)]):
        found = compute_advantage(nothing, failed=False)
        assert found["task_speedup"] == 1.0
        assert all(math.isnan(found[level]) for level in ["agent_advantage", *LEVELS])
        assert found["num_valid_benchmarks"] == 0


def test_without_an_oracle_the_agents_ratio_is_enough_and_advantages_are_missing():
    found = compute_advantage([a_benchmark(oracle=None), a_benchmark(oracle=None, agent=0.125)], failed=False)
    assert found["num_valid_benchmarks"] == 2
    assert found["task_speedup"] == pytest.approx(4)
    assert all(math.isnan(found[level]) for level in ["agent_advantage", *LEVELS])


def test_a_failed_candidate_is_treated_as_if_it_had_changed_nothing():
    # Agent ratios become 1; oracle ratios 2.5 and 10 stay: gmean 5, so 1 - 5 at level 4
    rows = [a_benchmark("m.A.f"), a_benchmark("m.A.g", oracle=0.1)]
    found = compute_advantage(rows, failed=True)
    assert found["fallback_to_baseline"] is True
    assert found["task_speedup"] == 1.0
    assert found["agent_advantage_level4"] == pytest.approx(1 - 5)
    # at level 3 each function is a group of its own: mean(1 - 2.5, 1 - 10)
    assert found["agent_advantage_level3"] == pytest.approx((-1.5 - 9) / 2)
    assert [row["agent_speedup"] for row in found["per_benchmark_speedups"]] == [1.0, 1.0]
    assert [row["advantage"] for row in found["per_benchmark_speedups"]] == pytest.approx([-1.5, -9])


def test_the_fallback_also_gives_a_speedup_to_benchmarks_that_the_candidate_broke():
    found = compute_advantage([a_benchmark(agent=None)], failed=True)
    assert found["num_valid_benchmarks"] == 1
    assert found["agent_advantage"] == pytest.approx(1 - 2.5)


@pytest.mark.parametrize(
    ("name", "module", "cls", "function"),
    [
        ("sort.Suite.time_sort(10)", "sort", "sort.Suite", "sort.Suite.time_sort"),
        ("sort.Suite.time_sort(20, 'a.B.c')", "sort", "sort.Suite", "sort.Suite.time_sort"),
        ("pkg.sort.time_sort", "pkg.sort", "pkg.sort", "pkg.sort.time_sort"),
        ("pkg.sort.Suite.time_sort", "pkg.sort", "pkg.sort.Suite", "pkg.sort.Suite.time_sort"),
        ("Suite.time_sort", "Suite", "Suite", "Suite.time_sort"),
        ("time_sort(3)", "", "", "time_sort"),
    ],
)
def test_names_are_grouped_by_module_class_and_function_without_parameters(name, module, cls, function):
    assert [group_name(name, level) for level in (1, 2, 3, 4)] == [module, cls, function, ""]


def test_each_level_averages_over_its_own_groups():
    # Agent and oracle ratios: a.X.f(1) 2, 1; a.X.f(2) 8, 1; a.Y.g 1, 1; b.h 4, 2
    rows = [
        a_benchmark("a.X.f(1)", agent=1 / 2, oracle=1),
        a_benchmark("a.X.f(2)", agent=1 / 8, oracle=1),
        a_benchmark("a.Y.g", agent=1, oracle=1),
        a_benchmark("b.h", agent=1 / 4, oracle=1 / 2),
    ]
    found = compute_advantage(rows, failed=False)
    # modules: a has gmean 16^(1/3) against 1, b has 4 against 2
    assert found["agent_advantage_level1"] == pytest.approx(((16 ** (1 / 3) - 1) + 2) / 2)
    # classes: X has gmean(2, 8) = 4 against 1, Y has 1 against 1, b has none of its own
    assert found["agent_advantage_level2"] == pytest.approx((3 + 0 + 2) / 3)
    # functions: f is one group whatever its parameters
    assert found["agent_advantage_level3"] == pytest.approx((3 + 0 + 2) / 3)
    # overall: 64^(1/4) against 2^(1/4)
    assert found["agent_advantage_level4"] == pytest.approx(64**0.25 - 2**0.25)
    assert found["agent_advantage"] == found["agent_advantage_level4"]


def test_a_class_and_its_functions_are_different_groups():
    rows = [a_benchmark("a.X.f", agent=1 / 2, oracle=1), a_benchmark("a.X.g", agent=1 / 8, oracle=1)]
    found = compute_advantage(rows, failed=False)
    assert found["agent_advantage_level2"] == pytest.approx(4 - 1)
    assert found["agent_advantage_level3"] == pytest.approx((1 + 7) / 2)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=10))
def test_the_overall_advantage_is_the_difference_of_scipys_geometric_means(medians):
    rows = [a_benchmark(f"m.f{i}", agent=agent, oracle=oracle) for i, (agent, oracle) in enumerate(medians)]
    found = compute_advantage(rows, failed=False)
    agents, oracles = ([1 / median for median in column] for column in zip(*medians, strict=True))
    assert found["task_speedup"] == pytest.approx(stats.gmean(agents))
    assert found["agent_advantage"] == pytest.approx(stats.gmean(agents) - stats.gmean(oracles), abs=1e-9)
    assert compute_advantage(rows[::-1], False)["agent_advantage"] == pytest.approx(found["agent_advantage"])


@pytest.mark.parametrize(
    ("tests", "snapshot", "pytest_failed", "snapshot_failed"),
    [
        (None, None, False, False),
        (judgment.Tests(passed=3), Snapshot(status="passed"), False, False),
        (judgment.Tests(passed=2, failed=1), None, True, False),
        (judgment.Tests(passed=2, errored=1), None, True, False),
        (judgment.Tests(failed=2, oracle_failed=2), None, False, False),
        (judgment.Tests(failed=1, errored=2, oracle_failed=2), None, True, False),
        (judgment.Tests(passed=3), Snapshot(status="failed"), False, True),
        (judgment.Tests(passed=3), Snapshot(status=None), False, True),
        (judgment.Tests(passed=3), Snapshot(status="passed", pass_to_fail=1), False, True),
        (judgment.Tests(failed=1), Snapshot(status="failed"), True, True),
    ],
)
def test_failed_tests_and_snapshots_revert_the_candidate(tests, snapshot, pytest_failed, snapshot_failed):
    payload = task_payload([a_benchmark()], tests, snapshot)
    failed = pytest_failed or snapshot_failed
    assert (payload["pytest_failed"], payload["snapshot_failed"]) == (pytest_failed, snapshot_failed)
    assert payload["success"] is not failed
    assert payload["fallback_to_baseline"] is failed
    assert payload["task_speedup"] == pytest.approx(1.0 if failed else 2.0)


def test_a_payload_keeps_what_the_tests_and_the_snapshot_said():
    payload = task_payload(
        [a_benchmark()], judgment.Tests(passed=3), Snapshot(status="passed"), cost_usd=0.2, turns=7
    )
    assert payload["pytest_summary"] == {"passed": 3, "failed": 0, "errored": 0, "oracle_failed": 0}
    assert payload["snapshot_summary"] == {"status": "passed", "pass_to_fail": 0}
    assert (payload["task_cost_usd"], payload["trajectory_length"]) == (0.2, 7)


def test_a_run_averages_its_tasks_and_sums_their_benchmarks():
    # Given a task with speedup 2 (advantage -0.5) and a failed one (speedup 1, advantage 1 - 2.5)
    good = {
        **task_payload([a_benchmark()], judgment.Tests(passed=1), cost_usd=0.1, turns=4),
        "passes": 2,
        "attempts": 3,
    }
    bad = {
        **task_payload([a_benchmark(), a_benchmark("m.f", agent=0.0, oracle=None)], judgment.Tests(failed=1)),
        "passes": 0,
        "attempts": 3,
    }
    found = summarize_speedups([good, bad])
    assert found["n"] == 2
    assert found["mean_speedup"] == pytest.approx(1.5)
    assert found["mean_success_rate"] == 0.5
    assert found["agent_advantage"] == pytest.approx((-0.5 - 1.5) / 2)
    assert [found[level] for level in LEVELS] == pytest.approx([-1.0] * 4)
    assert (found["num_benchmarks"], found["num_valid_benchmarks"]) == (3, 2)
    # Then the unknown cost of the second task is missing, not free
    assert found["mean_cost_per_task"] == pytest.approx(0.1)
    assert found["cost_weighted_advantage"] == pytest.approx(-10)
    assert found["mean_trajectory_length"] == 4
    assert found["accuracy"] == 0.5
    # pass@1 = mean(2/3, 0); pass@2 = mean(1, 0)
    assert found["pass_at_k"] == pytest.approx({1: 1 / 3, 2: 0.5, 3: 0.5})


def test_a_run_without_tasks_knows_nothing():
    found = summarize_speedups([])
    assert found["n"] == found["num_benchmarks"] == 0
    assert math.isnan(found["mean_speedup"])
    assert math.isnan(found["agent_advantage"])
    assert found["cost_weighted_advantage"] is None
    assert found["pass_at_k"] == {}


def test_tasks_without_an_oracle_do_not_move_the_mean_advantage():
    with_oracle = compute_advantage([a_benchmark()], failed=False)
    without = compute_advantage([a_benchmark(oracle=None)], failed=False)
    assert summarize_speedups([with_oracle, without])["agent_advantage"] == pytest.approx(-0.5)
