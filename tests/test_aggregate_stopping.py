"""Early stopping (SPEC 7): the verdict of a curtailed run is the full run's, and looks spend no more alpha."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregate.stats import delta_interval
from aggregate.stopping import TaskProgress, look_at_decision, look_at_verdict, plan_looks
from aggregate.verdict import ArmErrors, verdict

PASSED = TaskProgress(passed=True, judged=1, remaining=0)
FAILED = TaskProgress(passed=False, judged=1, remaining=0)
OPEN = TaskProgress(passed=False, judged=0, remaining=1)

rates = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])


def test_a_task_stops_at_its_first_pass():
    assert not TaskProgress(passed=True, judged=1, remaining=4).wants_more
    assert TaskProgress(passed=False, judged=1, remaining=4).wants_more
    assert not TaskProgress(passed=False, judged=5, remaining=0).wants_more


def test_the_suite_stops_when_the_sign_of_delta_holds_however_it_goes_on():
    # Given 4 tasks, 3 candidate passes; the baseline has 1 pass, 1 failure and 2 tasks to go: it ends at 3 at most
    candidate = [PASSED, PASSED, PASSED, OPEN]
    look = look_at_verdict(candidate, [PASSED, FAILED, OPEN, OPEN])
    assert look.stop
    assert look.verdict == "pass"
    assert look.delta_bounds == (0.0, 0.75)


def test_the_suite_goes_on_while_delta_may_end_on_either_side():
    look = look_at_verdict([PASSED, PASSED, FAILED, OPEN], [PASSED, PASSED, OPEN, OPEN])
    assert not look.stop
    assert look.verdict is None
    assert look.delta_bounds == (-0.5, 0.25)


def test_a_certain_loss_stops_as_fail():
    look = look_at_verdict([FAILED, FAILED, FAILED, OPEN], [PASSED, PASSED, OPEN, OPEN])
    assert look.stop
    assert look.verdict == "fail"
    assert look.delta_bounds == (-1.0, -0.25)


def test_nothing_stops_while_the_baseline_may_still_turn_out_weak():
    candidate = [PASSED] * 6
    baseline = [PASSED, FAILED, FAILED, FAILED, OPEN, OPEN]
    assert "baseline may still end below 0.2" in look_at_verdict(candidate, baseline).reason
    assert not look_at_verdict(candidate, baseline).stop
    assert look_at_verdict(candidate, baseline, weak_baseline_matters=False).stop
    assert look_at_verdict(candidate, [PASSED, PASSED, FAILED, FAILED, OPEN, OPEN]).stop


def test_nothing_stops_while_an_error_awaits_another_try():
    look = look_at_verdict([PASSED] * 3, [PASSED, FAILED, OPEN], pending_errors=2)
    assert not look.stop
    assert look.reason == "2 errors await another try"


def test_a_run_whose_tasks_are_all_decided_stops_whatever_its_baseline():
    look = look_at_verdict([PASSED, PASSED], [FAILED, FAILED])
    assert look.stop
    assert look.reason == "every task is decided"


def test_a_task_that_could_not_be_judged_at_all_counts_in_no_rate():
    unjudged = TaskProgress(passed=False, judged=0, remaining=0)
    look = look_at_verdict([PASSED, unjudged], [PASSED, FAILED])
    assert look.delta_bounds == (0.5, 0.5)
    assert look_at_verdict([], []).delta_bounds == (-1.0, 1.0)


def run_curtailed(passes, errors, weak):
    """Make attempts in the order of a plan, look after each, stop when told; the verdict and what was made.

    `passes` and `errors` are attempts × arms × tasks; a final error is neither pass nor fail.
    """
    attempts, _, tasks = passes.shape
    made = np.zeros_like(passes)

    def progress(arm):
        passed, judged = (passes & made & ~errors)[:, arm].any(axis=0), (made & ~errors)[:, arm].sum(axis=0)
        remaining = attempts - made[:, arm].sum(axis=0)
        return [TaskProgress(*map(int, row)) for row in zip(passed, judged, remaining, strict=True)]

    def look():
        return look_at_verdict(progress(0), progress(1), weak_baseline_matters=weak == "fail")

    for number, task, arm in itertools.product(range(attempts), range(tasks), range(2)):
        if look().stop:
            break
        if not progress(arm)[task].passed:
            made[number, arm, task] = True
    return judge(passes & made, errors & made, made, weak, look()), made


def judge(passes, errors, made, weak, look=None):
    """The verdict on the attempts made; errors are counted against the planned attempts."""
    passed = (passes & ~errors).any(axis=0)
    judged = (made & ~errors).any(axis=0)
    found = [float(passed[arm][judged[arm]].mean()) if judged[arm].any() else None for arm in range(2)]
    counts = {str(arm): ArmErrors(errors[:, arm].size, int(errors[:, arm].sum())) for arm in range(2)}
    bounds = look.delta_bounds if look is not None and look.verdict else None
    return verdict(*found, arms=counts, weak_baseline=weak, delta_bounds=bounds).verdict


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 10),
    st.tuples(rates, rates),
    st.sampled_from([0.0, 0.0, 0.03, 0.3]),
    st.sampled_from(["fail", "warn"]),
    st.integers(0, 2**32 - 1),
)
def test_the_verdict_of_a_curtailed_run_is_the_verdict_of_the_full_run(
    attempts, tasks, true_rates, error_rate, weak, seed
):
    rng = np.random.default_rng(seed)
    passes = rng.random((attempts, 2, tasks)) < np.array(true_rates)[:, None]
    errors = rng.random(passes.shape) < error_rate
    curtailed, made = run_curtailed(passes, errors, weak)
    # Provided that no attempt left out would have ended in error
    assume(not (errors & ~made).any())
    assert curtailed == judge(passes, errors, np.ones_like(passes), weak)


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
    assert "would now be found with a chance of" in look.reason


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
    # Given one attempt a task: nothing is known of the spread within tasks, so all variance is taken to shrink.
    # 58 tasks with 40 differences of 0, 12 of +1 and 6 of -1; two pseudo-tasks at ±1 make 60 values.
    candidate = [1] * 12 + [0] * 46
    baseline = [0] * 12 + [1] * 6 + [0] * 40
    look = look_at(plan_looks(4), 1, candidate, baseline, effect=0.2)
    variance = (20 - 6**2 / 60) / 59
    error = math.sqrt(variance / 60)
    final = error / 2
    bound = stats.t.ppf(stats.norm.cdf(2.014), 59)
    by_hand = stats.norm.cdf((6 / 58 / error * 0.5 + 0.2 / final * 0.75 - bound) / math.sqrt(0.75))
    assert look.conditional_power == pytest.approx(by_hand, abs=1e-3)


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
