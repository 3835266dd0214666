"""Records become tidy tables: fixed columns, sorted, missing as NaN; metrics of groups are computed from them."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from builders import a_record, both_arms, built
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregate.artifact import comparison
from aggregate.records import frames, metrics, rows
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import CandidateInfo, Observer, RunInfo, TaskInfo
from judges import judgment
from judges.judgment import BenchmarkTimes, Completion, Criterion, Judgment, Snapshot, ranges


def a_judgment(score: float | None = 1.0, **fields: object) -> dict[str, object]:
    return {
        "judge": "llm-rubric",
        "score": score,
        "passed": None if score is None else score >= 0.7,
        **fields,
    }


def of_candidate(made: frames.Frames) -> SimpleNamespace:
    """The candidate's metrics, as the artifact has them before they are cleaned."""
    return SimpleNamespace(**comparison.overall(made.attempts, made.tasks, ["candidate"], 1)["candidate"])


def test_every_frame_has_its_columns_and_types_even_when_empty():
    empty, full = frames.collect([]), frames.collect(both_arms({"a": "pf"}, {"a": "fe"}))
    for name, columns in (
        ("attempts", rows.ATTEMPTS),
        ("judgments", rows.JUDGMENTS),
        ("criteria", rows.CRITERIA),
        ("tasks", frames.TASKS),
    ):
        assert list(getattr(empty, name).columns) == list(columns)
        assert getattr(empty, name).dtypes.to_dict() == getattr(full, name).dtypes.to_dict()
        assert getattr(empty, name).empty
    assert comparison.overall(empty.attempts, empty.tasks, ["candidate"], 1) == {}
    assert comparison.by_group(empty.attempts, empty.tasks, ["candidate"], 1, {}) == {
        name: {} for name in comparison.GROUPINGS
    }


def test_an_error_is_neither_pass_nor_fail_nor_a_score_of_zero():
    made = frames.collect([a_record(outcome="error", score=0.0, error="boom")]).attempts
    assert not made.loc[0, "judged"]
    assert math.isnan(made.loc[0, "passed"])
    assert math.isnan(made.loc[0, "score"])


def test_a_time_out_counts_as_failed():
    made = frames.collect(both_arms({"a": "t"}, {})).tasks
    assert made.loc[0, ["passed", "n_judged", "n_timeouts"]].tolist() == [0, 1, 1]


def test_the_consensus_is_the_median_over_judges_that_gave_a_score_and_missing_ones_are_counted():
    panel = [a_judgment(0.2), a_judgment(0.9), a_judgment(None, error="no answer"), a_judgment(0.4)]
    made = frames.collect([a_record(outcome="failed", score=None, judgments=panel)]).attempts
    assert made.loc[0, "score"] == 0.4
    assert made.loc[0, ["panel_size", "panel_missing"]].tolist() == [4, 1]


def test_a_panel_inside_one_judgment_is_spread_over_its_members():
    consensus = a_judgment(0.6, panel=[a_judgment(0.5, judge_model="x"), a_judgment(0.7, judge_model="y")])
    made = frames.collect([a_record(judgments=[consensus])]).judgments
    assert made["judge_model"].tolist() == ["x", "y"]
    assert made["member"].tolist() == [1, 2]


def test_impl_rate_is_points_achieved_of_points_possible_and_a_judge_without_criteria_gives_its_score():
    # Given a judge with criteria (2 + 0.5 of 3 + 2), one without, and one whose criteria have no points
    criteria = [
        {"name": "a", "achieved": 2.0, "max_points": 3.0},
        {"name": "b", "achieved": 0.5, "max_points": 2.0},
        {"name": "c", "achieved": None, "max_points": 9.0},
    ]
    unanswered = [{"name": "a", "achieved": None, "max_points": 3.0}]
    record = a_record(
        judgments=[a_judgment(0.5, criteria=criteria), a_judgment(0.9), a_judgment(0.1, criteria=unanswered)]
    )
    # Then each judge has its own rate, and the consensus is the median of those that gave one
    rates = frames.collect([record]).judgments["judge_impl_rate"].tolist()
    assert rates[:2] == [0.5, 0.9]
    assert math.isnan(rates[2])
    assert frames.collect([record]).attempts.loc[0, "impl_rate"] == pytest.approx(0.7)
    assert frames.collect([record]).criteria["criterion"].tolist() == ["a", "b", "c", "a"]


