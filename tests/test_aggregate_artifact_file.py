"""The files of an artifact: whole or not there, standard JSON, with a trace where a candidate failed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from builders import a_record, both_arms, built

from aggregate.artifact import file
from aggregate.text.formats import clean


def test_a_failed_candidate_leaves_a_trace():
    records = [
        a_record("slow", outcome="timeout", details="x" * 900, judgments=[{"judge": "contains"}]),
        a_record("vague", outcome="failed", score=0.4, judgments=[{"judge": "llm-rubric", "score": 0.4}]),
        a_record("wrong", outcome="failed", details="missing: iOS", judgments=[{"judge": "contains"}]),
        a_record("right"),
        *(a_record(task, "baseline") for task in ("slow", "vague", "wrong", "right")),
    ]
    made = built(records)
    trace = file.trace(made)
    assert made.verdict == "fail"
    assert trace is not None
    failed = {task["task_id"]: task for task in trace["failed_tasks"]}
    assert {name: task["failed_category"] for name, task in failed.items()} == {
        "slow": "efficiency",
        "vague": "accuracy",
        "wrong": "execution",
    }
    assert len(failed["slow"]["details"]) == 200
    assert (failed["vague"]["score_before"], failed["vague"]["score_after"]) == (1.0, 0.4)
    assert file.trace(built(both_arms({"a": "p"}, {"a": "p"}))) is None


def test_the_line_for_stdout_is_the_seeds():
    made = built(both_arms({"a": "p", "b": "p"}, {"a": "p", "b": "f"}))
    assert file.stdout_line(made) == (
        '{"execution_pass_rate": 1.0, "baseline_pass_rate": 0.5, "delta": 0.5, "verdict": "pass"}'
    )


def test_the_artifact_is_written_whole_or_not_at_all(tmp_path):
    made = built(both_arms({"a": "p"}, {"a": "p"}))
    path = file.write(made, tmp_path / "deep" / "run.json")
    first = path.read_bytes()
    assert file.write(made, path).read_bytes() == first
    # Given something that JSON cannot hold, the old file stays and nothing is left beside it
    with pytest.raises(ValueError, match="Unable to serialize"):
        file.write(made.model_copy(update={"environment": {"odd": object()}}), path)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_a_folder_in_the_way_leaves_no_temporary_file(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(OSError, match=r"run\.json"):
        file.write(built([]), tmp_path / "run.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_the_truth_anchor_is_absolute_even_for_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = file.write(built([]), Path("run.json"))
    assert path == tmp_path / "run.json"
    assert json.loads(path.read_text(encoding="utf-8"))["truth_anchor"] == str(tmp_path / "run.json")


def test_cleaning_leaves_only_standard_json():
    assert clean({"a": math.nan, 1: [math.inf, (1, 2)], "s": "\ud800"}) == {
        "a": None,
        "1": [None, [1, 2]],
        "s": "?",
    }
