"""What a suite cannot see: the promised power, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregate.formulas.power_and_stopping import attempts_needed, min_detectable_effect, tasks_needed
from aggregate.formulas.significance import share_at_most_zero


def found(effect, tasks, attempts, rate, task_sd=0.0, draws=2000):
    """How often an effect is found, by drawing suites whose rates lie around `rate` at this distance."""
    rng = np.random.default_rng(2)
    true = effect + task_sd * rng.choice([-1, 1], (draws, tasks))
    middle = min(max(rate, effect / 2), 1 - effect / 2)
    passes = [rng.binomial(attempts, np.clip(middle + side * true / 2, 0, 1)) for side in (1, -1)]
    differences = (passes[0] - passes[1]) / attempts
    return np.mean([share_at_most_zero(row) < 0.025 for row in differences])


@pytest.mark.parametrize(
    ("tasks", "attempts", "rate", "task_sd"),
    [
        *((10, 1, 0.5, 0.2), (10, 3, 0.5, 0.0), (10, 5, 0.9, 0.0), (15, 10, 0.5, 0.3), (20, 1, 0.15, 0.0)),
        *((20, 3, 0.8, 0.2), (40, 5, 0.5, 0.0), (40, 2, 0.3, 0.3), (100, 1, 0.3, 0.0), (100, 10, 0.8, 0.1)),
    ],
)
def test_an_effect_of_that_size_is_found_four_times_in_five(tasks, attempts, rate, task_sd):
    effect = min_detectable_effect(tasks, attempts, rate, task_sd)
    assert 0.73 < found(effect, tasks, attempts, rate, task_sd) < 0.87  # 2,000 draws have 1 % of noise


def test_at_power_one_half_it_is_found_in_half_of_the_runs():
    assert 0.43 < found(min_detectable_effect(20, 3, power=0.5), 20, 3, 0.5) < 0.57


def test_ten_tasks_that_all_tie_do_not_claim_to_see_everything():
    assert min_detectable_effect(10, 1, rate=1.0) > 0.3
    assert min_detectable_effect(10, 1000, rate=0.5) > 0.1


def test_a_suite_that_can_show_nothing_says_so_and_an_empty_one_says_nothing():
    assert min_detectable_effect(2, 1) == math.inf
    assert math.isnan(min_detectable_effect(0, 5))
    assert math.isnan(min_detectable_effect(5, 0))
    assert math.isnan(min_detectable_effect(5, 5, rate=math.nan))


@settings(deadline=None, max_examples=30)
@given(st.integers(10, 200), st.floats(0.15, 0.9), st.floats(0, 1))
def test_the_attempts_needed_are_enough_and_one_fewer_is_not(tasks, effect, rate):
    needed = attempts_needed(effect, tasks, rate)
    if needed is None:  # even endless attempts on so few tasks leave an unseen one open
        assert min_detectable_effect(tasks, 10**6, rate) > effect
        return
    assert min_detectable_effect(tasks, needed, rate) <= effect + 1e-3
    assert needed == 1 or min_detectable_effect(tasks, needed - 1, rate) > effect - 1e-3


def test_attempts_and_tasks_needed_are_near_what_normal_quantiles_give():
    # (1.96 + 0.84)² · 2 · 0.25 / (40 · 0.1²) = 9.8 attempts, and more for what 40 tasks may not hold
    assert attempts_needed(0.1, 40) in range(12, 18)
    # (1.96 + 0.84)² · 0.1 / 0.01 = 78.5 tasks
    assert tasks_needed(0.1, 5) in range(80, 95)


def test_more_attempts_do_not_help_where_tasks_differ_too_much():
    assert attempts_needed(0.1, 7, task_sd=0.3) is None
    assert attempts_needed(0.6, 7, task_sd=0.3) is not None
    needed = tasks_needed(0.1, 5, task_sd=0.3)
    assert needed is not None
    assert 0.74 < found(0.1, needed, 5, 0.5, 0.3, draws=500) < 0.88


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