def test_a_rate_of_points_out_of_zero_is_missing():
    nothing = [{"name": "a", "achieved": 0.0, "max_points": 0.0}]
    made = frames.collect([a_record(judgments=[a_judgment(1.0, criteria=nothing)])]).attempts
    assert math.isnan(made.loc[0, "impl_rate"])


def test_the_tasks_frame_sums_up_attempts_by_hand():
    records = [
        a_record("a", attempt=1, outcome="failed", score=0.2, completion={"cost_usd": 0.01, "turns": 2}),
        a_record("a", attempt=2, outcome="passed", score=0.8, completion={"cost_usd": 0.03, "turns": 4}),
        a_record("a", attempt=3, outcome="error", completion={"cost_usd": None}),
        a_record("a", attempt=4, outcome="skipped"),
    ]
    row = frames.collect(records).tasks.loc[0]
    assert (row.n, row.n_judged, row.n_scored, row.n_errors, row.passes) == (3, 2, 2, 1, 1)
    assert (row.passed, row.first_passed, row.pass_rate) == (1, 0, 0.5)
    assert row.score == pytest.approx(0.5)
    assert row.accuracy_std_dev == pytest.approx(30)  # population: |80 - 50|
    assert row.accuracy_range == pytest.approx(60)
    assert row.flaky == 1
    assert row.flaky_sigma == pytest.approx(60 / (2 / math.sqrt(math.pi)), rel=1e-6)  # d2(2) = 2 / sqrt(pi)
    assert row.cost_usd == pytest.approx(0.04)
    assert row.turns == 3


def test_a_range_of_exactly_twenty_points_is_not_flaky():
    records = [a_record("a", attempt=1, score=0.9), a_record("a", attempt=2, score=0.7)]
    assert frames.collect(records).tasks.loc[0, "flaky"] == 0


def test_one_score_has_no_spread():
    row = frames.collect([a_record("a")]).tasks.loc[0]
    assert math.isnan(row.accuracy_std_dev)
    assert math.isnan(row.accuracy_range)
    assert math.isnan(row.flaky)


def test_group_metrics_by_hand():
    # Given two tasks: a passes 1 of 2 at 0.02 each, b passes 0 of 2 at 0.04 each
    records = [
        a_record("a", attempt=1, outcome="passed", score=1.0, completion={"cost_usd": 0.02}),
        a_record("a", attempt=2, outcome="failed", score=0.5, completion={"cost_usd": 0.02}),
        a_record("b", attempt=1, outcome="failed", score=0.5, completion={"cost_usd": 0.04}),
        a_record("b", attempt=2, outcome="failed", score=0.0, completion={"cost_usd": 0.04}),
    ]
    made = frames.collect(records)
    row = of_candidate(made)
    scores = np.array([1.0, 0.5, 0.5, 0.0])
    assert row.pass_rate == 0.5
    assert row.first_attempt_rate == 0.5
    assert row.attempt_pass_rate == 0.25
    assert row.cop == pytest.approx(0.03 / 0.25)
    assert row.mean_score == 0.5
    assert row.std_score == pytest.approx(scores.std(ddof=1))
    assert row.consistency == pytest.approx(1 - scores.std(ddof=1) / 0.5)
    assert row.mean_cost_per_task == pytest.approx(0.06)
    assert row.total_cost == pytest.approx(0.12)
    curves = metrics.pass_curves(made.tasks, 3)
    assert curves["pass_at"]["1"] == 0.25
    assert curves["pass_at"]["2"] == 0.5
    assert curves["pass_hat"]["2"] == 0
    assert math.isnan(curves["pass_at"]["3"])


