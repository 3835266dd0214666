"""Consistency over repeats, by hand and against tabulated control-chart constants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from aggregate.formulas.consistency import (
    compute_consistency,
    compute_consistency_metrics,
    concept_overlap,
    d2,
    flaky_text,
    unseen_bound,
)

results = st.lists(
    st.builds(
        lambda task, accuracy, matched: {"task": task, "accuracy": accuracy, "matched": matched},
        st.sampled_from(["a", "b", "c"]),
        st.floats(0, 100),
        st.lists(st.sampled_from(["x", "y", "z"])),
    ),
    max_size=20,
)


def attempts(task, *accuracies, matched=()):
    return [{"task": task, "accuracy": accuracy, "matched": list(matched)} for accuracy in accuracies]


def test_consistency_is_one_minus_the_coefficient_of_variation():
    values = [0.8, 0.9, 1.0]
    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    assert compute_consistency(mean, std) == pytest.approx(1 - float(stats.variation(values, ddof=1)))
    assert compute_consistency(0.5, 0.0) == 1
    assert compute_consistency(0.1, 0.5) == 0


@pytest.mark.parametrize(
    ("mean", "std"), [(0, 0), (0, 1), (math.nan, 0.1), (0.5, math.nan), (math.inf, 1), (-1, 0.1), (1, -0.1)]
)
def test_consistency_without_a_mean_above_zero_or_a_spread_is_missing(mean, std):
    assert math.isnan(compute_consistency(np.float64(mean), np.float64(std)))


def test_the_block_averages_tasks_and_uses_the_population_standard_deviation():
    # Given task a at 50 and 85 (std 17.5, range 35) and task b at 90, 90, 90
    block = compute_consistency_metrics(attempts("a", 50, 85) + attempts("b", 90, 90, 90))
    assert block["accuracy_std_dev"] == pytest.approx(17.5 / 2)
    assert block["accuracy_range"] == pytest.approx(35 / 2)
    assert block["consistency_score"] == pytest.approx(100 - 3 * 8.75)
    assert block["flaky_tasks"] == ["a"]
    assert block["n"] == 2


def test_the_consistency_score_is_clamped_at_zero():
    assert compute_consistency_metrics(attempts("a", 0, 100))["consistency_score"] == 0


def test_there_is_no_block_without_a_repeated_task():
    assert compute_consistency_metrics([]) is None
    assert compute_consistency_metrics(attempts("a", 50) + attempts("b", 90)) is None


@pytest.mark.parametrize("unjudged", [None, math.nan, math.inf, "0.5"])
def test_an_attempt_that_was_not_judged_repeats_nothing(unjudged):
    assert compute_consistency_metrics(attempts("a", 50, unjudged)) is None
    judged = compute_consistency_metrics(attempts("a", 50, 60))
    assert compute_consistency_metrics(attempts("a", 50, unjudged, 60)) == judged


def test_a_task_is_flaky_strictly_above_twenty_points_whatever_the_last_bits_say():
    # 100 · 0.7 - 100 · 0.5 is 19.999999999999993 and 100 · 1.2 - 100 is 20.000000000000004 in floats
    for accuracies in ((100 * 0.7, 100 * 0.5), (100 * 0.9, 100 * 0.7), (0.0, 20.0), (0.0, 20.0 + 1e-12)):
        assert compute_consistency_metrics(attempts("a", *accuracies))["flaky_tasks"] == []
    assert compute_consistency_metrics(attempts("a", 0, 20.001))["flaky_tasks"] == ["a"]


def test_a_flaky_warning_names_the_task_and_its_range():
    block = compute_consistency_metrics(attempts("names-the-platform", 50, 85, 60, 70, 80))
    assert block["warnings"] == ["names-the-platform: range 35 points over 5 attempts"]
    assert flaky_text(33.333333, 3) == "range 33.3 points over 3 attempts"


def test_the_sigma_flag_does_not_depend_on_the_number_of_attempts():
    # Given ranges of 24 points over 2 and over 10 attempts: 24 / 1.128 = 21.3 and 24 / 3.078 = 7.8
    block = compute_consistency_metrics(attempts("few", 50, 74) + attempts("many", 50, 74, *[60] * 8))
    assert block["flaky_tasks"] == ["few", "many"]
    assert block["flaky_sigma"] == pytest.approx({"few": 24 / 1.128, "many": 24 / 3.078}, rel=1e-3)
    # Then only the first one varies as much as two attempts may at the most (20 / 1.128 = 17.7)
    assert block["flaky_by_sigma"] == ["few"]


@pytest.mark.parametrize(
    ("attempts_made", "tabulated"),
    [(2, 1.128), (3, 1.693), (4, 2.059), (5, 2.326), (6, 2.534), (10, 3.078), (15, 3.472), (25, 3.931)],
)
def test_the_range_constant_is_the_control_charts_d2(attempts_made, tabulated):
    assert d2(attempts_made) == pytest.approx(tabulated, abs=5.1e-4)


def test_the_range_constant_holds_for_any_number_of_attempts():
    assert d2(2) == pytest.approx(2 / math.sqrt(math.pi), abs=1e-12)
    assert d2(3) == pytest.approx(3 / math.sqrt(math.pi), abs=1e-12)
    draws = np.random.default_rng(4).normal(size=(4_000, 1_000))
    assert d2(1_000) == pytest.approx(float(np.ptp(draws, axis=1).mean()), abs=0.05)
    assert math.isnan(d2(1))


def test_attempts_that_all_agree_leave_a_bound_on_what_was_not_seen():
    # Three agreeing attempts: an outcome of chance p stays unseen with (1 - p)^3, which is 5 % at p = 0.632
    block = compute_consistency_metrics(attempts("a", 100, 100, 100) + attempts("b", 0, 100))
    assert block["unseen_bound"] == pytest.approx({"a": 1 - 0.05 ** (1 / 3)})
    assert unseen_bound(3) == pytest.approx(stats.binomtest(0, 3).proportion_ci(0.9).high)
    assert math.isnan(unseen_bound(0))


def test_concept_overlap_is_the_share_of_items_that_every_attempt_matched():
    assert concept_overlap([{"x", "y"}, {"y", "z"}, {"y"}]) == pytest.approx(100 / 3)
    assert concept_overlap([{"x"}, {"x"}]) == 100
    assert concept_overlap([{"x"}, set()]) == 0
    assert concept_overlap([set(), set()], has_concepts=True) == 100
    assert math.isnan(concept_overlap([set(), set()]))


def test_concept_overlap_is_averaged_over_tasks():
    rows = [
        *attempts("a", 50, matched=["x", "y"]),
        *attempts("a", 50, matched=["x"]),
        {"task": "b", "accuracy": 50, "missed": ["z"]},
        {"task": "b", "accuracy": 50, "matched": None},
        {"task": "without concepts", "accuracy": 50},
        {"task": "without concepts", "accuracy": 50},
    ]
    assert compute_consistency_metrics(rows)["concept_overlap"] == pytest.approx((50 + 100) / 2)


@given(results, st.randoms(use_true_random=False))
def test_the_order_of_attempts_changes_nothing(rows, random):
    shuffled = rows[:]
    random.shuffle(shuffled)
    block, other = compute_consistency_metrics(rows), compute_consistency_metrics(shuffled)
    assert (block is None) == (other is None)
    if block is not None and other is not None:
        for name in ("accuracy_std_dev", "accuracy_range", "consistency_score", "concept_overlap"):
            assert block[name] == pytest.approx(other[name], nan_ok=True)
        assert block["flaky_tasks"] == other["flaky_tasks"]
        assert block["warnings"] == other["warnings"]


@given(results)
def test_every_number_of_the_block_is_in_its_range(rows):
    block = compute_consistency_metrics(rows)
    if block is not None:
        assert 0 <= block["accuracy_std_dev"] <= 50
        assert 0 <= block["consistency_score"] <= 100
        assert math.isnan(block["concept_overlap"]) or 0 <= block["concept_overlap"] <= 100
