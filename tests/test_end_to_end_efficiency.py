"""Whole runs whose candidate costs less, or more: the sentence, the artifact, and the exit codes of the cost gate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import SKILL, Ended, a_suite, standalone, the_artifact, uplift

from producer import evaluate

pytestmark = pytest.mark.slow

# Passes every task; the bill depends on whether the skill came with the prompt.
AGENT = """
import json, sys
prompt = sys.stdin.read()
usd = float(sys.argv[1]) if "three lines" in prompt else 0.5
print(json.dumps({"text": prompt, "cost": usd, "calls": 3}))
"""


def with_agent(folder: Path, usd: float, *flags: str) -> Ended:
    """Evaluate a skill whose attempts cost this much, where the bare model's cost half a dollar."""
    declared = {
        "argv": [sys.executable, "-c", AGENT, str(usd)],
        "output": "json",
        "text_path": "text",
        "cost_path": "cost",
        "turns_path": "calls",
    }
    environment = {"UPLIFT_COMMANDS": json.dumps({"payer": declared})}
    words = standalone(a_suite(folder, 5), "--model", "command:payer", "--skill-mode", "prepend")
    return uplift(*words, "--sandbox", "off", *flags, cwd=folder, env=environment)


def test_a_cheaper_candidate_passes_the_cost_gate_and_the_sentence_says_how_cheap(tmp_path: Path):
    ended = with_agent(tmp_path, 0.05, "--gate-cost", "+10%")
    assert ended.code == 0, ended.err
    made = the_artifact(tmp_path)
    cost = made["efficiency"]["all"]["cost"]
    assert cost["ratio"] == cost["ratio_of_totals"] == 0.1
    # Student's t with 5 degrees of freedom is 2.5706, and exp(2.5706 · ln 10 / sqrt(5 · 6)) is 2.947.
    assert (cost["low"], cost["high"]) == pytest.approx((0.1 / 2.947, 0.1 * 2.947), rel=1e-3)
    assert (cost["word"], cost["n_tasks"], made["gate_cost"]) == ("cheaper", 5, "+10%")
    assert made["efficiency"]["all"]["model_calls"]["ratio"] == 1
    assert "0.10 times the cost (95 % interval 0.034 to 0.29)." in made["summary"]
    assert "the cost gate (+10%) is open" in " ".join(ended.err.split())


def test_a_dearer_candidate_fails_the_cost_gate_wherever_the_result_is_read(tmp_path: Path):
    ended = with_agent(tmp_path, 5.0, "--gate-cost", "+10%", "--quiet")
    made = the_artifact(tmp_path)
    assert (ended.code, ended.line["verdict"], made["verdict"]) == (1, "pass", "pass"), ended.err
    assert "the interval of the cost ratio lies above 1.10 (exit code 1)" in ended.err
    state = ("--state-root", tmp_path / "state", "--quiet")
    run_id = made["run_id"]
    for words in (("watch", run_id), ("resume", run_id)):
        assert uplift(*words, *state, cwd=tmp_path).code == 1
    records = tmp_path / "state" / "runs" / run_id / "records.jsonl.gz"
    elsewhere = ("aggregate", records, "--state-root")
    assert uplift(*elsewhere, tmp_path / "a", "--gate-cost", "+10%", cwd=tmp_path).code == 1
    assert uplift(*elsewhere, tmp_path / "b", "--gate-cost", "+2000%", cwd=tmp_path).code == 0
    assert uplift(*elsewhere, tmp_path / "c", cwd=tmp_path, env={"UPLIFT_GATE_COST": "+10%"}).code == 1
    # Judged again, the completions cost what they cost, and the gate is the run's unless another is given.
    assert uplift("rejudge", run_id, *state, cwd=tmp_path).code == 1
    assert uplift("rejudge", run_id, *state, "--gate-cost", "+2000%", cwd=tmp_path).code == 0


def test_without_a_ratio_the_cost_gate_says_so_with_code_3_and_the_worse_code_counts(tmp_path: Path):
    suite = a_suite(tmp_path, 3)
    free = uplift(*standalone(suite, "--mock", "--gate-cost", "+10%"), cwd=tmp_path)
    assert free.code == 3
    assert "no task has a known cost above 0 in both arms (exit code 3)" in " ".join(free.err.split())
    worse = "sim:baseline=1,candidate=0,cost=0"
    assert uplift(*standalone(suite, "--model", worse, "--gate-cost", "+10%"), cwd=tmp_path).code == 3
    same_cost = "sim:baseline=1,candidate=0,cost=0.01"
    assert uplift(*standalone(suite, "--model", same_cost, "--gate-cost", "+10%"), cwd=tmp_path).code == 1


def test_the_librarys_ok_follows_the_cost_gate(short_tmp: Path):
    suite = a_suite(short_tmp, 3)
    assert (short_tmp / "skill" / "SKILL.md").read_text() == SKILL
    for cost, ok in (("0.01", True), ("0", False)):
        options = {"model": f"sim:baseline=1,candidate=1,cost={cost}", "state_root": short_tmp / f"s{cost}"}
        made = evaluate(suite, short_tmp / "skill", gate_cost="+10%", **options)
        assert (made.verdict, made.ok) == ("pass", ok)


@pytest.mark.parametrize("share", ["10", "-5%", "abc"])
@pytest.mark.parametrize("command", ["evaluate", "aggregate"])
def test_nonsense_is_refused_in_one_sentence_with_an_example(tmp_path: Path, command: str, share: str):
    suite = a_suite(tmp_path, 1)
    (tmp_path / "records.jsonl").write_text(
        '{"task": "a", "arm": "candidate", "attempt": 1, "outcome": "passed"}\n'
    )
    words = {
        "evaluate": standalone(suite, "--mock"),
        "aggregate": ["aggregate", tmp_path / "records.jsonl", "--state-root", tmp_path / "other"],
    }
    ended = uplift(*words[command], f"--gate-cost={share}", cwd=tmp_path)
    assert ended.code == 2
    assert f"--gate-cost: '{share}' says not how much more it may cost; write it as in +10%" in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_a_cost_gate_that_could_never_be_told_is_refused_at_once(tmp_path: Path):
    words = standalone(a_suite(tmp_path, 1), "--mock", "--gate-cost", "+10%", "--no-baseline")
    ended = uplift(*words, cwd=tmp_path)
    assert ended.code == 2
    assert "--gate-cost and --no-baseline exclude each other" in ended.err
