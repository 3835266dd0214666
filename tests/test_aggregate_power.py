"""What a suite cannot see (SPEC 6.4): formulas by hand, and the promised power by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregate.stats import attempts_needed, delta_interval, min_detectable_effect, tasks_needed


def test_the_minimum_detectable_effect_by_hand():
    # 40 tasks × 5 attempts at 0.5: se = sqrt(2 · 0.25 / 5 / 40) = 0.05
    quantiles = stats.t.ppf(0.975, 39) + stats.t.ppf(0.8, 39)
    assert min_detectable_effect(40, 5) == pytest.approx(0.05 * quantiles)
    # With effects that vary by 0.2 from task to task: se = sqrt((0.04 + 0.1) / 40)
    assert min_detectable_effect(40, 5, task_sd=0.2) == pytest.approx(math.sqrt(0.14 / 40) * quantiles)
    # At power 0.5 only the interval's own quantile is left
    assert min_detectable_effect(40, 5, power=0.5) == pytest.approx(0.05 * stats.t.ppf(0.975, 39))


def test_a_perfect_score_does_not_claim_to_see_everything():
    # 7 tasks, all passed: the rate is taken as 7.5 / 8
    quantiles = stats.t.ppf(0.975, 6) + stats.t.ppf(0.8, 6)
    by_hand = quantiles * math.sqrt(2 * 0.9375 * 0.0625 / 7)
    assert min_detectable_effect(7, 1, rate=1.0) == pytest.approx(by_hand)


def test_a_suite_that_can_show_nothing_says_so_and_an_empty_one_says_nothing():
    assert min_detectable_effect(2, 1) == math.inf
    assert math.isnan(min_detectable_effect(0, 5))
    assert math.isnan(min_detectable_effect(5, 0))
    assert math.isnan(min_detectable_effect(5, 5, rate=math.nan))


@pytest.mark.parametrize(("tasks", "attempts", "rate"), [(40, 5, 0.5), (30, 3, 0.4), (100, 1, 0.3)])
def test_an_effect_of_that_size_is_found_about_four_times_in_five(tasks, attempts, rate):
    effect = min_detectable_effect(tasks, attempts, rate + 0.1)
    rng = np.random.default_rng(2)
    made = [attempts] * tasks
    found = 0
    for _ in range(400):
        candidate = rng.binomial(attempts, rate + effect, tasks)
        found += delta_interval(candidate, made, rng.binomial(attempts, rate, tasks), made).low > 0
    assert 0.7 < found / 400 < 0.92


@settings(deadline=None)
@given(st.integers(2, 200), st.floats(0.02, 0.9), st.floats(0, 1))
def test_the_attempts_needed_are_enough_and_one_fewer_is_not(tasks, effect, rate):
    needed = attempts_needed(effect, tasks, rate)
    assert needed is not None
    assert min_detectable_effect(tasks, needed, rate) <= effect
    assert needed == 1 or min_detectable_effect(tasks, needed - 1, rate) > effect


def test_attempts_and_tasks_needed_by_hand():
    # (t + t)² · 2 · 0.25 / (40 · 0.1²) = (2.0227 + 0.8508)² · 1.25 = 10.3
    assert attempts_needed(0.1, 40) == 11
    # z-values alone would give (1.96 + 0.8416)² · 0.1 / 0.01 = 78.5 tasks; t adds two or three
    assert tasks_needed(0.1, 5) == 81


def test_more_attempts_do_not_help_where_tasks_differ_too_much():
    # 7 tasks whose effects vary by 0.3: (2.447 + 0.906) · 0.3 / sqrt(7) = 0.38 even with endless attempts
    assert attempts_needed(0.1, 7, task_sd=0.3) is None
    assert attempts_needed(0.39, 7, task_sd=0.3) is not None
    needed = tasks_needed(0.1, 5, task_sd=0.3)
    assert needed is not None
    assert min_detectable_effect(needed, 5, task_sd=0.3) <= 0.1


@pytest.mark.parametrize("effect", [0, -0.1, 1.5, math.nan])
def test_an_effect_that_is_none_is_refused(effect):
    with pytest.raises(ValueError, match=r"^effect: "):
        attempts_needed(effect, 40)
    with pytest.raises(ValueError, match=r"^effect: "):
        tasks_needed(effect, 5)


@pytest.mark.parametrize(
    ("name", "wrong"), [("level", 1.0), ("power", 0.0), ("task_sd", -1.0), ("task_sd", math.inf)]
)
def test_settings_outside_their_range_are_refused_by_name(name, wrong):
    with pytest.raises(ValueError, match=f"^{name}: "):
        min_detectable_effect(10, 2, **{name: wrong})
