"""Rates, points and cost, against counting by hand."""

from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregate import speedup, stats
from aggregate.formulas.rates import (
    attempt_pass_rate,
    compute_cop,
    compute_frontier_cop,
    compute_impl_rate,
    consensus,
    cost_per_extra_pass,
    cost_weighted_advantage,
    dominates,
    mean_known,
    normalized_gain,
    pass_at_k,
    pass_hat_k,
    rounded_delta,
    task_pass_rate,
)

small_counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def by_drawing(n: int, c: int, k: int, enough: int) -> float:
    """Share of all k-subsets of n attempts, c of which passed, that hold at least `enough` passes."""
    attempts = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(attempts, k))
    return sum(sum(subset) >= enough for subset in subsets) / len(subsets)


@given(small_counts, st.integers(1, 9))
def test_pass_at_k_is_the_share_of_k_subsets_with_a_pass(counts, k):
    n, c = counts
    if k > n:
        assert math.isnan(pass_at_k(n, c, k))
    else:
        assert pass_at_k(n, c, k) == pytest.approx(by_drawing(n, c, k, enough=1), abs=1e-15)


@given(small_counts, st.integers(1, 9))
def test_pass_hat_k_is_the_share_of_k_subsets_that_all_pass(counts, k):
    n, c = counts
    if k > n:
        assert math.isnan(pass_hat_k(n, c, k))
    else:
        assert pass_hat_k(n, c, k) == pytest.approx(by_drawing(n, c, k, enough=k), abs=1e-15)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_never_falls_and_pass_hat_k_never_rises_with_k(counts):
    n, c = counts
    any_passes = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    all_pass = [pass_hat_k(n, c, k) for k in range(1, n + 1)]
    assert any_passes == sorted(any_passes)
    assert all_pass == sorted(all_pass, reverse=True)
    assert any_passes[0] == all_pass[0] == pytest.approx(c / n)


def test_pass_at_k_keeps_its_digits_for_thousands_of_attempts():
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_hat_k(10_000, 9_999, 5_000) == 0.5
    # Beyond that logarithms serve: one pass in a million is among any half of them with a chance of a half
    assert pass_at_k(10**6, 1, 500_000) == pytest.approx(0.5)
    assert pass_hat_k(10**6, 999_999, 500_000) == pytest.approx(0.5)
    assert pass_at_k(10**9, 5 * 10**8, 3) == pytest.approx(1 - 0.5**3)
    assert (pass_at_k(10**9, 0, 7), pass_at_k(10**9, 10**9, 7), pass_hat_k(10**9, 3, 7)) == (0, 1, 0)


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [(3, 4, 1), (3, -1, 1), (-1, 0, 1), (3, 1, 0), (3, 1.5, 1), (math.nan, 1, 1), (3, 1, math.inf)],
)
def test_counts_that_cannot_be_are_refused_with_their_name(n, c, k):
    with pytest.raises(ValueError, match=r"^[nck]: "):
        pass_at_k(n, c, k)
    with pytest.raises(ValueError, match=r"^[nck]: "):
        pass_hat_k(n, c, k)


def test_a_task_passes_when_any_attempt_does_and_unjudged_tasks_count_nowhere():
    passes, attempts = [1, 0, 3, 0], [3, 3, 3, 0]
    assert task_pass_rate(passes, attempts) == pytest.approx(2 / 3)
    assert attempt_pass_rate(passes, attempts) == pytest.approx((1 / 3 + 0 + 1) / 3)


def test_rates_of_nothing_are_missing():
    assert math.isnan(task_pass_rate([], []))
    assert math.isnan(attempt_pass_rate([0, 0], [0, 0]))


def test_delta_is_the_difference_of_the_rates_as_printed():
    # 2/3 and 1/3 print as 0.6667 and 0.3333; the unrounded difference would print as 0.3333.
    assert rounded_delta(2 / 3, 1 / 3) == 0.3334
    assert math.isnan(rounded_delta(math.nan, 0.5))


def test_normalized_gain_is_the_share_of_the_possible_improvement():
    assert normalized_gain(0.75, 0.5) == 0.5
    assert normalized_gain(0.25, 0.5) == -0.5
    assert math.isnan(normalized_gain(1.0, 1.0))
    assert math.isnan(normalized_gain(math.nan, 0.5))


@pytest.mark.parametrize(
    ("achieved", "maximum", "rate"),
    [(10, 10, 1.0), (8.5, 10, 0.85), (0, 10, 0.0), (7.3, 12.5, 0.584), (12, 10, 1.2), (-1, 10, -0.1)],
)
def test_implementation_rate_is_points_achieved_of_points_possible_and_not_clamped(achieved, maximum, rate):
    assert compute_impl_rate(achieved, maximum) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("achieved", "maximum"),
    [(0, 0), (1, 0), (1, -2), (math.nan, 3), (1, math.nan), (1, math.inf), (math.inf, 3), (1e308, 1e-10)],
)
def test_implementation_rate_of_nothing_possible_or_nothing_known_is_missing(achieved, maximum):
    assert math.isnan(compute_impl_rate(np.float64(achieved), np.float64(maximum)))


