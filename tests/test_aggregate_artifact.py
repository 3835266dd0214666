"""One artifact per candidate: every field of a run, the same bytes whenever it is built."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from builders import a_record, both_arms, built, many
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from aggregate.artifact import build, file, sentences
from aggregate.artifact.model import CommonError, loads
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import CandidateInfo, RunInfo, TaskInfo

SPEC_FIELDS = [
    "schema_version",
    "run_id",
    "stage",
    "status",
    "created_at",
    "lane",
    "skill_id",
    "task_suite",
    "pass_k",
    "models",
    "candidate_id",
    "candidate_score",
    "execution_pass_rate",
    "baseline_pass_rate",
    "delta",
    "verdict",
    "reason",
    "candidate_results",
    "baseline_results",
    "truth_anchor",
    "decision",
    "interval",
    "p_value",
    "min_detectable_effect",
    "consistency",
    "cost",
    "cost_weighted_advantage",
    "speedups",
    "judges",
    "summary",
    "warnings",
    "environment",
    "next_step",
    "next_owner",
]


def test_every_field_of_the_specification_is_at_the_top_level():
    made = built(both_arms({"a": "p", "b": "f"}, {"a": "p", "b": "p"}))
    assert set(SPEC_FIELDS) <= set(made.model_dump())
    assert made.stage == "evaluated"
    assert made.truth_anchor is None
    assert set(asdict(made.candidate_results[0])) >= {
        *("task_id", "passed", "score", "details", "duration_ms", "error", "attempts"),
    }
    assert built([]).model_fields_set == made.model_fields_set


def test_rates_and_the_three_differences_by_hand():
    # Given three tasks with two attempts: candidate rates 1, 1/2, 0; baseline rates 1/2, 0, 0
    made = built(both_arms({"a": "pp", "b": "pf", "c": "ff"}, {"a": "fp", "b": "ff", "c": "ff"}))
    assert made.execution_pass_rate == 0.6667
    assert made.baseline_pass_rate == 0.3333
    assert made.delta == 0.3334  # of the rounded rates, as printed
    assert made.attempt_delta == pytest.approx((0.5 + 0.5 + 0) / 3, abs=1e-6)
    assert made.score_delta == pytest.approx(1 / 3, abs=1e-6)
    assert made.verdict == "pass"
    # (c - b) / (1 - b) of the attempt rates 1/2 and 1/6
    assert made.normalized_gain == pytest.approx((1 / 2 - 1 / 6) / (1 - 1 / 6), abs=1e-6)
    # sign flips of (.5, .5, 0): two signs count, so |sum| >= 1 in 2 of 4 cases, sum >= 1 in 1 of 4
    assert made.sign_flip_p_value == 0.5
    assert made.sign_flip_p_value_greater == 0.25
    # two tasks at 0.5, and half a task at either end: gamma variables, the task at 0 falls out
    rng = np.random.default_rng(5)
    drawn = 0.5 * rng.gamma(2, size=10**6) + rng.gamma(0.5, size=10**6) - rng.gamma(0.5, size=10**6)
    assert made.p_value_greater == pytest.approx(float((drawn <= 0).mean()), abs=2e-3)
    assert made.p_value == pytest.approx(2 * made.p_value_greater, abs=1e-5)


def test_the_interval_weighs_the_tasks_and_two_unseen_halves():
    candidate = many("p", 15) | {f"task-{number:02}": "f" for number in range(15, 25)}
    baseline = {f"task-{number:02}": "p" if number < 8 else "f" for number in range(25)}
    made = built(both_arms(candidate, baseline))
    # d is 1 for 7 tasks, 0 for 18; half a task is added at +1 and at -1
    drawn = np.random.default_rng(6).dirichlet([7.5, 18, 0.5], 10**6) @ [1.0, 0.0, -1.0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    bounds = made.interval.tasks_like_these
    assert bounds.estimate == pytest.approx(7 / 25)
    assert bounds.low == pytest.approx(low, abs=1e-3)
    assert bounds.high == pytest.approx(high, abs=1e-3)
    # P(mean <= 0) has a closed form: which of the two ends is heavier, as the tasks at 0 do not matter
    assert made.p_value_greater == pytest.approx(scipy_stats.beta(7.5, 0.5).cdf(0.5), abs=1e-6)
    assert made.interval.exactly_this_suite.low < 0.28 < made.interval.exactly_this_suite.high
    assert made.decision == "improved"
    assert made.mcnemar_p_value == pytest.approx(scipy_stats.binomtest(0, 7).pvalue, abs=1e-6)


def test_only_pairs_are_compared_and_the_others_are_named():
    records = both_arms({"a": "p", "b": "p", "c": "e"}, {"a": "f", "c": "p"})
    made = built(records, tasks=(TaskInfo(id="a"), TaskInfo(id="b"), TaskInfo(id="c"), TaskInfo(id="d")))
    assert made.n_pairs == 1
    assert made.n_dropped == 3
    assert [pair.task_id for pair in made.dropped_pairs] == ["b", "c", "d"]
    assert made.execution_pass_rate == 1.0  # a and b; c has no judged attempt
    assert "3 pairs were dropped: no judged attempt in both arms" in made.warnings


def test_merged_runs_of_other_tasks_with_other_models_lack_no_pair():
    """Two tasks on one model and two on another: nobody meant all four for both."""
    first = both_arms({"a": "p", "b": "p"}, {"a": "p", "b": "f"}, model="m1", run_id="r1")
    second = both_arms({"c": "p", "d": "p"}, {"c": "p", "d": "f"}, model="m2", run_id="r2")
    made = built([*first, *second])
    assert (made.n_pairs, made.n_dropped, made.warnings) == (4, 0, [])


def test_a_time_out_belongs_to_its_tasks_judge_and_tier_though_nobody_judged_it():
    """Task a passes in both arms, b times out in the candidate: half of its tasks, in every grouping."""
    contains = {"judgments": [{"judge": "contains", "passed": True, "score": 1.0}]}
    records = [
        *(a_record("a", arm, tier="T1", **contains) for arm in ("candidate", "baseline")),
        a_record("b", "baseline", tier="T1", **contains),
        a_record("b", "candidate", outcome="timeout", score=0.0),
    ]
    made = built(records)
    for group in (made.by_judge["contains"], made.by_tier["T1"]):
        assert group.execution_pass_rate == group.arms["candidate"].pass_rate == 0.5


def test_a_benchmark_that_times_out_is_a_failed_one():
    """Speedup 4 on a and none on b, which falls back to the baseline's: (4 + 1) / 2, half of them a success."""
    four = {"benchmarks": [{"name": "m.f", "nop_median": 4.0, "agent_median": 1.0}]}
    judged = {"judgments": [{"judge": "benchmark", "passed": True, "score": 1.0, **four}]}
    records = [
        a_record("a", **judged),
        a_record("b", outcome="timeout", score=0.0),
        *(a_record(task, "baseline", **judged) for task in ("a", "b")),
    ]
    (found,) = built(records).speedups["candidate"].values()
    assert (found.n, found.mean_speedup) == (2, 2.5)
    assert (found.mean_success_rate, found.accuracy) == (0.5, 0.5)
    # Neither a judge's name nor what it had measured by then makes it a success.
    for measured in ({}, four):
        late = a_record("b", outcome="timeout", judgments=[{"judge": "benchmark"}], **measured)
        (told,) = built([*records[:1], late, *records[2:]]).speedups["candidate"].values()
        assert told == found


