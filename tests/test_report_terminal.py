"""The result in the terminal says what was found in words that need no manual, and shows nothing hostile."""

from __future__ import annotations

import io
from typing import Any

import pytest
from builders import a_record, an_artifact, both_arms, built
from rich.console import Console

from aggregate.artifact import build, comparison, sentences
from aggregate.artifact.answer import answer_of
from aggregate.artifact.model import Artifact, Needed, RunCost
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import CandidateInfo, RunInfo, TaskInfo
from aggregate.report import terminal
from aggregate.report.terminal import answer_block
from aggregate.text import formats
from producer.display.attempts import attempt_texts


def printed(records: list[AttemptRecord], width: int = 80, **info: Any) -> str:
    """What `--details` prints: the tables, and then the answer."""
    made = build.build(RunInfo.from_records(records).model_copy(update=info), records)
    return shown(terminal.result_table(made), width) + answered(made, width)


def answered(made: list[Artifact], width: int = 80) -> str:
    return shown(answer_block(made, width, "page: report.html"), width)


def shown(renderable: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO from above


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def seven_tasks() -> list[AttemptRecord]:
    return both_arms({f"t{n}": "p" for n in range(7)}, {f"t{n}": "p" if n < 4 else "f" for n in range(7)})


def test_rates_difference_and_both_intervals_are_shown():
    text = printed(seven_tasks())
    assert "Tasks passed" in text
    assert "100.0 %" in text
    assert "57.1 %" in text
    assert "+42.9 points" in text
    assert "95 % interval, tasks like these" in text
    assert "95 % interval, exactly this suite" in text
    assert "gate: pass" in text


def test_a_small_suite_says_what_it_cannot_see_and_what_would():
    tasks = [f"t{number}" for number in range(7)]
    two_gained = {task: "f" if number < 2 else "p" for number, task in enumerate(tasks)}
    text = in_one_line(printed(both_arms(dict.fromkeys(tasks, "p"), two_gained)))
    assert "CANNOT TELL whether it is better or worse" in text
    assert "7 tasks are likely to miss a difference below" in text
    assert "attempts would show 10 points" in text


@pytest.mark.parametrize(
    ("attempts", "tasks", "expected"),
    [
        (5, 40, "5 attempts of each would show 10 points"),
        (99, 40, "40 tasks × 5 attempts would show 10 points"),
        (None, 40, "40 tasks × 5 attempts would show 10 points"),
        (None, None, "no affordable number of such tasks would show 10 points"),
    ],
)
def test_the_advice_prefers_more_attempts_on_the_same_tasks_while_they_are_few(attempts, tasks, expected):
    needed = Needed(effect=0.1, n_pairs=7, attempts=attempts, tasks=tasks, tasks_at_attempts=5)
    said = sentences.power(an_artifact(needed=needed, min_detectable_effect=0.46))
    assert said == f"7 tasks are likely to miss a difference below 46 points; {expected}."


def test_a_suite_that_is_large_enough_says_so():
    needed = Needed(effect=0.1, n_pairs=400, attempts=2, tasks=90, tasks_at_attempts=5)
    said = sentences.power(an_artifact(needed=needed, min_detectable_effect=0.07, models=["m", "n"]))
    assert said == "400 tasks are likely to show a difference of 7 points or more."


def test_nothing_is_wider_than_the_terminal():
    records = both_arms(
        {"long-name-" * 12: "pf", "b": "ff"}, {"long-name-" * 12: "fe", "b": "pp"}, error="boom " * 100
    )
    for width in (80, 120):
        assert max(len(line) for line in printed(records, width).splitlines()) <= width


@pytest.mark.parametrize(
    ("gate", "tasks", "words"),
    [
        ("decision", 3, "gate fail: it follows the decision for tasks like these, inconclusive"),
        ("decision", 20, "gate pass: it follows the decision for tasks like these, improved"),
        ("verdict", 3, "gate pass: tasks passed in any of 2 attempts rose by 2 of 3: gained t1, t2"),
    ],
)
def test_a_gate_that_follows_the_decision_says_so_beside_the_verdict(gate, tasks, words):
    """The baseline passes every third task: of three tasks that shows nothing yet, of twenty it does."""
    candidate = {f"t{number}": "pp" for number in range(tasks)}
    baseline = {name: "ff" if number % 3 else "pp" for number, name in enumerate(candidate)}
    said = in_one_line(printed(both_arms(candidate, baseline), gate=gate))
    assert words in said


def test_more_attempts_in_one_arm_are_warned_of():
    """Both pass two attempts of five; whoever has five of them passes every task."""
    tasks = [f"t{number}" for number in range(5)]
    once = {name: "p" if number < 2 else "f" for number, name in enumerate(tasks)}
    said = in_one_line(printed(both_arms(dict.fromkeys(tasks, "ppfff"), once)))
    assert "Warning: 25 judged attempts of candidate against 5 of the baseline on the same tasks" in said


@pytest.mark.parametrize(
    ("how", "value", "expected"),
    [
        (formats.p_value, 1.08e-5, "<0.01"),
        (formats.p_value, 0.0499, "0.05"),
        (formats.seconds, 1_230_000, "1,230 s"),
        (formats.seconds, 1234, "1.23 s"),
    ],
)
def test_numbers_are_never_rounded_to_something_else(how, value, expected):
    assert how(value) == expected


def test_nearly_all_is_not_all():
    assert (formats.rate(3999 / 4000), formats.rate(1.0)) == ("99.97 %", "100.0 %")


def test_numbers_and_their_nouns_agree():
    assert "· 1 task × 1 attempt ·" in in_one_line(printed(both_arms({"t": "p"}, {"t": "f"})))


def test_money_is_told_of_this_run_and_promises_nothing():
    """Passing more for no more is what happened here; only the decision says whether it would again."""
    made = an_artifact(cost=RunCost(spent_usd=0.5, wasted_usd=0.0, dominates=True))
    assert sentences.bill(made) == "$0.50"
    assert sentences.bought(made) == "Here the candidate passed more and cost no more."


def test_what_is_only_assumed_to_be_spent_is_told_apart():
    money = {"spent_usd": 0.5, "assumed_usd": 0.25, "wasted_usd": 0.125, "wasted_attempts": 1}
    text = in_one_line(printed(both_arms({"t": "p"}, {"t": "f"}), **money))
    assert "$0.50, of it $0.12 on 1 repeated attempt, and $0.25 assumed for calls of unknown cost" in text


@pytest.mark.parametrize(
    ("costs", "spent", "said"),
    [
        ([None, None], 0.0, "cost not known"),
        ([0.0, 0.0], 0.0, "$0"),
        ([0.5, None], 0.5, "at least $0.50"),
        ([0.5, 0.25], 0.75, "$0.75"),
    ],
)
def test_a_cost_that_nobody_knows_is_not_said_to_be_nothing(costs, spent, said):
    """A run adds up what it knows: 0 is also the sum of nothing known."""
    records = [
        a_record("t", arm, completion={"cost_usd": usd})
        for arm, usd in zip(("candidate", "baseline"), costs, strict=True)
    ]
    made = built(records, spent_usd=spent)
    assert sentences.bill(made) == said
    assert made.cost is not None
    assert made.cost.spent_usd == (None if costs == [None, None] else spent)
    assert said in in_one_line(printed(records, spent_usd=spent))


def test_an_error_that_nobody_billed_makes_no_cost_unknown():
    records = [*both_arms({"t": "p"}, {"t": "p"}, completion={"cost_usd": 0.0}), *both_arms({"u": "e"}, {})]
    assert sentences.bill(built(records, spent_usd=0.0)) == "$0"
    assert sentences.bill(built(both_arms({"u": "e"}, {}), spent_usd=0.0)) == "$0"


def test_a_simulated_or_mocked_model_is_never_taken_for_a_real_one():
    for model in ("sim", "sim:candidate=0.9", "mock"):
        text = in_one_line(printed(both_arms({"a": "p"}, {"a": "p"}, model=model)))
        assert "(simulated)" in text
    assert "simulated" not in printed(both_arms({"a": "p"}, {"a": "p"}, model="simple-model"))


def test_p_values_are_shown_only_where_one_of_them_says_something():
    few = built(both_arms({"a": "p", "b": "f"}, {"a": "f", "b": "p"}))
    many = built(both_arms({"a": "p" * 9, "b": "p"}, {"a": "f" * 9, "b": "f"}))
    told = ["p (corrected)" in shown(terminal.result_table([artifact])) for artifact in (few, many)]
    assert told == [False, True]


def test_flaky_tasks_are_listed_in_the_order_of_what_they_cost_the_interval():
    """Each ranges from 0 to 100, but half of two attempts is less sure than half of four, and that than one of nine."""
    pictures = {"a": "pffffffff", "b": "ppff", "c": "pf"}
    artifact = built(both_arms(pictures, pictures))
    assert artifact.consistency["candidate"].flaky_tasks == ["c", "b", "a"]
    assert list(artifact.consistency["candidate"].ranges) == ["c", "b", "a"]


def test_an_answer_keeps_its_indentation_and_still_moves_no_cursor():
    code = "def f():\n    if x:\n\treturn\x1b[2J 1\n"
    text = attempt_texts([a_record(completion={"text": code})])
    assert text.splitlines()[1:] == ["  | def f():", "  |     if x:", "  |     return 1"]


def test_flaky_tasks_and_tasks_that_changed_are_named():
    text = in_one_line(printed(both_arms({"wobbly": "pf", "same": "pp"}, {"wobbly": "ff", "same": "pp"})))
    assert "Flaky in candidate (points between the best and the worst attempt): wobbly 100" in text
    assert "tasks that changed" in text
    assert text.count("wobbly") == 3  # as changed, as flaky, as gained, not again as a warning


def test_errors_dropped_pairs_and_cost_are_said():
    records = both_arms(
        {"a": "p", "b": "e"}, {"a": "p", "b": "p"}, error="429 overloaded", completion={"cost_usd": 0.5}
    )
    text = in_one_line(printed(records))
    assert "1 of 2" in text
    assert "Error in candidate, 1×: 429 overloaded" in text
    assert "Dropped pairs (not judged in both arms): 1: b" in text
    assert "$2.00" in text
    assert "NO RESULT: 1 of 4 attempts ended in error" in text


def test_a_missing_number_is_a_dash_and_never_a_zero():
    text = printed(both_arms({"a": "p"}, {}))
    assert "–" in text
    assert "nan" not in text.lower()
    assert "none" not in text.lower()


def test_a_skipped_candidate_says_why():
    info = RunInfo(run_id="r", skill_id="s", candidates=(CandidateInfo(score=2.0),))
    text = answered(build.build(info, []))
    assert "SKIPPED: nothing was run" in text
    assert "score 2 is below the threshold of 6" in text
    assert "add --eval-threshold 2" in text


def test_several_candidates_are_compared_in_one_table_first():
    records = both_arms({}, {"a": "p", "b": "f"})
    records += [a_record(task, f"candidate:{name}") for task in "ab" for name in ("x", "y")]
    text = printed(records)
    assert "2 candidates, best first" in text
    assert max(map(len, text.splitlines())) <= 80


def test_hostile_names_and_messages_are_plain_text_and_no_markup():
    nasty = "[bold red]x[/] \x1b[31mred\x1b]0;title\x07 \u202egnp.exe :smile:"
    records = both_arms(
        {nasty: "pf", "b": "e"}, {nasty: "ff", "b": "p"}, model=nasty, tier=nasty, error=nasty
    )
    records += both_arms({"c": "p"}, {"c": "p"}, tier="T2")
    text = printed(records, 200, skill_id=nasty, tasks=(TaskInfo(id=nasty),))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert "[bold red]x[/] red gnp.exe :smile:" in text


def test_what_a_suite_has_just_shown_is_not_called_impossible():
    """Four of ten tasks gained: clear, though ten tasks would show 40 points less than four times in five."""
    tasks = [f"t{number}" for number in range(10)]
    halves = {task: "p" if number < 6 else "f" for number, task in enumerate(tasks)}
    text = " ".join(printed(both_arms(dict.fromkeys(tasks, "p"), halves)).split())
    assert "BETTER on tasks like these" in text
    assert "10 tasks are likely to miss a difference below" in text


def test_a_task_with_two_models_is_one_task():
    records = [r for model in ("m1", "m2") for r in both_arms({"a": "p"}, {"a": "f"}, model=model)]
    assert "1 task × 2 models × 1 attempt" in " ".join(printed(records).split())


def test_two_runs_are_shown_side_by_side():
    result = comparison.compare(both_arms({"a": "fffp"}, {}), both_arms({"a": "pp"}, {}))
    lines = [line.split() for line in shown(terminal.compare_table(result)).splitlines()]
    assert ["Tasks", "passed", "100.0", "%", "100.0", "%", "+0", "points"] in lines
    assert ["Attempts", "passed", "25.0", "%", "100.0", "%", "+75", "points"] in lines
    assert ["Mean", "score", "0.25", "1.00", "+0.75"] in lines


def test_groups_are_shown_when_there_are_several():
    easy = both_arms({"a": "p"}, {"a": "p"}, tier="T1")
    hard = both_arms({"b": "p"}, {"b": "f"}, tier="T2")
    text = printed(easy + hard)
    assert "tier" in text
    assert "T2" in text
    assert "tier" not in printed(easy)


def test_a_weak_baseline_names_the_flag_that_lets_it_count():
    records = both_arms({"a": "p"}, {"a": "f"})
    said = in_one_line(printed(records))
    assert "rate 0.0 % < 20.0 % (tasks passed); if it is meant to be weak: --weak-baseline warn" in said
    made = an_artifact(verdict="pass", reason="tasks passed rose")
    assert sentences.reason(made) == "tasks passed rose"


def test_a_message_that_speaks_of_the_baseline_is_no_weak_baseline():
    made = built(both_arms({"a": "e"}, {"a": "p"}, error="no baseline pass rate today"))
    assert "no baseline pass rate today" in sentences.reason(made)
    assert made.reason_codes == ["errors", "unjudged_arm"]
    assert "--weak-baseline" not in sentences.reason(made)


def test_an_artifact_of_an_earlier_version_has_the_sentence_only_and_gets_the_same_answer():
    made = built(both_arms({"a": "p"}, {"a": "f"}))
    assert made.reason_codes == ["weak_baseline"]
    earlier = made.model_copy(update={"reason_codes": None, "answer": None})
    assert sentences.reason(earlier) == sentences.reason(made)
    assert answer_of(earlier) == made.answer
    ended = {"status": "weak_baseline", "reason": "baseline pass rate can reach 0.1 at most, < 0.2"}
    assert answer_of(earlier.model_copy(update=ended)).next == answer_of(made).next


def test_the_checks_of_an_attempt_stand_one_to_a_line() -> None:
    checks = [
        {
            "judge": "contains",
            "check": "platform",
            "passed": False,
            "score": 0,
            "details": "missing: 'iPadOS'",
        },
        {"judge": "llm-rubric", "check": "tone\x1b[31m", "passed": None, "required": False},
        {"judge": "length", "check": "short", "passed": True, "score": 1, "details": "12 words"},
    ]
    lines = attempt_texts([a_record(judgments=checks)]).splitlines()
    assert "  platform: failed, score 0.00: missing: 'iPadOS'" in lines
    assert "  short: passed, score 1.00: 12 words" in lines
    assert "  tone (not required): missing: llm-rubric" in lines
    assert "platform" not in attempt_texts(
        [a_record(judgments=[{**checks[0], "check": None, "details": "platform"}])]
    )
