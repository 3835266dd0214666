"""Early stopping: looks spend no more alpha than planned, and stop where the answer is clear or out of reach."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from aggregate.artifact.sentences import words
from aggregate.formulas.intervals import delta_interval
from aggregate.formulas.power_and_stopping import look_at_decision, plan_looks


@pytest.mark.parametrize(
    ("rounds", "published"),
    [
        (2, [2.963, 1.969]),
        (3, [3.710, 2.511, 1.993]),
        (4, [4.333, 2.963, 2.359, 2.014]),
        (5, [4.877, 3.357, 2.680, 2.290, 2.031]),
    ],
)
def test_the_bounds_are_the_published_ones_of_lan_and_demets(rounds, published):
    assert [look.bound for look in plan_looks(rounds)] == pytest.approx(published, abs=0.001)


@pytest.mark.parametrize("rounds", [2, 5, 10, 50])
def test_a_plan_spends_alpha_slowly_and_wholly(rounds):
    plan = plan_looks(rounds)
    spent = [look.spent_alpha for look in plan]
    assert [look.round for look in plan] == list(range(1, rounds + 1))
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(0.025)
    assert all(one.bound >= other.bound for one, other in itertools.pairwise(plan))
    assert plan[-1].level == pytest.approx(1 - 2 * stats.norm.sf(plan[-1].bound))


def test_under_no_effect_the_bounds_are_crossed_as_often_as_alpha_is_spent():
    # Given 200,000 random walks of 4 equal steps
    steps = np.random.default_rng(6).normal(size=(200_000, 4))
    standardised = np.cumsum(steps, axis=1) / np.sqrt([1, 2, 3, 4])
    crossed = np.logical_or.accumulate(standardised >= [look.bound for look in plan_looks(4)], axis=1)
    # Then after each look the share that ever crossed is what the plan says, to 4 standard errors
    assert crossed.mean(axis=0) == pytest.approx([look.spent_alpha for look in plan_looks(4)], abs=0.0014)


@pytest.mark.parametrize(("rounds", "alpha"), [(1, 0.025), (0, 0.025), (3, 0.0), (3, 0.5), (3, math.nan)])
def test_a_plan_without_a_second_round_or_without_alpha_is_refused(rounds, alpha):
    with pytest.raises(ValueError, match=r"^(rounds|alpha): "):
        plan_looks(rounds, alpha)


def look_at(plan, number, candidate, baseline, **options):
    made = [number] * len(candidate)
    return look_at_decision(plan, number, candidate, made, baseline, made, **options)


def test_a_clear_improvement_stops_at_the_second_of_five_rounds():
    plan = plan_looks(5)
    # Given 60 tasks that the baseline passes in every fifth attempt and the candidate always
    candidate, baseline = [2] * 60, ([1, 0, 1, 0, 0] * 12)
    look = look_at(plan, 2, candidate, baseline)
    assert look.stop
    assert look.decision == "improved"
    assert look.spent_alpha == plan[1].spent_alpha
    # Then its interval is the usual one at the look's own level
    expected = delta_interval(candidate, [2] * 60, baseline, [2] * 60, plan[1].level)
    assert look.interval == expected
    # And the mirror image is as clearly worse
    assert look_at(plan, 2, baseline, candidate).decision == "worse"


def test_a_promising_run_goes_on():
    # Given 100 tasks after one of five rounds with 60 against 50 passes: the effect asked for, but far from sure
    look = look_at(plan_looks(5), 1, [1] * 60 + [0] * 40, [0, 1] * 50)
    assert not look.stop
    assert look.decision is None
    assert look.conditional_power > 0.2


def test_a_hopeless_run_stops_as_futile_with_the_decision_that_its_interval_supports():
    # Given 10 tasks, half of them passed in either arm: 0.10 cannot be seen with so few
    look = look_at(plan_looks(3), 1, [1, 0] * 5, [0, 1] * 5)
    assert look.stop
    assert look.conditional_power < 0.2
    assert look.decision == "inconclusive"
    assert "would now be found with a chance of" in words(look.reasons)


def test_the_last_look_always_decides():
    look = look_at(plan_looks(2), 2, [2, 1, 0] * 20, [2, 1, 0] * 20)
    assert look.stop
    assert look.decision in ("no_worse", "inconclusive")
    wide = look_at(plan_looks(2), 2, [2, 1, 0] * 20, [2, 1, 0] * 20, margin=0.5)
    assert wide.decision == "no_worse"


def test_the_first_of_many_looks_can_stop_nothing_by_success():
    look = look_at(plan_looks(20), 1, [1] * 60, [0] * 60)
    assert (look.interval.low, look.interval.high) == (-1.0, 1.0)
    assert not look.stop


def test_conditional_power_by_hand():
    # Given 58 tasks with one attempt: 40 differences of 0, 12 of +1 and 6 of -1. A task's rate is taken as 3/4 or
    # 1/4, so chance gives its difference a variance of 3/8, which is more than the differences have: all shrinks.
    candidate = [1] * 12 + [0] * 46
    baseline = [0] * 12 + [1] * 6 + [0] * 40
    look = look_at(plan_looks(4), 1, candidate, baseline, effect=0.2)
    error = math.sqrt(3 / 8 / 58)
    final = error / 2
    # The mean that would be clear at the last look, whose level is that of 2.014 standard errors: by drawing.
    weights = np.random.default_rng(4).dirichlet([0.5, *[1.0] * 58, 0.5], 200_000)
    around = (np.array([1] * 12 + [-1] * 6 + [0] * 40) - 6 / 58) / 2
    tail = stats.norm.sf(2.014)

    def at_most_zero(mean):
        return (weights @ [-1.0, *(mean + around), 1.0] <= 0).mean()

    clear = optimize.brentq(lambda mean: at_most_zero(mean) - tail, 0.0, 0.5, xtol=1e-4)
    by_hand = stats.norm.cdf((6 / 58 / error * 0.5 + 0.2 / final * 0.75 - clear / final) / math.sqrt(0.75))
    assert look.conditional_power == pytest.approx(by_hand, abs=0.01)


def test_models_of_one_task_are_one_task():
    plan = plan_looks(2)
    one = look_at_decision(plan, 1, [2, 0, 1], [2, 2, 2], [0, 0, 0], [2, 2, 2])
    thrice = [entry for entry in (2, 0, 1) for _ in range(3)]
    names = [name for name in "abc" for _ in range(3)]
    three = look_at_decision(plan, 1, thrice, [2] * 9, [0] * 9, [2] * 9, tasks=names)
    assert three.interval == one.interval
    cells = look_at_decision(plan, 1, thrice, [2] * 9, [0] * 9, [2] * 9)
    assert cells.interval.low > three.interval.low


def test_no_pair_at_all_neither_stops_nor_decides_before_the_last_round():
    plan = plan_looks(3)
    first, last = look_at(plan, 1, [], []), look_at(plan, 3, [], [])
    assert not first.stop
    assert math.isnan(first.conditional_power)
    assert last.stop
    assert last.decision == "inconclusive"


@pytest.mark.parametrize(
    ("number", "options", "name"),
    [(0, {}, "round_number"), (4, {}, "round_number"), (1, {"effect": 0}, "effect")],
)
def test_a_look_outside_the_plan_or_without_an_effect_is_refused(number, options, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        look_at_decision(plan_looks(3), number, [1], [1], [0], [1], **options)


def test_two_arms_that_do_not_differ_are_seldom_told_apart():
    # Given 300 runs of 30 tasks × 3 attempts with no effect: 2.5 % a side are allowed
    rng = np.random.default_rng(8)
    plan = plan_looks(3)
    outcomes = []
    for _ in range(300):
        passes = np.cumsum(rng.random((2, 3, 30)) < 0.5, axis=1)
        for number in (1, 2, 3):
            look = look_at(plan, number, passes[0, number - 1], passes[1, number - 1])
            if look.stop:
                break
        outcomes.append(look.decision)
    assert outcomes.count("improved") <= 15
    assert outcomes.count("worse") <= 15