def test_numbers_at_the_end_of_their_range_are_no_exception_and_no_noise():
    fast = {"benchmarks": [{"name": "m.f", "nop_median": 1e8, "agent_median": 1e-300}]}
    judged = {"judgments": [{"judge": "benchmark", "passed": True, "score": 1.0, **fast}]}
    made = built([a_record(task, arm, **judged) for task in ("a", "b") for arm in ("candidate", "baseline")])
    assert made.verdict == "pass"
    points = [{"name": "c", "achieved": number, "max_points": 1e-200} for number in (1.0, 2.0)]
    judged = [{"judgments": [{"judge": "llm-rubric", "passed": True, "criteria": [one]}]} for one in points]
    built([a_record("a", attempt=number, **one) for number, one in enumerate(judged, 1)])


def test_more_than_five_percent_errors_in_an_arm_are_an_error_and_inconclusive():
    candidate = many("p", 19) | {"task-19": "e"}
    made = built(both_arms(candidate, many("f", 20)), weak_baseline="warn")
    assert made.verdict == "pass"  # 1 of 20 is exactly 5 %
    candidate |= {"task-18": "e"}
    made = built(both_arms(candidate, many("f", 20), error="429 overloaded"), weak_baseline="warn")
    assert made.verdict == "error"
    assert made.decision == "inconclusive"
    assert "2 of 20 candidate attempts ended in error: 429 overloaded (2×)" in made.reason
    assert made.errors["candidate"] == [CommonError(message="429 overloaded", count=2)]