def test_a_panels_consensus_is_the_median_of_the_judges_that_gave_one():
    assert consensus([0.2, None, 0.9, math.nan, 0.6]) == 0.6
    assert consensus([0.2, 0.6]) == pytest.approx(0.4)
    assert math.isnan(consensus([None, math.nan]))
    assert math.isnan(consensus([]))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(0, 5))
def test_missing_values_never_move_a_mean(values, missing):
    assert mean_known([*values, *[None] * missing]) == pytest.approx(float(np.mean(values)), abs=1e-6)


def test_cost_of_pass_is_cost_per_attempt_over_pass_rate():
    assert compute_cop(0.02, 0.5) == 0.04
    assert compute_cop(0.02, 1) == 0.02


def test_cost_of_pass_is_infinite_without_a_pass_and_missing_without_a_price():
    assert compute_cop(0.02, 0) == math.inf
    assert math.isnan(compute_cop(None, 0))
    assert math.isnan(compute_cop(math.nan, 0.5))
    assert math.isnan(compute_cop(0.02, None))


def test_the_frontier_is_the_cheapest_finite_cost_of_pass():
    assert compute_frontier_cop([math.inf, 0.4, math.nan, 0.1, None]) == 0.1
    assert math.isnan(compute_frontier_cop([math.inf, math.nan]))
    assert math.isnan(compute_frontier_cop([]))


def test_cost_weighted_advantage_is_zero_at_no_cost_and_none_at_unknown_cost():
    assert cost_weighted_advantage(0.3, 0.06) == pytest.approx(5)
    assert cost_weighted_advantage(-0.3, 0.06) == pytest.approx(-5)
    assert cost_weighted_advantage(0.3, 0) == 0
    assert cost_weighted_advantage(0.3, None) is None
    assert cost_weighted_advantage(0.3, math.nan) is None
    assert cost_weighted_advantage(math.nan, 0.06) is None


def test_an_extra_pass_has_a_price_only_when_the_candidate_is_better_and_dearer():
    assert cost_per_extra_pass(0.05, 0.03, 0.4) == pytest.approx(0.05)
    assert math.isnan(cost_per_extra_pass(0.05, 0.03, 0.0))
    assert math.isnan(cost_per_extra_pass(0.05, 0.03, -0.4))
    assert math.isnan(cost_per_extra_pass(0.03, 0.05, 0.4))
    assert math.isnan(cost_per_extra_pass(None, 0.05, 0.4))


def test_better_and_no_dearer_dominates():
    assert dominates(0.03, 0.05, 0.1)
    assert dominates(0.05, 0.05, 0.1)
    assert not dominates(0.06, 0.05, 0.1)
    assert not dominates(0.03, 0.05, 0.0)
    assert not dominates(None, 0.05, 0.1)
    assert not dominates(0.03, 0.05, None)


def test_the_public_names_of_the_formulas_are_those_of_version_0_1_0():
    assert {
        getattr(stats, name).__module__.split(".")[1] for name in dir(stats) if name != "FLAKY_RANGE"
    } == {"formulas"}
    assert len(dir(stats)) == 38
    assert stats.FLAKY_RANGE == 20
    assert stats.pass_at_k is pass_at_k
    assert stats.delta_interval([1], [1], [0], [1]).estimate == 1
    with pytest.raises(AttributeError, match="has no attribute 'pass_at_all'"):
        _ = stats.pass_at_all
    assert speedup.group_name("module.function", 1) == "module"
    assert set(speedup.__all__) <= set(dir(speedup))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "aggregate.stats",
            """FLAKY_RANGE Interval PairedCounts SignFlip TaskChanges attempt_pass_rate attempts_needed
            benjamini_hochberg compute_consistency compute_consistency_metrics compute_cop compute_frontier_cop
            compute_impl_rate concept_overlap consensus cost_per_extra_pass cost_weighted_advantage d2
            delta_interval dominates fisher_by_task fixed_suite_interval flaky_text holm judge_bias
            krippendorff_alpha mcnemar_exact mean_known min_detectable_effect normalized_gain paired_counts
            pass_at_k pass_hat_k rounded_delta sign_flip_test task_pass_rate tasks_needed unseen_bound""",
        ),
        ("aggregate.speedup", "LEVELS compute_advantage group_name task_payload summarize_speedups"),
    ],
)
def test_every_public_name_of_version_0_1_0_is_there(module, names):
    public = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(public, name)] == []


def test_importing_the_statistics_imports_neither_pandas_nor_scipy():
    code = "import sys, aggregate.stats; print([m for m in ('pandas', 'scipy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