def test_unknown_cost_is_missing_and_never_zero():
    made = frames.collect([a_record("a", completion={"cost_usd": None})])
    row = of_candidate(made)
    assert row.n_cost_known == 0
    for name in ("total_cost", "mean_cost_per_task", "mean_cost_per_attempt", "cop"):
        assert math.isnan(getattr(row, name))


def test_a_cost_of_pass_without_a_pass_is_infinite_and_marked():
    made = frames.collect([a_record("a", outcome="failed", completion={"cost_usd": 0.5})])
    row = of_candidate(made)
    assert math.isinf(row.cop)
    assert row.no_pass is True


def test_tiers_hold_only_the_tasks_that_name_one_and_may_come_from_the_suite():
    records = [a_record("a", tier="T1"), a_record("b"), a_record("c")]
    made = frames.collect(records, [TaskInfo(id="b", tier="T2", judge="pytest")])
    groups = comparison.by_group(made.attempts, made.tasks, ["candidate"], 1, {})
    assert list(groups["by_tier"]) == ["T1", "T2"]
    assert list(groups["by_judge"]) == ["pytest"]


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_never_shows(shuffler: random.Random):
    records = both_arms({"a": "pfe", "b": "ttt", "c": "p"}, {"a": "fpf", "c": "e"}, tier="T1")
    records += [a_record("a", "candidate:x", model="other", judgments=[a_judgment(0.5), a_judgment(0.1)])]
    expected = frames.collect(records)
    shuffled = list(records)
    shuffler.shuffle(shuffled)
    made = frames.collect(shuffled)
    for name in ("attempts", "judgments", "criteria", "tasks"):
        pd.testing.assert_frame_equal(getattr(made, name), getattr(expected, name))
    assert RunInfo.from_records(shuffled) == RunInfo.from_records(records)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 5))
def test_attempts_without_a_score_never_move_a_mean(scores: list[float], missing: int):
    known = [a_record("a", attempt=number, score=score) for number, score in enumerate(scores, start=1)]
    unknown = [
        a_record("a", attempt=len(scores) + number, outcome="error") for number in range(1, missing + 1)
    ]
    with_missing, without = frames.collect(known + unknown).tasks, frames.collect(known).tasks
    for name in ("score", "accuracy_range", "pass_rate", "n_scored"):
        assert with_missing.loc[0, name] == pytest.approx(without.loc[0, name], nan_ok=True)


def test_of_two_records_of_one_attempt_the_judged_one_counts_in_either_order():
    failed, error = a_record("a", outcome="failed"), a_record("a", outcome="error", error="late")
    for records in ([failed, error], [error, failed]):
        made = frames.collect(records)
        assert made.attempts["outcome"].tolist() == ["failed"]
        assert made.warnings == ("1 records repeat an attempt that has one already; one of each was kept",)


def test_unknown_arms_and_impossible_numbers_are_left_out_and_said():
    records = [
        a_record("a", score=7.0, model_ms=-5.0, completion={"cost_usd": -1.0}),
        a_record("a", arm="control"),
        a_record("a", arm="candidate:"),
    ]
    made = frames.collect(records)
    assert len(made.attempts) == 1
    row = made.attempts.loc[0]
    assert [math.isnan(row[name]) for name in ("score", "model_ms", "cost_usd")] == [True] * 3
    assert made.warnings == (
        "1 records of unknown arm candidate: were left out",
        "1 records of unknown arm control were left out",
        "3 numbers out of range were treated as missing",
    )


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ([], ()),
        ([[("a.org", 1)]], ("1 connection to 1 other host was refused; {}",)),
        ([[("a.org", 5)], [("a.org", 7)]], ("12 connections to 1 other host were refused; {}",)),
        (
            [[("a.org", 5), ("b.org", 1)], [("c.org", 7)]],
            ("13 connections to 3 other hosts were refused; {}",),
        ),
    ],
)
def test_the_connections_that_were_refused_are_told_in_one_line_over_all_attempts(refused, told):
    records = [a_record("a", attempt=n, completion={"refused": one}) for n, one in enumerate(refused, 1)]
    records.append(a_record("b", outcome="error"))
    remedy = "`--network open` allows them, unless they are local"
    assert frames.collect(records).warnings == tuple(one.format(remedy) for one in told)