def test_a_weak_baseline_is_an_error_but_not_for_a_bare_model_or_a_mock():
    records = both_arms(many("p", 6), many("f", 6))
    assert built(records).verdict == "error"
    assert built(records).reason == "baseline pass rate 0.0 % < 20.0 % (tasks passed)"
    for forgiven in ({"weak_baseline": "warn"}, {"baseline": "bare"}, {"models": ("mock",)}):
        made = built(records, **forgiven)
        assert made.verdict == "pass"
        assert "baseline pass rate 0.0 % < 20.0 % (tasks passed)" in made.warnings


@pytest.mark.parametrize(("status", "words"), [("cancelled", "cancelled"), ("over_budget", "budget")])
def test_an_unfinished_run_has_verdict_error_and_numbers_over_its_pairs(status, words):
    records = both_arms({"a": "p", "b": "p", "c": "p"}, {"a": "p", "b": "f"})
    made = built(records, status=status)
    assert made.verdict == "error"
    assert words in made.reason
    assert made.execution_pass_rate == 1.0
    assert made.baseline_pass_rate == 0.5
    assert made.arms["candidate"].n_tasks == 3


def test_a_candidate_below_the_threshold_is_skipped_and_has_no_number():
    info = RunInfo(run_id="r", candidates=(CandidateInfo(candidate_id="c1", score=5.9),))
    (made,) = build.build(info, [])
    assert made.verdict == "skipped"
    assert made.execution_pass_rate is None
    assert made.candidate_results == []
    assert file.trace(made) is None


def test_without_a_baseline_half_of_the_tasks_must_pass():
    made = built(both_arms({"a": "p", "b": "f"}, {}))
    assert (made.verdict, made.delta, made.decision) == ("pass", None, None)
    assert built(both_arms({"a": "p", "b": "f", "c": "f"}, {})).verdict == "fail"


@pytest.mark.parametrize(
    "records",
    [
        [],
        both_arms({"a": "p"}, {}),
        both_arms({}, {"a": "p"}),
        both_arms({"a": "p"}, {"a": "f"}),
        both_arms({"a": "eee"}, {"a": "eee"}),
        both_arms({"a": "sss"}, {"a": "ss"}),
        both_arms({"a": "pp", "b": "p"}, {"a": "f"}),
        both_arms({"a": "p"}, {"b": "p"}),
        both_arms({"a": "p"}, {"a": "p"}, model=None, run_id=None),
        both_arms({"a": "p"}, {"a": "p"}, score=None),
        both_arms({"a": "p"}, {"a": "p"}, score=1e308, model_ms=1e308),
        [a_record("a", "oracle")],
        [a_record("a", "nonsense")],
        both_arms({"x" * 5000: "p", "\x1b[31m": "p", "=1+1": "f"}, {"=1+1": "p"}),
    ],
    ids=lambda records: f"{len(records)} records",
)
def test_any_records_give_a_standard_artifact_without_a_warning(records, tmp_path):
    made = built(records)
    assert loads(made.model_dump_json().encode()) == made
    assert made.verdict in ("pass", "fail", "error")
    path = file.write(made, tmp_path / "a.json")
    assert json.loads(path.read_text(encoding="utf-8"))["truth_anchor"] == str(path)


