"""Which model really answered: arms that others answered for are compared, but not without a word."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from builders import a_record, built
from rich.console import Console

from aggregate.artifact.build import build
from aggregate.artifact.comparison import compare
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from aggregate.report import html, markdown
from aggregate.report.result_tables import Material
from aggregate.report.terminal import result_table

MODEL = "anthropic:claude-sonnet"
OLD, NEW = "claude-sonnet-20250101", "claude-sonnet-20250601"
WORDS = f"{MODEL}: {NEW} answered for the candidate, {OLD} for the baseline"


def answered(arm: str, served: str | None, version: str | None = None, **fields: Any) -> AttemptRecord:
    said = {"text": "hi", "served_model": served, "agent_version": version}
    return a_record(fields.pop("task", "a"), arm, model=MODEL, completion=said, **fields)


def warned(*records: AttemptRecord) -> list[str]:
    return [one for one in built(list(records)).warnings if MODEL in one]


def test_arms_that_different_models_answered_for_are_named_in_artifact_table_and_reports(tmp_path):
    records = [answered("candidate", NEW, "2.0"), answered("baseline", OLD, "2.0", cached=True)]
    made = built(records)
    sides = {"candidate": {"models": [NEW], "versions": ["2.0"]}}
    assert made.served == {MODEL: {**sides, "baseline": {"models": [OLD], "versions": ["2.0"]}}}
    (warning,) = warned(*records)
    assert warning.startswith(f"{WORDS}, which is cached;")
    console = Console(record=True, width=300)
    console.print(result_table([made]))
    material = Material(made, lambda: records)
    page = html.write(material, tmp_path / "report.html").read_text()
    for text in (console.export_text(), page, unescape(markdown.text(material))):
        assert WORDS in text


def test_another_version_of_the_agents_program_is_named_too():
    (warning,) = warned(answered("candidate", NEW, "2.1"), answered("baseline", NEW, "2.0"))
    assert "its program was version 2.1 for the candidate, 2.0 for the baseline;" in warning


def test_an_alias_that_moved_in_the_middle_of_a_run_is_seen_where_it_hit_one_arm_only():
    both = [answered(arm, NEW, task=task) for arm in ("candidate", "baseline") for task in "ab"]
    moved = [*both, answered("candidate", OLD, task="c"), answered("baseline", NEW, task="c")]
    assert warned(*both) == []
    (warning,) = warned(*moved)
    assert f"{OLD}, {NEW} answered for the candidate, {NEW} for the baseline;" in warning


@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_a_model_that_does_not_say_who_it_is_is_not_suspected(arm):
    other = {"candidate": "baseline", "baseline": "candidate"}[arm]
    assert warned(answered(arm, NEW, "2.0"), answered(other, None)) == []


def test_one_candidate_is_not_blamed_for_what_answered_another():
    records = [answered(arm, NEW) for arm in ("candidate:a", "baseline")] + [answered("candidate:b", OLD)]
    first, second = build(RunInfo.from_records(records), records)
    assert not any("answered for" in one for one in first.warnings)
    assert any(f"{OLD} answered for the candidate, {NEW}" in one for one in second.warnings)


def test_two_runs_that_different_models_answered_in_are_told_apart():
    said = compare([answered("candidate", OLD)], [answered("candidate", NEW)]).summary
    assert f"{MODEL}: {NEW} answered for the second run, {OLD} for the first;" in said
