"""Several checks in the numbers: medians by check, the mean by weight, programs apart from models, hostile records."""

import json

import pandas as pd
import pytest
from builders import a_record

from aggregate.artifact import blocks
from aggregate.records import jsonl
from aggregate.records.frames import collect
from aggregate.records.run_info import RunInfo
from judges.judgment import SPARED, BenchmarkTimes, Judgment


def says(check, score, *, passed=None, judge="contains", **more):
    return Judgment(
        judge=judge,
        check=check,
        score=score,
        passed=(score is not None and score >= 0.5) if passed is None else passed,
        **more,
    )


def a_judged(*judgments, task="a", arm="candidate", attempt=1, outcome="passed", **more):
    return a_record(task, arm, attempt, outcome=outcome, judgments=judgments, score=None, **more)


def attempt_of(*records):
    return collect(records).attempts.iloc[0]


def test_the_score_is_the_weighted_mean_of_the_medians_of_each_check():
    """By hand: a has 0.2, 0.4, 0.9, median 0.4; (3 × 0.4 + 1 × 1.0) / 4."""
    members = [
        says("a", score, weight=3, judge="llm-rubric", judge_model=model)
        for model, score in zip("xyz", (0.2, 0.4, 0.9), strict=True)
    ]
    as_panel = Judgment(
        judge="llm-rubric",
        check="a",
        weight=3,
        score=0.4,
        passed=False,
        panel=tuple(one.model_copy(update={"check": None}) for one in members),
    )
    for said in (members, [as_panel]):
        row = attempt_of(a_judged(*said, says("b", 1.0)))
        assert row["score"] == pytest.approx(0.55)
        assert row["impl_rate"] == pytest.approx(0.55)
        assert (row["judge"], row["panel_size"], row["panel_missing"]) == ("checks", 4, 0)
    frames = collect([a_judged(as_panel, says("b", 1.0))])
    assert frames.judgments["check"].tolist() == ["a", "a", "a", "b"]
    assert frames.checks[["check", "by", "score"]].to_numpy().tolist() == [
        ["a", "model", 0.4],
        ["b", "program", 1.0],
    ]


def test_a_missing_score_makes_that_of_the_attempt_missing_and_is_counted():
    row = attempt_of(a_judged(says("a", 1.0), Judgment(judge="llm-rubric", check="b", details=SPARED)))
    assert pd.isna(row["score"])
    assert pd.isna(row["impl_rate"])
    assert row["panel_missing"] == 1
    without_weight = Judgment(judge="llm-rubric", check="b", weight=0)
    assert attempt_of(a_judged(says("a", 1.0), without_weight))["score"] == 1.0


def test_what_was_met_is_what_judges_name_and_else_the_check():
    row = attempt_of(
        a_judged(
            says("a", 1.0, matched=("x", "y")),
            says("b", 0.0, judge="pytest"),
            says("c", 1.0, judge="pytest"),
            outcome="failed",
        )
    )
    assert (row["matched"], row["missed"]) == (("c", "x", "y"), ("b",))


def test_programs_are_kept_apart_where_models_judge_too():
    """By hand: of task a's attempts one of two passes its programs, of b's (a time-out) none; c has models alone."""
    model = says("m", 1.0, judge="llm-rubric", passed=True)
    records = [
        a_judged(says("p", 1.0), model),
        a_judged(says("p", 0.0), model, attempt=2, outcome="failed"),
        a_judged(says("p", 1.0), model, task="b"),
        a_record("b", "candidate", 2, outcome="timeout"),
        a_judged(Judgment(judge="llm-rubric", passed=True, score=1.0), task="c"),
    ]
    frames = collect(records)
    assert frames.tasks["program_pass_rate"].fillna(-1).tolist() == [0.5, 0.5, -1]
    only_programs = collect([a_judged(says("p", 1.0)), a_judged(says("p", 0.0), attempt=2)])
    assert only_programs.attempts["program_passed"].isna().all()


def test_a_program_check_that_is_not_required_decides_nothing():
    model = says("m", 1.0, judge="llm-rubric", passed=True)
    optional = says("o", 0.0, required=False)
    rows = collect([a_judged(says("p", 1.0), optional, model), a_judged(optional, model, task="b")]).attempts
    assert rows["program_passed"].fillna(-1).tolist() == [1.0, -1.0]


def test_judges_of_different_checks_are_no_panel():
    """They need not agree: they look at different things."""
    records = [
        a_judged(says("a", 1.0), says("b", 0.0), attempt=number, outcome="failed") for number in (1, 2)
    ]
    frames = collect(records)
    block = blocks.panels_block(frames.judgments, frames.attempts)
    assert (block["agreement"], block["panel_sizes"]) == (None, {"1": 4})
    panel = (Judgment(judge="llm-rubric", judge_model="x", score=1.0, passed=True),) * 2
    said = Judgment(judge="llm-rubric", check="b", score=1.0, passed=True, panel=panel)
    frames = collect([a_judged(says("a", 1.0), said)])
    block = blocks.panels_block(frames.judgments, frames.attempts)
    assert (block["agreement"]["n"], block["panel_sizes"]) == (1, {"1": 1, "2": 1})


def test_rates_by_check_and_arm_count_what_is_missing():
    spared = Judgment(judge="llm-rubric", check="m", details=SPARED, required=False)
    records = [
        a_judged(says("p", 1.0), says("m", 0.8, judge="llm-rubric"), arm="baseline"),
        a_judged(says("p", 0.0), spared, outcome="failed"),
    ]
    made = blocks.check_results(collect(records).checks)
    told = [
        (one.check, one.arm, one.by, one.n, one.judged, one.passes, one.missing, one.score) for one in made
    ]
    assert told == [
        ("p", "baseline", "program", 1, 1, 1, 0, 1.0),
        ("m", "baseline", "model", 1, 1, 1, 0, 0.8),
        ("p", "candidate", "program", 1, 1, 0, 0, 0.0),
        ("m", "candidate", "model", 1, 0, 0, 1, None),
    ]


def test_a_time_out_counts_against_the_speed_of_a_task_with_a_benchmark_among_its_checks():
    times = (BenchmarkTimes(name="f.g()", nop_median=1.0, agent_median=0.5),)
    records = [
        a_judged(says("speed", 1.0, judge="benchmark"), says("x", 1.0), benchmarks=times),
        a_record("a", "candidate", 2, outcome="timeout"),
    ]
    first, second = collect(records).measured
    assert (first.benchmarks, second.timed_out) == (times, True)


def test_records_alone_tell_that_a_task_has_checks():
    (task,) = RunInfo.from_records([a_judged(says("a", 1.0), says("b", 1.0))]).tasks
    assert task.judge == "checks"


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"weight": -1}, "weight"),
        ({"weight": 1e300}, "weight"),
        ({"weight": "2"}, "weight"),
        ({"required": "yes"}, "required"),
        ({"check": 5}, "check"),
    ],
)
def test_hostile_records_are_refused_at_their_line(tmp_path, wrong, place):
    judgment = {"judge": "contains", "check": "a", "passed": True, "score": 1, **wrong}
    record = {"task": "a", "arm": "candidate", "attempt": 1, "outcome": "passed", "judgments": [judgment]}
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(jsonl.RecordsError, match=f"judgments\\[0\\].{place}"):
        list(jsonl.read_jsonl(path))


def test_a_thousand_checks_of_one_name_and_deep_panels_are_read():
    many = [says("a", number / 1000) for number in range(1000)]
    assert attempt_of(a_judged(*many))["score"] == pytest.approx(0.4995)
