"""A suite that mixes all judges, through a real private server and worker."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from running import uplift

pytestmark = pytest.mark.slow

MIXED = Path(__file__).parent.parent / "examples" / "mixed"


class Judged(NamedTuple):
    """One attempt; `details` are the judge's words, for whoever reads a failed test."""

    task: str
    arm: str
    outcome: str
    details: str | None


def outcomes(folder, model):
    """What each task's candidate and baseline attempt came to, and the process's end."""
    words = [
        "--task-suite",
        MIXED / "suite.yaml",
        "--skill-path",
        MIXED / "skill",
        "--state-root",
        folder / "state",
    ]
    ended = uplift("evaluate", "--standalone", *words, *model, cwd=folder, timeout=240)
    (path,) = (folder / "state" / "runs").glob("*/records.jsonl.gz")
    with gzip.open(path) as file:
        records = [json.loads(line) for line in file]
    kinds = {judgment["judge"] for record in records for judgment in record["judgments"]}
    assert kinds == {
        *("contains", "pytest", "llm-rubric", "benchmark", "json-schema", "python", "command", "files"),
        *("not regex", "any of equals, length"),
    }
    return ended, [
        Judged(record["task"], record["arm"], record["outcome"], record.get("details")) for record in records
    ]


def test_the_simulated_model_passes_and_fails_each_judge_as_it_was_told(short_tmp):
    ended, found = outcomes(short_tmp, ["--model", "sim:baseline=0,candidate=1"])
    assert ended.code == 0, ended.err
    assert not [judged for judged in found if judged.arm == "candidate" and judged.outcome != "passed"]
    assert not [judged for judged in found if judged.arm == "baseline" and judged.outcome != "failed"]
    assert ended.line["delta"] == 1.0


def test_with_mock_no_judge_errs_and_rubrics_and_files_are_content(short_tmp):
    ended, found = outcomes(short_tmp, ["--mock"])
    assert ended.code == 0, ended.err
    assert {judged.outcome for judged in found} == {"passed", "failed"}
    content = {"answers-kindly", "explains-mutable-defaults", "total-in-a-file"}
    assert {judged.task for judged in found if judged.outcome == "passed"} == content
