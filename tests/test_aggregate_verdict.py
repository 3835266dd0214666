"""Verdict, decision and exit code, rule by rule."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregate.artifact.sentences import words
from aggregate.formulas.intervals import Interval
from aggregate.formulas.verdict import (
    ArmErrors,
    decision,
    decision_level,
    error_reasons,
    exit_code,
    verdict,
)
from aggregate.records.run_info import RunInfo


def an_interval(low=-0.1, high=0.3, estimate=0.1, level=0.95):
    return Interval(estimate, low, high, level)


def test_a_candidate_no_worse_than_its_baseline_passes_and_a_worse_one_fails():
    assert verdict(0.8, 0.7).verdict == "pass"
    assert verdict(0.7, 0.7).verdict == "pass"
    assert verdict(0.6, 0.7).verdict == "fail"
    assert words(verdict(0.8, 0.7).reasons) == "tasks passed rose by 10 points"


def test_the_verdict_follows_the_delta_that_is_printed():
    # 0.70001 and 0.70004 both print as 0.7, so delta prints as 0
    assert verdict(0.70001, 0.70004).verdict == "pass"
    assert verdict(0.7, 0.7001).verdict == "fail"


@given(st.floats(0, 1), st.floats(0.2, 1))
def test_any_two_known_rates_have_a_verdict(candidate, baseline):
    expected = "pass" if round(candidate, 4) >= round(baseline, 4) else "fail"
    assert verdict(candidate, baseline).verdict == expected


def test_a_candidate_below_the_threshold_is_skipped_whatever_else_holds():
    found = verdict(None, None, candidate_score=5.5, eval_threshold=6.0, status="cancelled")
    assert found.verdict == "skipped"
    assert "5.5" in words(found.reasons)
    assert verdict(0.8, 0.7, candidate_score=6.0).verdict == "pass"


def test_a_weak_baseline_is_an_error_with_its_rate():
    found = verdict(0.8, 1 / 7)
    assert found.verdict == "error"
    assert words(found.reasons) == "baseline pass rate 14.3 % < 20.0 % (tasks passed)"
    assert verdict(0.8, 0.2).verdict == "pass"


@pytest.mark.parametrize(
    "forgiven", [{"weak_baseline": "warn"}, {"baseline": "bare"}, {"models": ("mock", "mock:slow")}]
)
def test_a_weak_baseline_is_a_warning_when_asked_for_and_for_bare_and_mock_models(forgiven):
    assert RunInfo(run_id="run", models=("mock", "other")).baseline_must_pass
    must_pass = RunInfo(run_id="run", **forgiven).baseline_must_pass
    found = verdict(1.0, 0.0, baseline_must_pass=must_pass)
    assert found.verdict == "pass"
    assert words(found.warnings) == "baseline pass rate 0.0 % < 20.0 % (tasks passed)"


def test_more_than_five_percent_errors_in_an_arm_are_an_error_with_the_most_frequent_messages():
    outage = ArmErrors(100, 6, ("refused", "refused", "refused", "timed out", "timed out", "a", "b"))
    found = verdict(0.9, 0.7, arms={"candidate": outage, "baseline": ArmErrors(100)})
    assert found.verdict == "error"
    assert words(found.reasons) == (
        "6 of 100 candidate attempts ended in error: refused (3×), timed out (2×), a (1×)"
    )
    assert decision(an_interval(low=0.1), arms={"candidate": outage}).decision == "inconclusive"


def test_exactly_five_percent_errors_are_allowed():
    five = {"candidate": ArmErrors(100, 5), "baseline": ArmErrors(20, 1)}
    assert verdict(0.9, 0.7, arms=five).verdict == "pass"
    assert decision(an_interval(low=0.1), arms=five).decision == "improved"
    assert (
        words(error_reasons({"candidate": ArmErrors(19, 1)})) == "1 of 19 candidate attempts ended in error"
    )
    assert error_reasons({"candidate": ArmErrors(0)}) == []


def test_the_most_frequent_messages_do_not_depend_on_the_order_of_arrival():
    one = ArmErrors(4, 4, ("b", "a", "b", "a"))
    other = ArmErrors(4, 4, ("a", "b", "a", "b"))
    assert error_reasons({"candidate": one}) == error_reasons({"candidate": other})


@pytest.mark.parametrize(("status", "word"), [("cancelled", "cancelled"), ("over_budget", "budget")])
def test_an_unfinished_run_is_an_error_and_every_reason_is_given(status, word):
    found = verdict(0.9, 0.1, status=status, arms={"baseline": ArmErrors(10, 5, ("refused",) * 5)})
    assert found.verdict == "error"
    assert word in words(found.reasons)
    assert "refused (5×)" in words(found.reasons)
    assert "baseline pass rate 10.0 % < 20.0 % (tasks passed)" in words(found.reasons)
    assert [reason.code for reason in found.reasons] == [status, "errors", "weak_baseline"]


@pytest.mark.parametrize(
    ("candidate", "baseline", "missing"),
    [(None, 0.5, "candidate"), (0.5, None, "baseline"), (math.nan, math.nan, "candidate")],
)
def test_an_arm_without_a_judged_attempt_is_an_error(candidate, baseline, missing):
    found = verdict(candidate, baseline)
    assert found.verdict == "error"
    assert missing in words(found.reasons)


def test_a_candidate_alone_passes_from_a_rate_of_one_half():
    assert verdict(0.5, None, no_baseline=True).verdict == "pass"
    assert verdict(0.49, None, no_baseline=True).verdict == "fail"
    assert verdict(None, None, no_baseline=True).verdict == "error"


@pytest.mark.parametrize(
    ("low", "high", "label"),
    [
        (0.01, 0.3, "improved"),
        (0.0, 0.3, "no_worse"),
        (-0.049, 0.3, "no_worse"),
        (-0.05, 0.3, "inconclusive"),
        (-0.3, 0.0, "inconclusive"),
        (-0.3, -0.01, "worse"),
        (-0.04, -0.01, "worse"),
        (-1.0, 1.0, "inconclusive"),
    ],
)
def test_the_decision_is_read_off_the_interval_with_a_margin_of_five_points(low, high, label):
    assert decision(an_interval(low, high, (low + high) / 2)).decision == label


def test_the_margin_is_a_choice():
    assert decision(an_interval(low=-0.08), margin=0.1).decision == "no_worse"
    assert decision(an_interval(low=-0.08), margin=0.0).decision == "inconclusive"
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"^margin: "):
            decision(an_interval(), margin=wrong)


def test_no_pair_at_all_decides_nothing():
    found = decision(Interval(math.nan, -1.0, 1.0))
    assert found.decision == "inconclusive"
    assert words(found.reasons) == "no task was judged in both arms"


def test_several_candidates_share_the_five_percent():
    assert decision_level(1) == pytest.approx(0.95)
    assert decision_level(4) == pytest.approx(1 - 0.05 / 4)
    with pytest.raises(ValueError, match=r"^candidates: 0"):
        decision_level(0)


@pytest.mark.parametrize(
    ("name", "label", "gate", "code"),
    [
        ("pass", "worse", "verdict", 0),
        ("fail", "improved", "verdict", 1),
        ("skipped", None, "verdict", 0),
        ("skipped", None, "decision", 0),
        ("error", "improved", "verdict", 3),
        ("error", "improved", "decision", 3),
        ("pass", "inconclusive", "decision", 1),
        ("pass", "worse", "decision", 1),
        ("fail", "no_worse", "decision", 0),
        ("fail", "improved", "decision", 0),
        ("pass", None, "decision", 0),
        ("fail", None, "decision", 1),
    ],
)
def test_the_exit_code_follows_the_gate_and_errors_are_three_under_either(name, label, gate, code):
    assert exit_code(name, label, gate) == code


@pytest.mark.parametrize(
    ("name", "suite", "code"),
    [
        ("pass", "worse", 1),
        ("fail", "worse", 1),
        ("fail", "inconclusive", 0),
        ("fail", "no_worse", 0),
        ("pass", "inconclusive", 0),
        ("error", "worse", 3),
        ("skipped", None, 0),
        ("fail", None, 1),
        ("pass", None, 0),
    ],
)
@pytest.mark.parametrize("label", ["improved", "inconclusive", "worse"])
def test_a_gate_against_regression_closes_on_harm_to_this_suite_and_on_nothing_else(name, label, suite, code):
    assert exit_code(name, label, "regression", suite) == code


def test_a_run_that_was_given_up_says_why_once_and_nothing_else():
    arms = {"candidate": ArmErrors(5, 5, ("HTTP 401",) * 5)}
    found = verdict(None, None, status="hopeless", why="openai:m cannot answer: HTTP 401", arms=arms)
    assert (found.verdict, words(found.reasons)) == (
        "error",
        "the run was given up: openai:m cannot answer: HTTP 401",
    )


def test_a_spent_budget_is_told_with_its_sums():
    found = verdict(0.9, 0.5, status="over_budget", why="$1.20 of $1.00 spent")
    assert words(found.reasons) == "the budget ran out ($1.20 of $1.00 spent)"


def test_arms_that_were_judged_on_different_tasks_are_not_called_unjudged():
    arms = {"candidate": ArmErrors(3), "baseline": ArmErrors(3)}
    found = verdict(None, None, arms=arms, n_pairs=0)
    assert (found.verdict, words(found.reasons)) == ("error", "no task was judged in both arms")
