"""What real runs may claim: tasks are the unit, ties prove little, and a gate for CI fails on harm only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Ended, a_suite, standalone, the_artifact, uplift

pytestmark = pytest.mark.slow


def run(folder: Path, *words: str) -> tuple[Ended, dict[str, Any]]:
    ended = uplift(*standalone(a_suite(folder, tasks=10), *words), cwd=folder)
    return ended, the_artifact(folder)


def a_recording(folder: Path, broken: int) -> str:
    """Three attempts at ten tasks: the baseline passes them all, the candidate all but the first few."""
    lines = [
        {"task": f"task-{number}", "arm": arm, "attempt": attempt, "text": "-" if lost else f"word{number}"}
        for number in range(10)
        for arm in ("baseline", "candidate")
        for attempt in (1, 2, 3)
        for lost in [arm == "candidate" and number < broken]
    ]
    path = folder / "recording.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"replay:{path.name}"


def test_ten_tasks_with_three_models_are_ten_tasks(tmp_path):
    models = [word for seed in (1, 2, 3) for word in ("--model", f"sim:seed={seed}")]
    _, artifact = run(tmp_path, *models)
    assert (artifact["n_pairs"], artifact["n_cells"]) == (10, 30)
    assert artifact["interval"]["n"] == 10


def test_ten_tasks_that_always_pass_are_not_called_no_worse_on_tasks_like_these(tmp_path):
    _, artifact = run(tmp_path, "--model", "sim:baseline=1,candidate=1", "--pass-k", "5")
    assert artifact["decision"] == "inconclusive"
    assert artifact["suite_decision"] == "no_worse"
    assert artifact["interval"]["tasks_like_these"]["low"] == pytest.approx(-0.19195, abs=1e-4)


def test_a_healthy_skill_is_green_and_is_told_what_could_have_been_missed(tmp_path):
    ended, artifact = run(
        tmp_path, "--model", a_recording(tmp_path, 0), "--pass-k", "3", "--gate", "regression"
    )
    assert ended.code == 0, ended.err
    assert artifact["suite_decision"] == "inconclusive"
    said = " ".join(ended.err.split())
    missed = (
        "it may have missed a loss of up to 6.9 points, and 3 more attempts a task would leave 3.5 points"
    )
    assert missed in said
    assert missed in artifact["summary"]


def test_a_loss_that_chance_can_explain_is_green_though_its_verdict_is_fail(tmp_path):
    """One task of ten lost: the verdict counts it, and a gate that fails on harm only is not told by the verdict."""
    ended, artifact = run(
        tmp_path, "--model", a_recording(tmp_path, 1), "--pass-k", "3", "--gate", "regression"
    )
    assert (artifact["verdict"], artifact["suite_decision"]) == ("fail", "inconclusive")
    assert ended.code == 0, ended.err


def test_a_skill_that_breaks_three_of_ten_tasks_is_red(tmp_path):
    ended, artifact = run(
        tmp_path, "--model", a_recording(tmp_path, 3), "--pass-k", "3", "--gate", "regression"
    )
    assert ended.code == 1, ended.err
    assert artifact["suite_decision"] == "worse"
    assert "gate fail: on exactly these tasks the candidate is worse" in artifact["summary"]


def test_a_gate_that_fails_on_harm_is_not_chosen_with_attempts_left_out(tmp_path):
    """A run that stops as futile would be green, however much worse the candidate is."""
    words = ("--model", "sim", "--pass-k", "3", "--gate", "regression", "--stop-early")
    ended = uplift(*standalone(a_suite(tmp_path), *words), cwd=tmp_path)
    assert ended.code == 2
    assert "--gate regression needs every attempt" in ended.err


@pytest.mark.parametrize("word", ["verdict", "decision"])
def test_the_words_that_stop_early_was_told_once_are_told_what_to_use(tmp_path, word):
    words = standalone(a_suite(tmp_path), "--mock", "--pass-k", "3")
    for given in (("--stop-early", word), (f"--stop-early={word}",), ("--config", "old.toml")):
        (tmp_path / "old.toml").write_text(f'stop_early = "{word}"\n')
        ended = uplift(*words, *given, cwd=tmp_path)
        assert ended.code == 2
        assert "it stops as `decision` did" in " ".join(ended.err.split())
    other = uplift(*words, "suite.yaml", cwd=tmp_path)
    assert (other.code, "suite.yaml and --skill-path name two skills" in other.err) == (2, True)
