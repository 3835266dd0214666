"""Whole runs whose models fail and bill all the same: what we count is what somebody else wrote down as the bill."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Ended, a_suite, standalone, the_artifact, uplift
from standing_in import Provider, provider_process

pytestmark = pytest.mark.slow

CLAUDE = shutil.which(os.environ.get("UPLIFT_CLAUDE") or "claude")
KEY = "sk-canary-0123456789"
# Published per million tokens of the model that is asked: 3 for input and 15 for output.
CALL = {"input_tokens": 1000, "output_tokens": 100}
CALL_USD = (1000 * 3 + 100 * 15) / 1e6

# Each start is billed 0.25 USD, in a book of the program's own; how it ends depends on the prompt.
AGENT = """
import json, os, sys, time
prompt, book = sys.stdin.read(), sys.argv[1]
with open(book, "a") as ledger:
    ledger.write(prompt.split()[-1] + chr(10))
starts = open(book).read().split().count(prompt.split()[-1])
if "word0" in prompt:
    sys.exit(1)  # without a word
print(json.dumps({"text": "word1 word2", "cost": 0.25}))
if "word1" in prompt or ("word2" in prompt and starts <= 2):
    sys.exit(1)
"""


@pytest.fixture
def provider() -> Iterator[Provider]:
    with provider_process() as made:
        yield made


def with_agent(folder: Path, *flags: str) -> tuple[Ended, list[str]]:
    """Evaluate the agent on three tasks; how it ended, and the agent's own book."""
    book = folder / "book"
    declared = {
        "argv": [sys.executable, "-c", AGENT, str(book)],
        "output": "json",
        "text_path": "text",
        "cost_path": "cost",
    }
    environment = {
        "UPLIFT_COMMANDS": json.dumps({"payer": declared}),
        "UPLIFT_PRICES": json.dumps({"payer": {"input": 0.0, "output": 10.0}}),
    }
    words = standalone(a_suite(folder, 3), "--model", "command:payer", "--skill-mode", "prepend")
    ended = uplift(*words, "--sandbox", "off", "--in-flight", "1", *flags, cwd=folder, env=environment)
    return ended, book.read_text().split()


def test_failed_runs_of_an_agent_cost_what_the_agent_billed(tmp_path: Path) -> None:
    ended, book = with_agent(tmp_path)
    cost = the_artifact(tmp_path)["cost"]
    # Two arms: "word0." fails three times without a word, "word1." fails three times and says what it cost,
    # "word2." answers the first or third time, as its starts are counted over both arms.
    told = sum(word != "word0." for word in book)
    assert book.count("word0.") == book.count("word1.") == 6, ended.err
    assert cost["spent_usd"] == pytest.approx(0.25 * told)
    # One record of each attempt stays, and every other start that told its cost was for nothing.
    assert cost["wasted_usd"] == pytest.approx(0.25 * (told - 4))
    # Nobody knows what the silent ones cost: they count as much as was reserved, which is more than nothing.
    assert cost["assumed_usd"] >= 6 * 8192 * 10 / 1e6 * 0.99
    assert "assumed for calls of unknown cost" in " ".join((ended.out + ended.err).split())


def test_a_budget_is_reached_by_what_failed_runs_cost(tmp_path: Path) -> None:
    _, book = with_agent(tmp_path, "--budget-usd", "0.6")
    made = the_artifact(tmp_path)
    cost = made["cost"]
    assert made["status"] == "over_budget"
    # Without a budget there are 15 starts at least. Those that were in flight may go past it.
    assert len(book) <= 6
    assert cost["spent_usd"] == pytest.approx(0.25 * sum(word != "word0." for word in book))
    assert cost["assumed_usd"] >= book.count("word0.") * 8192 * 10 / 1e6


@pytest.mark.skipif(CLAUDE is None, reason="no claude on PATH and no UPLIFT_CLAUDE")
@pytest.mark.parametrize("stop", ["refusal", "max_tokens"])
def test_what_claude_code_refused_or_cut_is_an_answer_that_is_paid_for_once(
    tmp_path: Path, provider: Provider, stop: str
) -> None:
    provider.script({"stop": stop, "text": "", **CALL})
    environment = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": KEY}
    words = standalone(a_suite(tmp_path, 1), "--model", "claude-code:claude-sonnet-4-5", "--unloaded", "warn")
    ended = uplift(*words, cwd=tmp_path, env=environment)
    bill = len(provider.asked()) * CALL_USD
    artifact = the_artifact(tmp_path)
    cost: dict[str, Any] = artifact["cost"]
    assert bill > 0
    assert cost["spent_usd"] == pytest.approx(bill), ended.err
    assert (cost["wasted_usd"], cost["assumed_usd"]) == (0, 0)
    assert artifact["verdict"] != "error", "judged, not tried again"


