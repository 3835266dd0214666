"""Exports for other tools: flat keys, standard formats, safe cells, the same bytes every time."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import a_record, both_arms

from aggregate.artifact import build, comparison
from aggregate.records import frames, metrics
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from aggregate.report import csv_tables, result_tables

METRIC_NAMES = {metric.name for metric in metrics.METRICS}
FILES = ["attempts.csv", "criteria.csv", "judgments.csv", "summary.json", "tasks.csv"]
SEED_KEYS = [
    f"{how}_{what}" for what in ("impl_rate", "score") for how in ("mean", "median", "std", "min", "max")
]


def some_records() -> list[AttemptRecord]:
    criteria = [{"name": "clear", "achieved": 1.0, "max_points": 2.0}]
    rubric = [{"judge": "llm-rubric", "judge_model": "m", "score": 0.25, "criteria": criteria}]
    records = both_arms({"a": "pf", "b": "p"}, {"a": "fe", "b": "p"}, tier="T1", model_ms=0.1)
    return [*records, a_record("c", tier="T2", judgments=rubric, outcome="failed", score=0.25)]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_summary_has_flat_keys_overall_by_model_and_by_tier_each_arm_apart():
    records = some_records()
    made = csv_tables.summary(RunInfo.from_records(records), frames.collect(records))
    parts = [made["overall_stats"], made["by_model"]["anthropic:some-model"], made["by_tier"]["T1"]]
    for group in parts:
        assert set(group) == {"candidate", "baseline"}
        for arm in group.values():
            assert {*SEED_KEYS, "pass_rate", "cop", "consistency", "n", "n_scored"} <= set(arm)
    scores = np.array([1.0, 0.0, 1.0, 0.25])
    overall = made["overall_stats"]["candidate"]
    assert overall["mean_score"] == pytest.approx(scores.mean())
    assert overall["median_score"] == pytest.approx(np.median(scores))
    assert overall["std_score"] == pytest.approx(scores.std(ddof=1))
    assert (overall["min_score"], overall["max_score"]) == (0.0, 1.0)
    assert overall["mean_impl_rate"] == 0.5  # one judge gave points: 1 of 2
    assert (overall["n"], overall["n_scored"]) == (4, 4)
    assert set(made["by_tier"]) == {"T1", "T2"}
    assert made["overall_stats"]["baseline"]["n_errors"] == 1
    assert json.loads(json.dumps(made, allow_nan=False)) == made


def test_every_file_is_written_and_is_byte_identical_for_any_order_of_records(tmp_path):
    records = some_records()
    info = RunInfo.from_records(records)
    first = csv_tables.write_exports(info, frames.collect(records), tmp_path / "one")
    assert sorted(path.name for path in first) == FILES
    random.Random(3).shuffle(records)
    second = csv_tables.write_exports(
        RunInfo.from_records(records), frames.collect(records), tmp_path / "two"
    )
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_files_exist_with_their_headers_when_there_is_no_record(tmp_path):
    csv_tables.write_exports(RunInfo.from_records([]), frames.collect([]), tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == FILES
    assert (tmp_path / "tasks.csv").read_text(encoding="utf-8").startswith("task,model,arm,tier,judge,n,")
    assert rows_of(tmp_path / "attempts.csv") == []


def test_missing_is_an_empty_cell_and_numbers_stay_numbers(tmp_path):
    csv_tables.write_exports(RunInfo.from_records([]), frames.collect(some_records()), tmp_path)
    error = next(row for row in rows_of(tmp_path / "attempts.csv") if row["outcome"] == "error")
    assert (error["score"], error["passed"], error["cost_usd"]) == ("", "", "")
    judgment = rows_of(tmp_path / "judgments.csv")[0]
    assert (judgment["judge_impl_rate"], judgment["score"]) == ("0.5", "0.25")
    assert rows_of(tmp_path / "criteria.csv")[0]["criterion"] == "clear"
    task = next(
        row for row in rows_of(tmp_path / "tasks.csv") if row["task"] == "a" and row["arm"] == "candidate"
    )
    assert float(task["accuracy_std_dev"]) == 50
    assert float(task["accuracy_range"]) == 100


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", " =", "＝", "＋"])
def test_no_text_can_start_a_formula(start, tmp_path):
    evil = f"{start}cmd|' /C calc'!A0"
    records = [a_record(evil, details=evil, model=evil, judgments=[{"judge": evil, "details": evil}])]
    csv_tables.write_exports(RunInfo.from_records(records), frames.collect(records), tmp_path)
    for name in ("attempts.csv", "judgments.csv", "tasks.csv"):
        for row in rows_of(tmp_path / name):
            assert all(
                cell.lstrip(" ")[:1] not in tuple("=+-@\t\r\n＝＋") or not cell for cell in row.values()
            )
    assert rows_of(tmp_path / "tasks.csv")[0]["task"] == f"'{evil}"


def test_a_negative_number_is_not_taken_for_a_formula():
    frame = pd.DataFrame({"difference": [-0.5, 2.0, math.nan], "text": ["-0.5", "ok", None]})
    assert csv_tables.csv_text(frame) == "difference,text\r\n-0.5,'-0.5\r\n2,ok\r\n,\r\n"


def test_commas_quotes_newlines_and_nul_bytes_survive_or_go_but_never_break_a_row():
    text = csv_tables.csv_text(pd.DataFrame({"text": ['a,"b"\r\nc\0d', "ü ✓"]}))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["text"], ['a,"b"\r\ncd'], ["ü ✓"]]


def test_a_row_in_metrics_is_all_that_a_metric_needs_to_be_reported_everywhere():
    records = some_records()
    info = RunInfo.from_records(records)
    made = frames.collect(records)
    (built,) = build.from_frames(info, made)
    for arm in ("candidate", "baseline"):
        assert set(csv_tables.summary(info, made)["overall_stats"][arm]) >= METRIC_NAMES
        assert set(built.arms[arm].model_dump()) >= METRIC_NAMES
        assert set(built.by_tier["T1"].arms[arm].model_dump()) >= METRIC_NAMES
        assert set(built.cost.by_arm[arm].model_dump()) == {
            "no_pass",
            *(one.name for one in metrics.METRICS if one.cost),
        }
    assert {row.metric for row in result_tables.ROWS} <= METRIC_NAMES
    compared = comparison.compare(records, records)
    assert set(compared.first_run.model_dump()) == {one.name for one in metrics.METRICS if one.compared}


def test_a_row_of_a_metric_that_an_artifact_lacks_is_left_out(monkeypatch):
    """As that of an earlier version does, or an arm that was not run."""
    records = some_records()
    (built,) = build.from_frames(RunInfo.from_records(records), frames.collect(records))
    before = result_tables.metrics(built)
    later = result_tables.TableRow("Answers cut", "cut_rate", result_tables.rate)
    monkeypatch.setattr(result_tables, "ROWS", (*result_tables.ROWS, later))
    assert result_tables.metrics(built) == before


def test_the_page_about_numbers_names_every_metric():
    path = Path(__file__).parent.parent / "docs" / "reading-a-result.md"
    page = path.read_text(encoding="utf-8").partition("\n## The CSV files")[0]
    families = {
        f"{how}_{of}" for how in ("mean", "median", "std", "min", "max") for of in ("score", "impl_rate")
    }
    assert "`mean_…`, `median_…`, `std_…`, `min_…`, `max_…`" in page
    told = set(re.findall(r"`(\w+)`", page))
    assert sorted(METRIC_NAMES - families - told) == []


def test_more_groups_than_anyone_reads_are_left_out_and_said():
    records = [a_record(f"t{number}", tier=f"tier-{number}") for number in range(comparison.MOST_GROUPS + 1)]
    info = RunInfo.from_records(records)
    made = csv_tables.summary(info, frames.collect(records, info.tasks))
    assert made["by_tier"] == {}
    assert made["warnings"] == ["by_tier is left out: 201 groups are more than 200"]
    (built,) = build.build(info, records)
    assert built.by_tier == {}
    assert "by_tier is left out: 201 groups are more than 200" in built.warnings


def test_thousands_of_attempts_of_one_task_are_summed_up_in_time():
    records = [a_record("t", attempt=number, outcome="failed") for number in range(1, 5001)]
    made = csv_tables.summary(RunInfo.from_records(records), frames.collect(records))
    curve = made["overall_stats"]["candidate"]["pass_at"]
    assert list(curve) == [str(k) for k in range(1, 101)]
    assert set(curve.values()) == {0.0}
