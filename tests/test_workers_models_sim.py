"""The simulated, mock and recorded models: what they say, how often, and that it can be repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregate.records.record import AttemptRecord
from judges import text_judge
from judges.judgment import Completion, Workspace
from judges.spec import Contains
from workers.models import replay
from workers.models.choose import model_for
from workers.models.model import Model, ModelFailed, Request
from workers.models.sim import Sim, SimSettings, missing_reply, parse
from workers.store.messages import ModelSettings, Task

PYTEST_JUDGE = {"type": "pytest", "test_file": "fixtures/test_it.py"}


def a_task(task_id: str = "t", judge: dict[str, Any] | None = None, **rest: Any) -> Task:
    judge = judge or {"type": "contains", "expected": ["iOS", "Android"]}
    return Task.model_validate({"id": task_id, "prompt": "which platforms?", "judge": judge, **rest})


def a_request(task: Task | None = None, arm: str = "candidate", **rest: Any) -> Request:
    return Request(prompt="which platforms?", task=task or a_task(), arm=arm, **rest)


def a_sim(text: str) -> Sim:
    return Sim(parse(text))


async def completions(model: Model, arm: str, tasks: int, **rest: Any) -> list[Completion]:
    return [await model.complete(a_request(a_task(f"t{i}"), arm, **rest)) for i in range(tasks)]


def passed(completion: Completion, judge: Contains) -> bool:
    check = text_judge(judge, Workspace())
    assert check is not None
    return bool(check(completion.text).passed)


async def test_each_arm_passes_about_as_often_as_it_was_told_to() -> None:
    sim = a_sim("baseline=0.2,candidate=0.8")
    judge = a_task().judge
    assert isinstance(judge, Contains)
    for arm, chance in [("baseline", 0.2), ("candidate", 0.8), ("candidate:b7", 0.8), ("oracle", 1.0)]:
        outcomes = [passed(said, judge) for said in await completions(sim, arm, 2000)]
        # Four standard errors of 2,000 draws: sqrt(0.2 * 0.8 / 2000) is 0.009.
        assert sum(outcomes) / 2000 == pytest.approx(chance, abs=0.036)


async def test_the_arms_of_a_task_are_drawn_apart() -> None:
    sim = a_sim("baseline=0.5,candidate=0.5")
    same = sum(
        sim.passes(a_request(a_task(f"t{i}"), "baseline")) == sim.passes(a_request(a_task(f"t{i}")))
        for i in range(2000)
    )
    assert same / 2000 == pytest.approx(0.5, abs=0.045)


async def test_the_same_seed_says_the_same_again_and_another_seed_does_not() -> None:
    first = await completions(a_sim("seed=7,garbage=0.2"), "candidate", 50)
    again = await completions(a_sim("seed=7,garbage=0.2"), "candidate", 50)
    other = await completions(a_sim("seed=8,garbage=0.2"), "candidate", 50)
    assert first == again
    assert first != other


async def test_attempts_of_one_task_are_drawn_apart() -> None:
    sim = a_sim("candidate=0.5")
    outcomes = {sim.passes(a_request(attempt=number)) for number in range(1, 30)}
    assert outcomes == {True, False}


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(words, min_size=1, max_size=4), st.integers(0, 1000))
async def test_a_wrong_answer_never_holds_all_expected_strings_by_accident(
    expected: list[str], seed: int
) -> None:
    task = a_task(judge={"type": "contains", "expected": expected})
    said = await Sim(SimSettings(candidate=0, seed=seed)).complete(a_request(task))
    garbage = await Sim(SimSettings(garbage=1, seed=seed)).complete(a_request(task))
    assert isinstance(task.judge, Contains)
    assert not passed(said, task.judge)
    assert not passed(garbage, task.judge)


async def test_a_right_answer_avoids_what_is_forbidden_even_in_our_own_words() -> None:
    judge = {"type": "contains", "expected": ["iOS"], "forbidden": ["simulated"]}
    task = a_task(judge=judge)
    said = await a_sim("candidate=1").complete(a_request(task))
    assert isinstance(task.judge, Contains)
    assert passed(said, task.judge)


async def test_errors_depend_on_how_many_tries_failed_before_so_that_a_retry_can_succeed() -> None:
    sim = a_sim("error=0.5")
    tries: list[set[bool]] = []
    for i in range(40):
        seen = set()
        for earlier in range(3):
            try:
                await sim.complete(a_request(a_task(f"t{i}"), earlier_errors=earlier))
                seen.add(True)
            except ModelFailed:
                seen.add(False)
        tries.append(seen)
    assert {True, False} in tries


async def test_an_error_leaves_the_answer_of_the_next_try_as_it_would_have_been() -> None:
    calm, shaky = a_sim("error=0"), a_sim("error=0.5")
    for i in range(30):
        request = a_request(a_task(f"t{i}"))
        try:
            said = await shaky.complete(request)
        except ModelFailed:
            continue
        assert said == await calm.complete(request)


def test_a_rubric_score_is_at_or_above_the_threshold_exactly_when_the_attempt_passes() -> None:
    sim = a_sim("candidate=0.5,garbage=0.1")
    for i in range(300):
        request = a_request(a_task(f"t{i}"))
        score = sim.rubric_score(request, 0.7)
        assert 0 <= score <= 1
        assert (score >= 0.7) == sim.passes(request)


async def test_garbage_is_unusable_but_storable_text() -> None:
    for said in await completions(a_sim("garbage=1"), "candidate", 20):
        assert "\x00" in said.text
        said.text.encode("utf-8")
        json.loads(said.model_dump_json())


async def test_a_pytest_task_is_answered_with_the_suites_replies(tmp_path: Path) -> None:
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures/good.py").write_text("def f(): return 1\n")
    (tmp_path / "fixtures/bad.py").write_text("def f(): return 2\n")
    task = a_task(judge=PYTEST_JUDGE, replies={"pass": "fixtures/good.py", "fail": "fixtures/bad.py"})
    request = a_request(task, suite=tmp_path)
    assert (await a_sim("candidate=1").complete(request)).text == "def f(): return 1\n"
    assert (await a_sim("candidate=0").complete(request)).text == "def f(): return 2\n"


async def test_a_pytest_task_without_replies_is_an_error_that_says_what_to_add() -> None:
    task = a_task(judge=PYTEST_JUDGE)
    assert "replies: {pass: fixtures/…}" in (missing_reply(task) or "")
    with pytest.raises(ModelFailed, match="replies"):
        await a_sim("candidate=1").complete(a_request(task))


async def test_a_reply_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    task = a_task(judge=PYTEST_JUDGE, replies={"pass": "fixtures/gone.py"})
    with pytest.raises(ModelFailed, match=r"fixtures/gone\.py cannot be read"):
        await a_sim("candidate=1").complete(a_request(task, suite=tmp_path))


async def test_the_cost_of_a_simulated_call_is_as_told_and_marked_as_simulated() -> None:
    said = await a_sim("cost=0.25").complete(a_request())
    assert (said.cost_usd, said.cost_source) == (0.25, "sim")


async def test_exponential_latencies_average_to_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("workers.models.sim.asyncio.sleep", note)
    await completions(a_sim("latency=2,spread=exp"), "candidate", 4000)
    # The mean of 4,000 exponential draws has a standard error of 2 / sqrt(4000) = 0.032.
    assert sum(slept) / 4000 == pytest.approx(2.0, abs=0.13)
    assert min(slept) >= 0


async def test_a_mock_always_says_the_same_for_nothing() -> None:
    mock = model_for("mock", ModelSettings())
    first, second = await mock.complete(a_request()), await mock.complete(a_request(attempt=2))
    assert first == second
    assert (first.cost_usd, first.cost_source) == (0.0, "mock")


def a_recording(path: Path, *lines: dict[str, Any]) -> list[AttemptRecord]:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return replay.read(path, f"replay:{path}")


def test_a_recording_of_plain_texts_is_given_again(tmp_path: Path) -> None:
    line = {"task": "t", "arm": "candidate", "attempt": 2, "text": "i\ud800OS"}
    (record,) = a_recording(tmp_path / "r.jsonl", line)
    assert (record.task, record.arm, record.attempt) == ("t", "candidate", 2)
    assert record.model == f"replay:{tmp_path}/r.jsonl"
    assert record.completion == Completion(text="i?OS")


def test_a_recording_of_records_keeps_tokens_and_marks_the_cost_as_not_paid_again(tmp_path: Path) -> None:
    completion = {"text": "iOS", "input_tokens": 9, "cost_usd": 0.5, "cost_source": "provider"}
    record = {"task": "t", "arm": "candidate", "attempt": 1, "outcome": "passed", "completion": completion}
    (read,) = a_recording(tmp_path / "r.jsonl", record)
    assert (said := read.completion) is not None
    assert (said.text, said.input_tokens, said.cost_usd, said.cost_source) == ("iOS", 9, 0.5, "replay")


def test_a_record_without_an_answer_is_left_out_of_a_recording(tmp_path: Path) -> None:
    line = {"task": "t", "arm": "baseline", "attempt": 1, "outcome": "error"}
    assert a_recording(tmp_path / "r.jsonl", line) == []


def test_a_recording_answers_tasks_and_no_judge() -> None:
    with pytest.raises(ModelFailed, match="holds no completion of what a judge asks"):
        model_for("replay:r.jsonl", ModelSettings())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "r.jsonl:2: not a line of JSON"),
        ("[" * 100_000, "r.jsonl:2: not a line of JSON"),
        ('{"arm": "candidate", "attempt": 1}', "r.jsonl:2: task: is missing"),
        (
            '{"task": "t", "arm": "candidate", "attempt": 1, "text": "Android"}',
            "a second, different completion",
        ),
    ],
)
def test_an_unreadable_recording_is_refused_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"task": "t", "arm": "candidate", "attempt": 1, "text": "iOS"}\n' + line)
    with pytest.raises(ModelFailed, match=complaint):
        replay.read(path, f"replay:{path}")


def test_a_missing_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="cannot be read"):
        replay.read(tmp_path / "none.jsonl", "replay:none.jsonl")
