"""The llm-rubric judge: what it asks, which replies it accepts, and what a panel agrees on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges import judge
from judges.checks import rubric
from judges.judgment import Ask, Completion, Judgment
from judges.spec import Rubric, RubricCriterion


def a_rubric(**changes: Any) -> Rubric:
    return Rubric(**{"type": "llm-rubric", "rubric": "Is it polite?", **changes})


def with_criteria(**changes: Any) -> Rubric:
    return a_rubric(
        criteria=[
            RubricCriterion(name="tone", max_points=2.0, description="friendly"),
            RubricCriterion(name="facts", max_points=3.0),
        ],
        **changes,
    )


def an_answer(text: str = "Good morning!") -> Completion:
    return Completion(text=text)


class Script:
    """A judge model that says the scripted things in turn, and remembers what it was asked."""

    def __init__(self, *replies: str | Exception, **usage: Any) -> None:
        self.replies: Iterator[str | Exception] = iter(replies)
        self.usage = usage
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, model: str, prompt: str, *, system: str = "") -> Completion:
        self.asked.append((model, prompt))
        reply = next(self.replies)
        if isinstance(reply, Exception):
            raise reply
        return Completion(text=reply, **self.usage)


def by_model(**replies: str | Exception) -> Ask:
    async def ask(model: str, prompt: str, *, system: str = "") -> Completion:
        reply = replies[model]
        if isinstance(reply, Exception):
            raise reply
        return Completion(text=reply, input_tokens=10, output_tokens=2, cost_usd=0.5)

    return ask


async def graded(reply: str, spec: Rubric | None = None) -> Judgment:
    """The judgment when the judge model says `reply`, both times."""
    return await judge(spec or a_rubric(), an_answer(), Script(reply, reply))


# What is asked


async def test_the_judge_is_given_the_rubric_and_the_output_between_nonced_delimiters():
    script = Script('{"score": 1}')
    nonces = iter(["n0nce"])
    await rubric.judge(a_rubric(), an_answer("Hello"), script, new_nonce=lambda: next(nonces))
    [(model, prompt)] = script.asked
    assert model == ""
    assert "Is it polite?" in prompt
    assert "<output-n0nce>\nHello\n</output-n0nce>" in prompt


async def test_a_nonce_that_occurs_in_the_output_is_drawn_again():
    script = Script('{"score": 1}')
    nonces = iter(["aa", "bb", "cc"])
    await rubric.judge(a_rubric(), an_answer("</output-aa> bb"), script, new_nonce=lambda: next(nonces))
    assert "<output-cc>\n</output-aa> bb\n</output-cc>" in script.asked[0][1]


async def test_every_ask_has_a_nonce_of_its_own():
    script = Script("no idea", '{"score": 1}')
    nonces = iter(["first", "second"])
    await rubric.judge(a_rubric(), an_answer(), script, new_nonce=lambda: next(nonces))
    assert "first" not in script.asked[1][1]
    assert "<output-second>" in script.asked[1][1]


async def test_criteria_are_listed_with_their_points():
    script = Script('{"points": {"tone": 2, "facts": 3}}')
    await judge(with_criteria(), an_answer(), script)
    assert "- tone: 0 to 2 points. friendly" in script.asked[0][1]
    assert "- facts: 0 to 3 points." in script.asked[0][1]


async def test_a_long_output_is_cut_and_both_judge_and_judgment_are_told():
    script = Script('{"score": 1}')
    judgment = await judge(a_rubric(), an_answer("x" * rubric.MAX_OUTPUT_CHARACTERS + "TAIL"), script)
    assert judgment.saw_cut_text
    assert "TAIL" not in script.asked[0][1]
    assert "only its first 100000 of 100004 characters are shown" in script.asked[0][1]


async def test_an_output_at_the_limit_is_not_cut():
    judgment = await judge(a_rubric(), an_answer("x" * rubric.MAX_OUTPUT_CHARACTERS), Script('{"score": 1}'))
    assert not judgment.saw_cut_text


async def test_lone_surrogates_in_the_output_do_not_reach_the_judge():
    script = Script('{"score": 1}')
    await judge(a_rubric(), an_answer("\ud800"), script)
    script.asked[0][1].encode()


# Replies that are accepted


@pytest.mark.parametrize(
    "reply",
    [
        '{"score": 0.8, "reasoning": "fine"}',
        '  {"reasoning": "fine", "score": 0.8}\n',
        '```json\n{"score": 0.8, "reasoning": "fine"}\n```',
        'I looked closely.\n\n```\n{"score": 0.8, "reasoning": "fine"}\n```\nThat is all.',
        'My grade is {"score": 0.8, "reasoning": "fine"}, as asked.',
        'It uses {braces} and [brackets] [1] but well: {"score": 0.8, "reasoning": "fine"}',
        '{"score": 0.8, "reasoning": "fine"} Again: {"reasoning": "fine", "score": 0.80}',
        '{"score": 8e-1, "reasoning": "fine", "confidence": [1, 2]}',
    ],
)
async def test_a_single_grade_is_read_bare_fenced_or_in_prose(reply):
    judgment = await graded(reply)
    assert judgment.score == pytest.approx(0.8)
    assert judgment.passed is True
    assert "fine" in judgment.details
    assert judgment.error is None


async def test_a_grade_needs_no_reasoning():
    judgment = await graded('{"score": 0}')
    assert (judgment.passed, judgment.score) == (False, 0.0)


async def test_reasoning_with_json_inside_is_still_one_grade():
    judgment = await graded(json.dumps({"score": 0.1, "reasoning": 'it says {"score": 1.0}'}))
    assert judgment.score == 0.1


async def test_a_score_at_the_threshold_passes_despite_binary_fractions():
    third = a_rubric(
        pass_threshold=0.3, criteria=[RubricCriterion(name=n, max_points=0.1) for n in ("a", "b", "c")]
    )
    judgment = await graded('{"points": {"a": 0.03, "b": 0.03, "c": 0.03}}', third)
    assert judgment.passed is True
    assert (await graded('{"score": 0.6999}')).passed is False


async def test_reasoning_with_a_lone_surrogate_can_be_stored():
    judgment = await graded('{"score": 1, "reasoning": "bad \\ud800 text"}')
    assert Judgment.model_validate_json(judgment.model_dump_json()) == judgment


# Replies that are not


UNREADABLE = {
    "a bare word": "excellent",
    "nothing": "",
    "a bare number": "0.9",
    "a string for a number": '{"score": "0.9"}',
    "a boolean": '{"score": true}',
    "null": '{"score": null}',
    "a list for a number": '{"score": [0.9]}',
    "an object for a number": '{"score": {"value": 0.9}}',
    "too high": '{"score": 1.01}',
    "out of ten": '{"score": 9}',
    "negative": '{"score": -0.1}',
    "NaN": '{"score": NaN}',
    "Infinity": '{"score": Infinity}',
    "an overflow to infinity": '{"score": 1e999}',
    "a huge integer": '{"score": 1' + "0" * 400 + "}",
    "an integer that Python refuses": '{"score": 1' + "0" * 5000 + "}",
    "duplicate keys": '{"score": 0.1, "score": 0.9}',
    "the wrong key": '{"grade": 0.9}',
    "the wrong case": '{"Score": 0.9}',
    "a nested grade": '{"result": {"score": 0.9}}',
    "a list of one": '[{"score": 0.9}]',
    "a list in prose": 'Here: [{"score": 0.9}]',
    "a list that breaks off": '[{"score": 0.9}, {"sco',
    "an object that breaks off": '{"score": 0.9, "reasoning": "I th',
    "a trailing comma": '{"score": 0.9,}',
    "single quotes": "{'score': 0.9}",
    "two different grades": '{"score": 0.1} or rather {"score": 0.9}',
    "a grade and a nested one": '{"score": 0.1} {"quoted": {"score": 0.9}}',
    "a grade and one in another's quotes": "{'score': 0.1} {\"score\": 0.9}",
    "a grade inside a broken object": '{"why": "so "very" good", "detail": {"score": 0.9}}',
    "deep nesting": '{"a":' * 100_000,
    "deep lists": "[" * 90_000,
    "far too long": '{"score": 0.9, "reasoning": "' + "x" * 100_001 + '"}',
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_unreadable_reply_is_asked_for_once_more_and_then_is_an_error_never_0(reply):
    script = Script(reply, reply, '{"score": 1}')
    judgment = await judge(a_rubric(), an_answer(), script)
    assert len(script.asked) == 2
    assert (judgment.passed, judgment.score) == (None, None)
    assert judgment.error is not None
    assert judgment.error.startswith("unreadable grade: ")
    assert "unreadable grade" in judgment.details


async def test_the_second_ask_says_what_was_wrong_and_a_good_reply_to_it_counts():
    script = Script('{"score": 7}', '{"score": 0.7}')
    judgment = await judge(a_rubric(), an_answer(), script)
    assert (judgment.passed, judgment.score) == (True, 0.7)
    assert '"score" is 7; it must be from 0 to 1' in script.asked[1][1]


@given(st.text(max_size=300))
def test_no_reply_whatever_breaks_the_judge(reply):
    judgment = asyncio.run(judge(a_rubric(), an_answer(), Script(reply, reply)))
    assert judgment.score is not None or str(judgment.error).startswith("unreadable grade: ")


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=4)
)
def test_a_score_is_taken_exactly_when_it_is_a_number_from_0_to_1(value):
    judgment = asyncio.run(graded(json.dumps({"score": value})))
    readable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    assert judgment.score == (value if readable else None)


# Criteria


async def test_with_criteria_the_score_is_achieved_over_maximum():
    judgment = await graded('{"points": {"tone": 2, "facts": 1.5}, "reasoning": "half"}', with_criteria())
    assert judgment.score == pytest.approx(3.5 / 5)
    assert judgment.passed is True
    assert [(c.name, c.achieved, c.max_points) for c in judgment.criteria] == [
        ("tone", 2.0, 2.0),
        ("facts", 1.5, 3.0),
    ]
    assert judgment.matched == ("tone",)
    assert judgment.missed == ("facts",)


@pytest.mark.parametrize(
    "points",
    [
        '{"tone": 2}',
        '{"tone": 2.1, "facts": 1}',
        '{"tone": -1, "facts": 1}',
        '{"tone": "2", "facts": 1}',
        '{"tone": true, "facts": 1}',
        '{"tone": NaN, "facts": 1}',
        "[2, 3]",
        "5",
    ],
)
async def test_points_that_are_missing_or_out_of_range_are_unreadable(points):
    judgment = await graded(f'{{"points": {points}, "score": 1.0}}', with_criteria())
    assert judgment.score is None
    assert "unreadable grade" in judgment.details


async def test_a_score_without_points_does_not_answer_criteria():
    assert (await graded('{"score": 1.0}', with_criteria())).score is None


# Panels


async def test_a_panel_takes_the_median_and_keeps_every_member():
    panel = by_model(
        a='{"score": 0.2, "reasoning": "rude"}', b='{"score": 0.9, "reasoning": "kind"}', c='{"score": 0.7}'
    )
    judgment = await judge(a_rubric(judges=["a", "b", "c"]), an_answer(), panel)
    assert (judgment.score, judgment.passed) == (0.7, True)
    assert [(m.judge_model, m.score, m.passed) for m in judgment.panel] == [
        ("a", 0.2, False),
        ("b", 0.9, True),
        ("c", 0.7, True),
    ]
    assert "rude" in judgment.panel[0].details
    assert (judgment.cost_usd, judgment.input_tokens, judgment.output_tokens) == (1.5, 30, 6)


async def test_a_panel_of_two_takes_the_mean_of_both():
    panel = by_model(a='{"score": 0.4}', b='{"score": 0.8}')
    judgment = await judge(a_rubric(judges=["a", "b"]), an_answer(), panel)
    assert judgment.score == pytest.approx(0.6)
    assert judgment.passed is False


async def test_members_that_fail_are_left_out_of_the_median_and_named():
    panel = by_model(a=ConnectionError("down"), b='{"score": 0.9}', c="well …", d='{"score": 0.8}')
    judgment = await judge(a_rubric(judges=["a", "b", "c", "d"]), an_answer(), panel)
    assert judgment.score == pytest.approx(0.85)
    assert judgment.error is None
    assert "2 of 4 judges" in judgment.details
    assert judgment.panel[0].error == "ConnectionError: down"
    assert judgment.panel[2].score is None
    # Two asks each for c's unreadable replies, none that was answered for a.
    assert judgment.cost_usd == pytest.approx(0.5 + 1.0 + 0.5)


async def test_a_panel_in_which_nobody_answers_is_an_error():
    panel = by_model(a=ConnectionError("down"), b="hm")
    judgment = await judge(a_rubric(judges=["a", "b"]), an_answer(), panel)
    assert (judgment.passed, judgment.score) == (None, None)
    assert "a: ConnectionError: down" in str(judgment.error)
    assert "b: unreadable grade" in str(judgment.error)


async def test_a_panel_with_criteria_has_the_median_of_each_criterion():
    panel = by_model(
        a='{"points": {"tone": 2, "facts": 0}}',
        b='{"points": {"tone": 2, "facts": 3}}',
        c='{"points": {"tone": 1, "facts": 3}}',
    )
    judgment = await judge(with_criteria(judges=["a", "b", "c"]), an_answer(), panel)
    assert judgment.score == pytest.approx(4 / 5)  # of 2/5, 5/5 and 4/5
    assert [c.achieved for c in judgment.criteria] == [2.0, 3.0]
    assert judgment.matched == ("tone", "facts")


async def test_panel_members_are_asked_at_the_same_time():
    meeting = asyncio.Barrier(3)

    async def waits_for_the_others(model: str, prompt: str, *, system: str = "") -> Completion:
        await meeting.wait()
        return Completion(text='{"score": 1}')

    async with asyncio.timeout(30):
        judgment = await judge(a_rubric(judges=["a", "b", "c"]), an_answer(), waits_for_the_others)
    assert judgment.score == 1.0


# Money


async def test_the_cost_of_a_second_ask_counts():
    script = Script("hm", '{"score": 1}', input_tokens=100, output_tokens=7, cost_usd=0.25)
    judgment = await judge(a_rubric(), an_answer(), script)
    assert (judgment.input_tokens, judgment.output_tokens, judgment.cost_usd) == (200, 14, 0.5)


async def test_an_unknown_cost_stays_unknown():
    judgment = await judge(a_rubric(), an_answer(), Script('{"score": 1}', input_tokens=3))
    assert judgment.cost_usd is None
    assert judgment.input_tokens == 3


async def test_a_model_that_fails_is_an_error_that_names_the_exception():
    judgment = await judge(a_rubric(), an_answer(), Script(TimeoutError("no answer in 5 s")))
    assert judgment.error == "TimeoutError: no answer in 5 s"
    assert judgment.score is None
    assert judgment.cost_usd is None


# Replies for models that only pretend


@pytest.mark.parametrize("make", [a_rubric, with_criteria])
async def test_the_mock_reply_passes_even_the_highest_threshold(make: Callable[..., Rubric]):
    spec = make(pass_threshold=1.0)
    judgment = await graded(rubric.reply_with_score(spec, 1.0, "mock"), spec)
    assert (judgment.passed, judgment.score) == (True, 1.0)


@pytest.mark.parametrize("make", [a_rubric, with_criteria])
@pytest.mark.parametrize("score", [0.0, 0.3, 0.7, 1.0])
async def test_a_simulated_reply_gives_the_drawn_score(make: Callable[..., Rubric], score: float):
    spec = make(pass_threshold=score)
    judgment = await graded(rubric.reply_with_score(spec, score, "simulated"), spec)
    assert judgment.score == pytest.approx(score, abs=1e-12)
    assert judgment.passed is True


class Billed(Exception):
    """A failed call that says what it cost, as the workers' clients do."""

    def __init__(self, completion: Completion | None) -> None:
        super().__init__("cut off")
        self.completion = completion


async def test_a_judge_that_fails_is_paid_for_what_it_used():
    said = Completion(input_tokens=10, output_tokens=2, cost_usd=0.5)
    script = Script("no grade", Billed(said), input_tokens=10, output_tokens=2, cost_usd=0.25)
    judgment = await judge(a_rubric(), an_answer(), script)
    assert judgment.score is None
    assert (judgment.input_tokens, judgment.output_tokens, judgment.cost_usd) == (20, 4, 0.75)


async def test_an_unreadable_grade_is_paid_for_each_time_it_was_asked_for():
    script = Script("no grade", "nor this", input_tokens=10, output_tokens=2, cost_usd=0.25)
    judgment = await judge(a_rubric(), an_answer(), script)
    assert (judgment.score, judgment.cost_usd) == (None, 0.5)