def test_several_candidates_share_the_baseline_and_are_corrected_for():
    # Given six tasks that candidate x wins, y wins half, z is below the threshold
    baseline = many("f", 6)
    halves = {f"task-{number:02}": "pf"[number % 2] for number in range(6)}
    records = both_arms({}, baseline)
    records += [a_record(task, "candidate:x") for task in baseline]
    records += [
        a_record(task, "candidate:y", outcome="passed" if how == "p" else "failed")
        for task, how in halves.items()
    ]
    info = RunInfo.from_records(records)
    below = CandidateInfo(arm="candidate:z", candidate_id="z", score=1.0)
    info = info.model_copy(update={"candidates": (*info.candidates, below), "weak_baseline": "warn"})
    first, second, third = build.build(info, records)
    # Then p is that of 6 and of 3 tasks won and none lost, multiplied by 2 and by 1, at level 1 - 0.05/2
    won, half_won = (2 * scipy_stats.beta(tasks + 0.5, 0.5).cdf(0.5) for tasks in (6, 3))
    assert (first.candidate_id, second.candidate_id, third.verdict) == ("x", "y", "skipped")
    assert first.p_value == pytest.approx(won, abs=1e-6)
    assert second.p_value == pytest.approx(half_won, abs=1e-6)
    assert first.p_value_adjusted == pytest.approx(2 * won, abs=1e-6)
    assert second.p_value_adjusted == pytest.approx(half_won, abs=1e-6)
    assert (first.sign_flip_p_value, second.sign_flip_p_value) == (2 / 64, 2 / 8)
    assert first.interval.level == 0.975
    # And earlier comparisons with the same cached baseline count too
    reused, *_ = build.build(info.model_copy(update={"baseline_reuse_count": 3}), records)
    assert reused.p_value_adjusted == pytest.approx(4 * won, abs=1e-6)
    assert reused.interval.level == pytest.approx(1 - 0.05 / 4)


def test_with_several_models_the_unit_is_the_task_and_its_cells_are_averaged():
    records = both_arms({"a": "p", "b": "p"}, {"a": "f", "b": "p"}, model="one")
    records += both_arms({"a": "f", "b": "p"}, {"a": "p", "b": "f"}, model="two")
    made = built(records)
    # Task a gains with one and loses with two, b gains with two: the tasks' differences are 0 and 0.5
    assert (made.n_pairs, made.n_cells, made.n_dropped) == (2, 4, 0)
    assert made.attempt_delta == 0.25
    drawn = np.random.default_rng(7).dirichlet([1, 1, 0.5, 0.5], 10**6) @ [0.0, 0.5, 1.0, -1.0]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert made.interval.tasks_like_these.low == pytest.approx(low, abs=3e-3)
    assert made.interval.tasks_like_these.high == pytest.approx(high, abs=3e-3)
    assert made.mcnemar_p_value is None  # the models of a task are no independent pairs
    assert made.by_model["one"].mcnemar_p_value == 1
    assert made.execution_pass_rate == 0.75
    assert made.by_model["one"].delta == 0.5
    assert made.by_model["two"].delta == 0.0
    assert [change.difference for change in made.changes] == [-1, 1, 1]  # losses first


def test_groups_by_tier_and_judge_type_are_paired_within():
    easy = both_arms({"a": "p"}, {"a": "p"}, tier="T1", judgments=[{"judge": "contains", "score": 1.0}])
    hard = both_arms({"b": "p"}, {"b": "f"}, tier="T2", judgments=[{"judge": "pytest", "score": 1.0}])
    made = built(easy + hard)
    assert {tier: group.delta for tier, group in made.by_tier.items()} == {"T1": 0.0, "T2": 1.0}
    assert {judge: group.n_pairs for judge, group in made.by_judge.items()} == {
        "contains": 1,
        "pytest": 1,
    }
    assert made.by_tier["T2"].arms["baseline"].pass_rate == 0.0


def test_consistency_is_kept_by_arm_and_missing_when_nothing_was_repeated():
    made = built(both_arms({"a": "pf", "b": "pp"}, {"a": "f", "b": "f"}), weak_baseline="warn")
    block = made.consistency["candidate"]
    assert block.accuracy_std_dev == pytest.approx(25)  # 50 and 0
    assert block.consistency_score == pytest.approx(100 - 3 * 25)
    assert block.flaky_tasks == ["a"]
    assert block.unseen_bound.model_dump() == {
        "tasks": 1,
        "bound": pytest.approx(1 - 0.05**0.5, abs=1e-6),
    }
    assert made.consistency["baseline"] is None
    assert any("range 100 points over 2 attempts" in warning for warning in made.warnings)


