"""The two intervals, against scipy, direct integration, simulation and their own properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from aggregate.formulas.intervals import Interval, delta_interval, differences_interval, fixed_suite_interval

attempts = st.integers(1, 8)
task = st.tuples(attempts, attempts).flatmap(
    lambda n: st.tuples(st.integers(0, n[0]), st.just(n[0]), st.integers(0, n[1]), st.just(n[1]))
)
suites = st.lists(task, min_size=1, max_size=40)


def columns(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def betadifference_cdf(x, one, other):
    """P(X - Y <= x) by adaptive integration: slow, and not how the code under test does it."""

    def inside(u):
        return stats.beta.cdf(x + stats.beta.ppf(u, *other), *one)

    return integrate.quad(inside, 0, 1, limit=500, epsabs=1e-10)[0]


@pytest.mark.parametrize(
    ("candidate", "baseline", "total"),
    [(5, 2, 7), (0, 0, 7), (7, 0, 7), (7, 7, 7), (1, 0, 1), (30, 20, 50), (50, 49, 50), (200, 180, 400)],
)
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_the_fixed_suite_interval_cuts_off_equal_tails_of_the_difference_of_two_betas(
    candidate, baseline, total, level
):
    found = fixed_suite_interval([candidate], [total], [baseline], [total], level)
    one = (0.5 + candidate, 0.5 + total - candidate)
    other = (0.5 + baseline, 0.5 + total - baseline)
    tail = (1 - level) / 2
    if found.low < found.estimate:
        assert betadifference_cdf(found.low, one, other) == pytest.approx(tail, abs=2e-6)
    if found.high > found.estimate:
        assert betadifference_cdf(found.high, one, other) == pytest.approx(1 - tail, abs=2e-6)


def test_seven_tasks_with_one_attempt_at_a_rate_of_a_half_leave_46_points_open():
    # Two Beta(4, 4) posteriors; the half-width by Monte Carlo with four million draws is 0.457.
    found = fixed_suite_interval([1, 1, 1, 0.5, 0, 0, 0], [1] * 7, [0, 0, 0, 0.5, 1, 1, 1], [1] * 7)
    assert found.estimate == 0
    assert found.high == pytest.approx(0.457, abs=0.001)
    assert found.low == pytest.approx(-found.high, abs=1e-9)


def test_a_hundred_thousand_attempts_give_the_normal_interval():
    # Given 50,100 and 49,900 passes of 100,000 an arm
    found = fixed_suite_interval([50_100], [100_000], [49_900], [100_000])
    # Then it is the textbook normal interval: 0.002 ± 1.96 · sqrt(2 · 0.25 / 100,000)
    assert found.low == pytest.approx(0.002 - 1.959964 * math.sqrt(0.5 / 1e5), abs=1e-6)
    assert found.high == pytest.approx(0.002 + 1.959964 * math.sqrt(0.5 / 1e5), abs=1e-6)


@pytest.mark.parametrize("count", [10**4, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("level", [0.95, 1 - 1e-8])
def test_huge_counts_and_extreme_levels_keep_their_digits(count, level):
    # Given rates of 0.3 and 0.5, where the difference of so many attempts is normal
    found = fixed_suite_interval([0.3 * count], [count], [0.5 * count], [count], level)
    reach = stats.norm.isf((1 - level) / 2) * math.sqrt((0.21 + 0.25) / min(count, 1e9))
    assert (found.low, found.high) == pytest.approx((-0.2 - reach, -0.2 + reach), abs=0.02 * reach)


def test_an_interval_may_be_as_lopsided_as_its_arms():
    # 100,000 candidate attempts are as good as certain: what is left is the baseline's Beta(2.5, 3.5).
    found = fixed_suite_interval([50_000], [100_000], [2], [5])
    low, high = 0.5 - stats.beta.ppf([0.975, 0.025], 2.5, 3.5)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_unequal_attempts_enter_as_one_beta_with_the_mean_and_variance_of_their_own():
    # Given 1 of 2 and 4 of 4: Beta(1.5, 1.5) and Beta(4.5, 0.5), half of each
    halves = [stats.beta(1.5, 1.5), stats.beta(4.5, 0.5)]
    mean = sum(half.mean() for half in halves) / 2
    total = mean * (1 - mean) / (sum(half.var() for half in halves) / 4) - 1
    # A single task of so many attempts has that Beta: 0.5 + passes = mean · total
    uneven = fixed_suite_interval([1, 4], [2, 4], [0, 0], [1, 1])
    even = fixed_suite_interval([mean * total - 0.5], [total - 1], [0], [2])
    assert (uneven.low, uneven.high) == pytest.approx((even.low, even.high), abs=1e-9)


def test_the_delta_interval_weighs_every_task_alike_however_often_it_was_tried():
    # Given tasks with few and with many attempts, what counts of each is its difference of rates
    found = delta_interval([1, 40, 0], [2, 80, 5], [0, 0, 3], [1, 7, 3])
    again = differences_interval([0.5, 0.5, -1.0])
    assert (found.estimate, found.low, found.high) == pytest.approx((again.estimate, again.low, again.high))


def test_tasks_that_all_agree_leave_the_delta_interval_open_and_more_attempts_do_not_close_it():
    few, many = (delta_interval([3 * k] * 8, [5 * k] * 8, [2 * k] * 8, [5 * k] * 8) for k in (1, 1000))
    assert (few.low, few.high) == pytest.approx((many.low, many.high))
    assert few.low < 0.1
    # And on exactly this suite they do.
    fixed = fixed_suite_interval([3000] * 8, [5000] * 8, [2000] * 8, [5000] * 8)
    assert (fixed.low, fixed.high) == pytest.approx((0.2, 0.2), abs=0.01)


def test_one_task_says_little_of_tasks_like_it_and_no_task_says_nothing():
    found = delta_interval([3], [3], [0], [3])
    # Given one task won: the share of won tasks is Beta(3/2, 1/2)
    assert (found.low, found.high) == pytest.approx((2 * stats.beta.ppf(0.025, 1.5, 0.5) - 1, 1), abs=1e-6)
    for nothing in (delta_interval([], [], [], []), delta_interval([0], [0], [0], [4])):
        assert math.isnan(nothing.estimate)
        assert (nothing.low, nothing.high) == (-1, 1)


@settings(max_examples=60, deadline=None)
@given(suites, st.sampled_from([0.8, 0.95, 0.9995]))
def test_every_interval_holds_its_estimate_and_stays_between_minus_one_and_one(rows, level):
    differences = [c / n - b / m for c, n, b, m in rows]
    for make in (delta_interval, fixed_suite_interval):
        found = make(*columns(rows), level)
        assert found.estimate == pytest.approx(float(np.mean(differences)), abs=1e-12)
        assert -1 <= found.low <= found.estimate <= found.high <= 1
        assert found.level == level


@settings(max_examples=40, deadline=None)
@given(suites)
def test_swapping_the_arms_turns_the_interval_around(rows):
    forward, backward = columns(rows), columns([(b, m, c, n) for c, n, b, m in rows])
    for make in (delta_interval, fixed_suite_interval):
        one, other = make(*forward), make(*backward)
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(suites, st.randoms(use_true_random=False))
def test_the_order_of_tasks_and_tasks_missing_in_one_arm_change_nothing(rows, random):
    shuffled = [*rows, (0, 0, 1, 2), (1, 2, 0, 0), (math.nan, math.nan, 1, 1)]
    random.shuffle(shuffled)
    for make in (delta_interval, fixed_suite_interval):
        one, other = make(*columns(rows)), make(*columns(shuffled))
        assert (one.estimate, one.low, one.high) == pytest.approx((other.estimate, other.low, other.high))


@settings(max_examples=25, deadline=None)
@given(suites)
def test_more_confidence_never_makes_an_interval_narrower(rows):
    for make in (delta_interval, fixed_suite_interval):
        narrow, wide = make(*columns(rows), 0.9), make(*columns(rows), 0.99)
        assert wide.low <= narrow.low + 1e-9
        assert wide.high >= narrow.high - 1e-9


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=20, max_size=30))
def test_a_shuffled_arm_label_has_no_difference_on_average(passes):
    # Given any suite and the same suite with the labels of each task exchanged
    three = [3] * len(passes)
    candidate, baseline = columns(passes)
    swapped = delta_interval(baseline, three, candidate, three).estimate
    # Then the mean over both equally likely labellings is 0
    assert delta_interval(candidate, three, baseline, three).estimate + swapped == pytest.approx(0, abs=1e-12)


def test_the_interval_of_a_fresh_simulation_holds_the_truth_about_as_often_as_it_says():
    # Given 300 suites of 8 tasks × 2 attempts, all at a rate of 0.5 in both arms
    rng = np.random.default_rng(7)
    passes = rng.binomial(2, 0.5, (300, 2, 8))
    two = [2] * 8
    held = 0
    for candidate, baseline in passes:
        found = delta_interval(candidate, two, baseline, two)
        held += found.low <= 0 <= found.high
    assert 0.93 <= held / 300 <= 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (([2], [1], [0], [1]), r"candidate_passes\[0\]: 2 is more than the attempts"),
        (([0, 0], [1, 1], [0, 3], [1, 2]), r"baseline_passes\[1\]: 3 is more"),
        (([0], [-1], [0], [1]), r"candidate_attempts\[0\]: -1 is not a count"),
        (([0], [math.inf], [0], [1]), r"candidate_attempts\[0\]: inf is not a count"),
        (([0], [1e300], [0], [1]), r"candidate_attempts\[0\]: 1e\+300 is not a count"),
        (([0, 1], [1, 1], [0], [1]), r"lengths are"),
        ((["x"], [1], [0], [1]), r"^candidate_passes: "),
        (([[0]], [1], [0], [1]), r"^candidate_passes: a list of numbers"),
    ],
)
def test_counts_that_cannot_be_are_refused_with_their_place(arrays, message):
    for make in (delta_interval, fixed_suite_interval):
        with pytest.raises(ValueError, match=message):
            make(*arrays)


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, math.nan])
def test_a_level_outside_zero_to_one_is_refused(level):
    with pytest.raises(ValueError, match=r"^level: "):
        delta_interval([1], [1], [1], [1], level)


def test_a_result_is_a_value():
    found = delta_interval([1], [1], [0], [1])
    assert found == Interval(found.estimate, found.low, found.high, 0.95)
    with pytest.raises(AttributeError):
        found.low = 0.0


def test_a_task_tried_once_is_as_unsure_as_it_is_beside_tasks_tried_often():
    """One attempt against one, on one task of twenty, is no harm: the others always pass, five times in each arm."""
    interval = fixed_suite_interval([0] + [5] * 19, [1] + [5] * 19, [1] + [5] * 19, [1] + [5] * 19)
    rng = np.random.default_rng(3)
    once, often = (0.5, 1.5), (95.5, 0.5)
    draws = [0.05 * rng.beta(*one, 10**6) + 0.95 * rng.beta(*often, 10**6) for one in (once, once[::-1])]
    low, high = np.quantile(draws[0] - draws[1], [0.025, 0.975])
    assert interval.low == pytest.approx(low, abs=0.01)
    assert interval.high == pytest.approx(high, abs=0.01)
    assert interval.low < 0 < interval.high


def test_tasks_with_equally_many_attempts_are_pooled_whatever_their_order():
    one = fixed_suite_interval([3, 2, 1, 0], [3, 3, 3, 3], [1, 1, 1, 1], [3, 3, 3, 3])
    other = fixed_suite_interval([0, 1, 2, 3], [3, 3, 3, 3], [1, 1, 1, 1], [3, 3, 3, 3])
    assert (one.low, one.high) == (other.low, other.high)