def test_run_info_survives_json():
    info = RunInfo(
        run_id="r",
        skill_id="s",
        task_suite="suite.yaml",
        tasks=(TaskInfo(id="a", tier="T1", tags=("x",), judge="contains", should_trigger=False),),
        candidates=(CandidateInfo(arm="candidate:b", candidate_id="b", score=7.5),),
        environment={"hosts": 2},
    )
    assert RunInfo.model_validate_json(info.model_dump_json()) == info


def test_run_info_of_records_from_anywhere():
    records = [
        a_record("b", tier="T2", judgments=[a_judgment()], started_at="2026-01-02T00:00:00Z"),
        a_record("b", attempt=2, started_at="2026-01-01T00:00:00Z"),
        a_record("a", "baseline", model=None, run_id="run-2"),
    ]
    info = RunInfo.from_records(records)
    assert info.run_id.startswith("merged-")
    assert info.created_at == "2026-01-01T00:00:00Z"
    assert info.pass_k == 2
    assert info.models == ("anthropic:some-model", "unknown")
    assert info.tasks == (TaskInfo(id="a"), TaskInfo(id="b", tier="T2", judge="llm-rubric"))
    assert info.baseline == "skill"
    observer = Observer()
    frames.collect(observer.watch(iter(records)))
    assert observer.info() == info


def test_no_records_are_a_run_without_numbers():
    info = RunInfo.from_records([])
    assert (info.run_id, info.baseline, info.tasks) == ("records", "none", ())
    assert info.candidates == (CandidateInfo(),)