def test_panels_are_reported_with_agreement_and_bias():
    def panel(*scores: float | None) -> list[dict[str, Any]]:
        return [
            {"judge": "llm-rubric", "judge_model": name, "score": score, "cost_usd": 0.01}
            for name, score in zip("xy", scores, strict=True)
        ]

    records = [
        a_record("a", judgments=panel(0.9, 0.7)),
        a_record("b", judgments=panel(0.2, 0.2)),
        a_record("c", judgments=panel(0.5, None)),
        a_record("a", "baseline", judgments=panel(0.6, 0.4)),
    ]
    block = built(records).judges
    # units (.9 .7) (.2 .2) (.6 .4): observed 2*(.02+0+.02)/6, expected 2*sum((v-mean)^2)/5 over six values
    values = [0.9, 0.7, 0.2, 0.2, 0.6, 0.4]
    expected = 2 * sum((value - 0.5) ** 2 for value in values) / 5
    observed = 2 * 2 * (0.02 + 0.02) / 6
    assert block.agreement.alpha_scores == pytest.approx(1 - observed / expected, abs=1e-6)
    assert block.agreement.bias == {
        "x": pytest.approx(0.4 / 3, abs=1e-6),
        "y": pytest.approx(-0.4 / 3, abs=1e-6),
    }
    assert block.panel_sizes == {"2": 4}
    assert block.n_missing == 1
    assert block.judge_cost == 0.08


def test_a_judge_named_like_the_second_of_another_is_a_judge_of_its_own():
    names = ("x", "x", "x #2")
    panel = [{"judge": "llm-rubric", "judge_model": name, "score": 0.5, "passed": True} for name in names]
    records = [a_record("a", judgments=panel), a_record("a", "baseline", judgments=panel)]
    assert built(records).judges.agreement.n == 2


def test_a_group_that_holds_everything_has_the_numbers_of_the_whole():
    judged = [{"judge": "contains", "score": 1.0}]
    records = both_arms({"a": "pf", "b": "pp"}, {"a": "ff", "b": "pf"}, judgments=judged)
    made = built(records)
    (only,) = made.by_model.values()
    assert only == made.by_judge["contains"]
    assert dict(only) == {name: getattr(made, name) for name in type(only).model_fields}


def test_benchmark_tasks_have_speedups_by_arm_and_model():
    measured = {"name": "sort.time_it", "nop_median": 1.0, "agent_median": 0.5, "oracle_median": 0.25}
    records = [
        a_record("a", benchmarks=[measured], tests={"passed": 1}, judgments=[{"judge": "benchmark"}]),
        a_record("a", "baseline", benchmarks=[{**measured, "agent_median": 1.0}]),
    ]
    made = built([record.model_copy(update={"completion": None}) for record in records])
    summary = made.speedups["candidate"]["anthropic:some-model"]
    assert summary.mean_speedup == pytest.approx(2)
    assert summary.agent_advantage == pytest.approx(2 - 4)
    assert made.speedups["baseline"]["anthropic:some-model"].mean_speedup == pytest.approx(1)
    assert built(both_arms({"a": "p"}, {"a": "p"})).speedups is None


def test_triggers_tell_missed_and_false_ones():
    def invoked(task: str, was: bool | None) -> AttemptRecord:
        return a_record(task, completion={"skill_loaded": was})

    tasks = (
        TaskInfo(id="yes", should_trigger=True),
        TaskInfo(id="also", should_trigger=True),
        TaskInfo(id="no", should_trigger=False),
        TaskInfo(id="any"),
    )
    records = [invoked("yes", True), invoked("also", False), invoked("no", True), invoked("any", False)]
    block = built(records, tasks=tasks).triggers
    assert block.rate == pytest.approx(1 / 3, abs=1e-6)
    assert (block.trigger_rate, block.false_trigger_rate) == (0.5, 1.0)
    assert (block.missed_tasks, block.false_trigger_tasks) == (["also"], ["no"])
    assert built([invoked("yes", None)], tasks=tasks).triggers is None