def test_a_judge_whose_grades_cannot_be_read_is_paid(tmp_path: Path, provider: Provider) -> None:
    provider.script({"text": "I would rather not grade.", **CALL})
    suite = a_suite(tmp_path, 1)
    judge = "judge: {type: llm-rubric, rubric: is it good}"
    suite.write_text(suite.read_text().replace("judge: {type: contains, expected: [word0]}", judge))
    environment = {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": KEY}
    ended = uplift(
        *standalone(suite, "--model", "anthropic:claude-sonnet-4-5"), cwd=tmp_path, env=environment
    )
    calls = len(provider.asked())
    assert calls == 2 * (1 + 3 * 2), "two attempts: one answer each, and three tries of two grades"
    cost = the_artifact(tmp_path)["cost"]
    assert cost["spent_usd"] == pytest.approx(calls * CALL_USD), ended.err
    # The answers were for something: of each attempt, the grades of two tries were not.
    assert cost["wasted_usd"] == pytest.approx(2 * 2 * 2 * CALL_USD)


# Both write in a book of their own, a line a start. The judge grades nothing before its third start.
WRITER = """
import json, sys
with open(sys.argv[1], "a") as ledger:
    ledger.write("start" + chr(10))
print(json.dumps({"text": "a poem", "cost": 0.01}))
"""
GRADER = """
import json, sys
with open(sys.argv[1], "a") as ledger:
    ledger.write("start" + chr(10))
starts = open(sys.argv[1]).read().count("start")
said = json.dumps({"score": 1.0}) if starts > int(sys.argv[2]) else "I would rather not grade."
print(json.dumps({"text": said, "cost": 0.01}))
"""


def graded_by_a_program(folder: Path, tasks: int, *flags: str, unreadable: int = 0) -> dict[str, Any]:
    """The artifact of poems by one program that another one grades; its first replies cannot be read."""
    output = {"output": "json", "text_path": "text", "cost_path": "cost"}
    python = [sys.executable, "-c"]
    commands = {
        "writer": {"argv": [*python, WRITER, str(folder / "writer")], **output},
        "grader": {"argv": [*python, GRADER, str(folder / "grader"), str(unreadable)], **output},
    }
    suite = a_suite(folder, tasks)
    judge = "judge: {type: llm-rubric, rubric: is it good}"
    suite.write_text(re.sub("judge: {type: contains.*}", judge, suite.read_text()))
    words = standalone(suite, "--model", "command:writer", "--judge-model", "command:grader")
    environment = {
        "UPLIFT_COMMANDS": json.dumps(commands),
        "UPLIFT_PRICES": json.dumps({name: {"input": 0.0, "output": 10.0} for name in commands}),
    }
    flags = ("--sandbox", "off", "--skill-mode", "prepend", "--in-flight", "1", *flags)
    ended = uplift(*words, *flags, cwd=folder, env=environment)
    assert ended.code in (0, 3), ended.err
    return the_artifact(folder)


def test_an_answer_without_a_grade_is_kept_and_graded_again(tmp_path: Path) -> None:
    made = graded_by_a_program(tmp_path, 1, unreadable=3)
    assert (made["execution_pass_rate"], made["baseline_pass_rate"]) == (1.0, 1.0), made["reason"]
    answers, grades = ((tmp_path / name).read_text().count("start") for name in ("writer", "grader"))
    # Two attempts. One try at least is without a grade, of two replies; those of one attempt may meet the other's.
    assert answers == 2
    assert grades >= 5
    cost = made["cost"]
    assert cost["spent_usd"] == pytest.approx(0.01 * (answers + grades))
    # Only grades were for nothing; of each attempt, the one or two of its last try are in its record.
    assert 0.01 * (grades - 4) <= cost["wasted_usd"] + 1e-9 <= 0.01 * (grades - 2) + 2e-9


def test_a_budget_below_the_longest_answers_price_is_enough_for_short_ones(tmp_path: Path) -> None:
    # The longest answer and the longest grade would cost 0.08 each; six attempts really cost 0.02 each.
    made = graded_by_a_program(tmp_path, 3, "--budget-usd", "0.15")
    assert (made["status"], made["verdict"]) == ("finished", "pass"), made["reason"]
    assert made["cost"]["spent_usd"] == pytest.approx(0.12)


def test_a_small_budget_is_exceeded_by_one_attempt_at_most(tmp_path: Path) -> None:
    made = graded_by_a_program(tmp_path, 3, "--budget-usd", "0.05", "--in-flight", "4")
    assert made["status"] == "over_budget"
    assert 0.02 <= made["cost"]["spent_usd"] <= 0.05