def test_importing_a_record_does_not_import_pandas():
    code = (
        "import aggregate.records.record, aggregate.records.run_info, sys; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_texts_of_completions_do_not_reach_the_frames():
    made = frames.collect([a_record(completion={"text": "secret words"}, details="d" * 10_000)])
    assert "secret" not in made.attempts.to_csv()
    assert len(made.attempts.loc[0, "details"]) == 500


def test_records_are_read_once_one_by_one():
    def stream():
        for number in range(1, 4):
            yield AttemptRecord(task="a", arm="candidate", attempt=number, outcome="passed")

    assert len(frames.collect(stream()).attempts) == 3


def test_a_tasks_points_have_a_median_and_a_standard_deviation():
    """Points of 0.2, 0.4 and 0.9: median 0.4, sample standard deviation by the statistics module."""
    records = [
        a_record("a", attempt=n, judgments=(Judgment(judge="llm-rubric", passed=True, score=score),))
        for n, score in enumerate((0.2, 0.4, 0.9), start=1)
    ]
    records.append(a_record("b", judgments=(Judgment(judge="llm-rubric", passed=True, score=0.5),)))
    tasks = frames.collect(records, ()).tasks.set_index("task")
    assert tasks.loc["a", "median_impl_rate"] == pytest.approx(0.4)
    assert tasks.loc["a", "std_impl_rate"] == pytest.approx(statistics.stdev((0.2, 0.4, 0.9)))
    assert tasks.loc["b", "median_impl_rate"] == 0.5
    assert math.isnan(tasks.loc["b", "std_impl_rate"])


def test_overlap_is_missing_where_judges_look_for_nothing_by_name():
    def overlap(**said):
        judgments = (Judgment(judge="it", passed=False, score=0.0, **said),)
        records = [a_record("a", attempt=n, outcome="failed", judgments=judgments) for n in (1, 2)]
        return built(records).consistency["candidate"].concept_overlap

    assert overlap() is None
    assert overlap(missed=("x",)) == 100
    assert overlap(criteria=(Criterion(name="x", achieved=0.0, max_points=2.0),)) == 100
    assert overlap(matched=("x",)) == 100


def with_column_before(table: str, name: str, source: str) -> ModuleType:
    """The module of rows with one column more in a table, as somebody would type it before the column `name`."""
    text = Path(rows.__file__).read_text(encoding="utf-8")
    start = text.index(f'    "{name}": Column(', text.index(f"\n{table}: "))
    line = f'    "inserted": Column("float", "for a test", "{source}"),\n'
    changed = ModuleType("rows_with_one_column_more")
    sys.modules[changed.__name__] = changed  # dataclasses look their module up
    exec(compile(text[:start] + line + text[start:], rows.__file__, "exec"), changed.__dict__)
    return changed


@pytest.mark.parametrize(
    ("table", "name", "source"),
    [
        *(("ATTEMPTS", name, "completion.output_tokens") for name in list(rows.ATTEMPTS)[6:]),
        *(("ATTEMPTS", name, "record.retries") for name in ("judge", "cost_usd", "started_at", "cached")),
        *(("JUDGMENTS", name, "judgment.output_tokens") for name in list(rows.JUDGMENTS)[6:]),
        *(("CRITERIA", name, "criterion.max_points") for name in list(rows.CRITERIA)[6:]),
    ],
)
def test_a_column_put_anywhere_shifts_no_other(table: str, name: str, source: str, monkeypatch):
    # Given a benchmark that timed out, a cached copy of an attempt, and a judge with points
    spent = {"cost_usd": 0.25, "turns": 3, "output_tokens": 4321}
    criteria = [{"name": "c", "achieved": 2.0, "max_points": 3.0}]
    fields = {"worker": "w", "started_at": "2026-01-01T00:00:00Z", "retries": 7, "tier": "T1"}
    records = [
        a_record("a", outcome="timeout", completion=spent, judgments=[], **fields),
        a_record(
            "a", attempt=2, completion=spent, judgments=[{"judge": "benchmark", "passed": True}], **fields
        ),
        a_record(
            "b", completion=spent, judgments=[a_judgment(0.5, criteria=criteria, output_tokens=9)], **fields
        ),
        a_record("b", run_id="run-2", cached=True, **fields),
    ]
    before = frames.collect(records)
    monkeypatch.setattr(frames, "rows", with_column_before(table, name, source))
    after = frames.collect(records)
    # Then the new column has its own values, and nothing else moved
    changed = getattr(after, table.lower())
    assert set(changed.pop("inserted").dropna()) <= {4321, 7, 9, 3}
    for kind in ("attempts", "judgments", "criteria", "tasks"):
        pd.testing.assert_frame_equal(getattr(after, kind), getattr(before, kind))
    assert [(one.cost_usd, one.turns) for one in after.measured] == [(0.25, 3), (0.25, 3)]
    assert after.warnings == before.warnings
    assert "1 cached records repeat" in after.warnings[0]


def test_every_number_of_a_record_has_a_range_and_its_column_keeps_to_it():
    """A number that is copied into a table, or read from a file, and has no range would be believed whatever it is."""
    models = (AttemptRecord, Completion, Judgment, Criterion, BenchmarkTimes, judgment.Tests, Snapshot)
    numbers = {
        f"{model.__name__}.{name}": model
        for model in models
        for name, field in model.model_fields.items()
        if {int, float} & {field.annotation, *get_args(field.annotation)}
    }
    assert "Completion.cost_usd" in numbers
    without = {place for place, model in numbers.items() if place.partition(".")[2] not in ranges(model)}
    assert without == {"AttemptRecord.attempt"}  # which no record can do without: it is checked at once
    computed = {
        name for name, column in rows.ATTEMPTS.items() if column.kind == "float" and not rows.limits(column)
    }
    assert computed == {"passed", "impl_rate", "skill_loaded"}
