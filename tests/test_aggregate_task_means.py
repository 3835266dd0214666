"""The interval for tasks like these: closed forms, random draws, other intervals, and its own properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from aggregate.formulas.intervals import delta_interval, differences_interval, share_below, weighted
from aggregate.formulas.significance import share_at_most_zero, two_sided

# What pass rates over a few attempts can differ by, and what a mean over models may leave.
differences = st.one_of(
    st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.2, 1 / 3, 1.0]), st.floats(-1, 1, allow_subnormal=False)
)
suites = st.lists(differences, min_size=1, max_size=30)
leaning = st.builds(
    lambda sign, moved, others: [sign * d for d in (*moved, *others)],
    st.sampled_from([-1, 1]),
    st.lists(st.floats(0.1, 1), min_size=5, max_size=20),
    st.lists(differences, max_size=3),
)


def probability_below(mean, values, weights):
    return float(share_below(mean, np.array(values, float), np.array(weights, float))[0])


def point(probability, values, weights):
    """Where the distribution has this probability, by scipy's bracketing."""
    return optimize.brentq(
        lambda mean: probability_below(mean, values, weights) - probability,
        min(values),
        max(values),
        xtol=1e-12,
    )


@settings(max_examples=60, deadline=None)
@given(suites, st.sampled_from([0.5, 0.95, 0.995, 1 - 1e-9]))
def test_the_interval_holds_the_mean_and_stays_between_minus_one_and_one(suite, level):
    found = differences_interval(suite, level)
    assert found.estimate == pytest.approx(math.fsum(suite) / len(suite), abs=1e-12)
    assert -1 <= found.low <= found.estimate <= found.high <= 1
    assert found.low < found.high


@settings(max_examples=40, deadline=None)
@given(suites, st.integers(2, 20))
def test_the_same_tasks_several_times_over_leave_less_open(suite, times):
    once, often = differences_interval(suite), differences_interval(suite * times)
    assert often.high - often.low < once.high - once.low