def test_a_sequential_run_decides_by_its_repeated_interval():
    records = both_arms(many("p", 40, 3), many("f", 40, 3))
    made = built(records, stop_early=True, weak_baseline="warn")
    looks = made.sequential.looks
    assert made.sequential.stopped_after == len(looks)
    assert looks[-1].stop is True
    assert made.decision == "improved"
    assert made.interval.repeated is True
    assert made.interval.level == pytest.approx(looks[-1].level)
    assert made.p_value is None
    assert [look.round for look in made.sequential.plan] == [1, 2, 3]


def test_permuting_the_records_changes_no_byte():
    records = both_arms({"a": "pfe", "b": "ttt", "c": "ppp"}, {"a": "fpf", "b": "pp", "c": "e"}, model_ms=0.1)
    in_order = built(records).model_dump_json()

    @settings(max_examples=15)
    @given(st.permutations(records))
    def changes_no_byte(shuffled: list[AttemptRecord]):
        assert built(shuffled).model_dump_json() == in_order

    changes_no_byte()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25))
def test_intervals_contain_their_estimate_and_stay_within_one(passes):
    candidate = {f"t{number:02}": ("p" * c).ljust(3, "f") for number, (c, _) in enumerate(passes)}
    baseline = {f"t{number:02}": ("p" * b).ljust(3, "f") for number, (_, b) in enumerate(passes)}
    made = built(both_arms(candidate, baseline))
    for bounds in (made.interval.tasks_like_these, made.interval.exactly_this_suite):
        assert -1 <= bounds.low <= bounds.estimate <= bounds.high <= 1


def test_the_environment_has_the_runs_own_wall_time_and_speed():
    made = built(both_arms({"a": "p"}, {"a": "p"}), wall_seconds=4.0, environment={"hosts": 2})
    assert made.environment.model_dump() == {"wall_seconds": 4.0, "attempts_per_second": 0.5, "hosts": 2}


def test_arms_that_share_no_task_have_no_difference_and_no_verdict():
    made = built([a_record("a"), a_record("b", "baseline", outcome="failed"), a_record("c", "baseline")])
    assert (made.execution_pass_rate, made.baseline_pass_rate, made.delta) == (1.0, 0.5, None)
    assert (made.verdict, made.reason) == ("error", "no task was judged in both arms")
    assert "no task was judged in both" in made.summary


def test_tasks_of_one_arm_only_are_told_beside_the_difference():
    made = built(both_arms({"a": "p", "b": "p", "c": "f"}, {"a": "f", "b": "p"}))
    assert "1 task left out: not judged in both arms" in made.summary


def test_the_first_attempts_of_merged_runs_all_count():
    records = [
        a_record("a", arm, run_id=f"r{n}", outcome="passed" if n == 1 else "failed")
        for n in range(1, 6)
        for arm in ("candidate", "baseline")
    ]
    assert built(records).arms["candidate"].first_attempt_rate == pytest.approx(0.2)


def test_a_task_has_one_tier_and_one_judge_however_many_its_records_name():
    scored = {"judgments": [{"judge": "contains"}]}
    other = {"judgments": [{"judge": "llm-rubric"}]}
    records = [
        a_record("a", attempt=1, tier="T1", score=1.0, **scored),
        a_record("a", attempt=2, tier="T2", score=0.0, outcome="failed", **other),
        a_record("a", "baseline", tier="T1", score=1.0, **scored),
    ]
    made = built(records)
    for groups, name in ((made.by_tier, "T1"), (made.by_judge, "contains")):
        assert list(groups) == [name]
        arm = groups[name].arms["candidate"]
        assert (arm.n_scored, arm.mean_score) == (2, 0.5)


@pytest.mark.parametrize("tokens", [10**400, -(10**400)])
def test_numbers_too_large_for_a_float_are_missing(tokens):
    made = built([a_record(completion={"input_tokens": tokens}), a_record(arm="baseline")])
    assert made.arms["candidate"].input_tokens is None
    assert any("out of range" in warning for warning in made.warnings)


def test_baseline_records_of_a_run_without_a_baseline_break_nothing():
    made = built(both_arms({"a": "p"}, {"a": "p"}), baseline="none")
    assert (made.decision, made.verdict) == (None, "pass")