@settings(max_examples=40, deadline=None)
@given(suites, st.sampled_from([0.8, 0.95, 1 - 1e-9]))
def test_swapping_the_arms_turns_the_interval_around(suite, level):
    one, other = (differences_interval(sign * np.array(suite), level) for sign in (1, -1))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-7)
    assert share_at_most_zero(suite) + share_at_most_zero([-d for d in suite]) == pytest.approx(1, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(suites, st.randoms(use_true_random=False))
def test_neither_the_order_of_tasks_nor_a_missing_one_matters(suite, random):
    shuffled = [*suite, math.nan, None]
    random.shuffle(shuffled)
    one, other = differences_interval(suite), differences_interval(shuffled)
    assert (one.estimate, one.low, one.high) == pytest.approx(
        (other.estimate, other.low, other.high), abs=1e-12
    )


@settings(max_examples=40, deadline=None)
@given(leaning)
def test_the_p_value_and_the_interval_of_the_same_level_never_disagree(suite):
    p = two_sided(share_at_most_zero(suite))
    assume(1e-9 < p < 0.3)
    # Given a level that the p-value just reaches, 0 is outside; given one that it just misses, inside.
    reached = differences_interval(suite, 1 - 1.001 * p)
    missed = differences_interval(suite, 1 - 0.999 * p)
    assert reached.low > 0 or reached.high < 0
    assert missed.low <= 0 <= missed.high


@pytest.mark.parametrize(("won", "lost"), [(0, 1), (1, 0), (4, 4), (9, 1), (0, 10), (30, 10), (700, 300)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.995, 1 - 1e-6, 1 - 1e-9])
def test_where_every_task_is_won_or_lost_outright_the_mean_has_a_beta_distribution(won, lost, level):
    # Given D, the share of won tasks: Beta(won + 1/2, lost + 1/2), and the mean 2 D - 1
    found = differences_interval([1.0] * won + [-1.0] * lost, level)
    share = stats.beta(won + 0.5, lost + 0.5)
    low, high = 2 * share.ppf((1 - level) / 2) - 1, 2 * share.isf((1 - level) / 2) - 1
    estimate = (won - lost) / (won + lost)
    assert found.low == pytest.approx(min(low, estimate), abs=1e-6)
    assert found.high == pytest.approx(max(high, estimate), abs=1e-6)
    assert share_at_most_zero([1.0] * won + [-1.0] * lost) == pytest.approx(share.cdf(0.5), abs=1e-11)


@pytest.mark.parametrize("trials", [1, 2, 5, 10, 40])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_with_a_whole_unseen_task_at_one_end_the_bounds_are_those_of_clopper_and_pearson(trials, level):
    # Gaffke's bounds: one more observation at 0 for the lower bound, at 1 for the upper.
    for passes in range(trials + 1):
        exact = stats.binomtest(passes, trials).proportion_ci(level, method="exact")
        observed = [0.0] * (trials - passes) + [1.0] * passes
        if passes > 0:
            low = point((1 - level) / 2, [0.0, *observed], [1.0] * (trials + 1))
            assert low == pytest.approx(exact.low, abs=1e-6)
        if passes < trials:
            high = point((1 + level) / 2, [*observed, 1.0], [1.0] * (trials + 1))
            assert high == pytest.approx(exact.high, abs=1e-6)


def a_few_suites():
    """Twenty suites of 2 to 60 tasks, each with up to four different outcomes."""
    rng = np.random.default_rng(15)
    for number in range(20):
        outcomes = np.round(rng.uniform(-1, 1, 1 + number % 4), 2)
        yield np.repeat(outcomes, rng.integers(2, 16, len(outcomes)))


@pytest.mark.parametrize("suite", list(a_few_suites()), ids=lambda suite: f"{len(suite)} tasks")
def test_a_million_random_draws_lie_below_each_bound_as_often_as_it_says(suite):
    outcomes, tasks = np.unique(suite, return_counts=True)
    values, weights = [-1.0, 1.0, *outcomes], [0.5, 0.5, *tasks]
    found, rng, below = differences_interval(suite), np.random.default_rng(len(suite)), np.zeros(2)
    for _ in range(20):
        draws = [rng.standard_gamma(weight, 50_000) for weight in weights]
        means = sum(value * draw for value, draw in zip(values, draws, strict=True)) / sum(draws)
        below += [(means <= found.low).sum(), (means <= found.high).sum()]
    assert below / 1_000_000 == pytest.approx([0.025, 0.975], abs=1e-3)


def test_nothing_but_ties_rules_out_a_loss_of_five_points_from_43_tasks_on():
    assert differences_interval([0.0] * 42).low < -0.05 < differences_interval([0.0] * 43).low


def test_ten_tied_tasks_leave_19_points_open_on_either_side():
    found = delta_interval([5] * 10, [5] * 10, [5] * 10, [5] * 10)
    assert (found.low, found.high) == pytest.approx((-0.192, 0.192), abs=5e-4)
    assert two_sided(share_at_most_zero([0.0] * 10)) == 1


def test_many_tasks_have_the_normal_interval():
    rng = np.random.default_rng(3)
    suite = rng.uniform(-0.5, 0.9, 10_000)
    found = differences_interval(suite)
    half = 1.959964 * suite.std() / 100
    assert (found.low, found.high) == pytest.approx(
        (suite.mean() - half, suite.mean() + half), abs=0.01 * half
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=6),
    st.floats(-0.9, 0.9),
)
def test_many_suites_at_once_have_the_probabilities_of_each_alone(counts, mean):
    values, weights = np.linspace(-1, 1, 5), np.array(counts) + np.array([0.5, 0, 0, 0, 0.5])
    alone = [probability_below(mean, values, row) for row in weights]
    assert share_below(mean, values, weights) == pytest.approx(alone, abs=1e-11)
    means = np.full(len(weights), mean)
    assert share_below(means, values, weights) == pytest.approx(alone, abs=1e-11)


@settings(max_examples=25, deadline=None)
@given(suites)
def test_the_probability_grows_from_nothing_at_minus_one_to_everything_at_one(suite):
    found = share_below(np.linspace(-1, 1, 41), *weighted(np.array(suite)))
    assert found[0] == pytest.approx(0, abs=1e-9)
    assert found[-1] == pytest.approx(1, abs=1e-9)
    assert (np.diff(found) >= -1e-9).all()


@pytest.mark.parametrize("nothing", [[], [math.nan], [None, math.nan]])
def test_without_a_task_everything_is_possible(nothing):
    found = differences_interval(nothing)
    assert math.isnan(found.estimate)
    assert (found.low, found.high) == (-1, 1)
    assert math.isnan(two_sided(share_at_most_zero(nothing)))


@pytest.mark.parametrize("wrong", [[0.5, 1.2], [-7.0], [math.inf], [0.0, -math.inf], ["much"], [[0.5]], 0.5])
def test_what_is_no_list_of_differences_is_refused_by_name(wrong):
    for make in (differences_interval, share_at_most_zero):
        with pytest.raises(ValueError, match=r"^differences: "):
            make(wrong)


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, math.nan])
def test_a_level_outside_zero_to_one_is_refused(level):
    with pytest.raises(ValueError, match=r"^level: "):
        differences_interval([0.5], level)


def test_a_weight_that_is_no_number_ends_in_none_and_not_in_a_loop():
    assert math.isnan(share_below(0.0, np.array([-1.0, 0.2, 1.0]), np.array([0.5, math.nan, 0.5]))[0])