@pytest.mark.parametrize(
    ("passes", "words"), [(2499, "100.0 % → 99.96 % of attempts, -0.04 points"), (2500, ", +0 points")]
)
def test_a_small_difference_is_not_written_as_none(passes, words):
    tasks = [f"t{n}" for n in range(2500)]
    candidate = {task: "p" if n < passes else "f" for n, task in enumerate(tasks)}
    assert words in built(both_arms(candidate, dict.fromkeys(tasks, "p"))).summary


def test_only_models_judged_in_both_arms_enter_a_task_and_the_others_are_counted():
    # Task a has two models in both arms, b only one: two was never judged in the baseline
    records = both_arms({"a": "p", "b": "p"}, {"a": "f", "b": "f"}, model="one")
    records += both_arms({"a": "f", "b": "p"}, {"a": "f"}, model="two")
    made = built(records)
    assert (made.n_pairs, made.n_cells, made.n_dropped) == (2, 3, 1)
    assert made.attempt_delta == 0.75  # the mean of 1/2 and 1, not of three cells
    assert sentences.cells(made, 3) == "3 pairs of task and model"


def test_a_tasks_interval_leaves_out_0_only_where_its_corrected_p_rules_chance_out():
    """Fisher's p of 3 against 0 of 3 is 2 / C(6, 3) = 0.1; of 9 it is 2 / C(18, 9)."""
    artifact = built(both_arms({"few": "fff", "sure": "p" * 9}, {"few": "ppp", "sure": "f" * 9}))
    p_values = {change.task_id: change.adjusted_p_value for change in artifact.changes}
    assert p_values["few"] == pytest.approx(0.1)
    assert p_values["sure"] < 0.001
    few, sure = (one.interval for one in artifact.candidate_results)
    assert (few.low, few.high) == (-1, 0)
    assert 0 < sure.low < sure.high == 1


def test_the_suites_own_interval_keeps_cells_apart():
    one = both_arms(many("p", 10), many("f", 10), model="one")
    both = [*one, *both_arms(many("p", 10), many("f", 10), model="two")]
    alone, together = built(one), built(both)
    assert together.n_pairs == alone.n_pairs == 10
    assert together.interval.tasks_like_these == alone.interval.tasks_like_these
    widths = [
        bounds.high - bounds.low
        for bounds in (made.interval.exactly_this_suite for made in (together, alone))
    ]
    assert widths[0] < widths[1]


def test_several_models_are_counted_by_task():
    records = [
        r for m in ("m1", "m2") for r in both_arms({"a": "p", "b": "p"}, {"a": "f", "b": "p"}, model=m)
    ]
    summary = built(records).summary
    assert "2 tasks are likely to miss" in summary
    assert "would show 10 points" in summary
    assert "pairs of task and model are likely" not in summary


def test_a_cached_baseline_that_merged_runs_share_counts_once():
    """Its attempts were made once; copies would make the baseline look surer than it is."""
    first = both_arms({"a": "pp"}, {"a": "pf"}, run_id="one")
    again = both_arms({"a": "pp"}, {"a": "pf"}, run_id="two")
    first, again = (
        [
            record.model_copy(update={"started_at": f"{start}{record.attempt}", "worker": "w"})
            for record in run
        ]
        for run, start in ((first, "2026-01-01T00:00:0"), (again, "2026-01-02T00:00:0"))
    )
    copied = [
        record.model_copy(update={"run_id": "two", "cached": True})
        for record in first
        if record.arm == "baseline"
    ]
    made = built([*first, *(record for record in again if record.arm == "candidate"), *copied])
    assert made.arms["baseline"].n == 2
    assert made.arms["candidate"].n == 4
    assert "2 cached records repeat an attempt of another run; each attempt counts once" in made.warnings


def test_a_run_with_looks_gives_its_groups_no_single_look_numbers():
    records = both_arms(many("ppp", 10), many("fff", 10))
    made = built(records, stop_early=True, pass_k=3, tasks=tuple(TaskInfo(id=task) for task in many("p", 10)))
    assert made.sequential is not None
    [group] = made.by_model.values()
    assert group.interval is None
    assert group.p_value is None
    assert group.delta == made.delta
