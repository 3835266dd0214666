"""Permission to call a model: who holds a local slot, and who holds one that all workers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis.asyncio

from judges.judgment import Completion
from workers.attempts.permits import Halted, Turns, uncounted
from workers.attempts.run_context import Bill, Question, Run, Terms
from workers.models.model import ModelBusy, ModelFailed, Request, Room
from workers.store.messages import Limits, ModelSettings
from workers.store.process_settings import ProcessSettings

MODEL = "command:agent"
SKILL = "x" * 24_000


@pytest.fixture
async def process(valkey: str) -> AsyncIterator[Callable[[], Turns]]:
    """Make the turns of worker processes, each with two slots for agents and two for others."""
    made: list[tuple[Turns, redis.asyncio.Redis]] = []

    def make() -> Turns:
        client = redis.asyncio.Redis.from_url(valkey)
        settings = ProcessSettings(broker=valkey, in_flight=2, agent_in_flight=2)
        made.append((Turns(client, settings, lambda run_id, model: None), client))
        return made[-1][0]

    yield make
    for turns, client in made:
        await turns.close()
        await client.aclose()


def a_run(run_id: str = "r1", *, skills: Any = None, **limits: Any) -> Run:
    """What turns ask of a run, without a server that knows it."""
    made = SimpleNamespace(
        manifest=SimpleNamespace(run_id=run_id),
        settings=ModelSettings(limits={MODEL: Limits(**limits)}, retry=False),
        halted=asyncio.Event(),
        skills=skills or {},
        client=SimpleNamespace(hmget=_not_halted),
    )
    made.terms = lambda spec: Terms(None, False, False, made.settings.limits_of(spec))
    made.prompt_and_skill = lambda question: Run.prompt_and_skill(made, question)
    return cast(Run, made)


async def _not_halted(*_: Any) -> list[bytes]:
    return [b"", b"0"]


def a_question(model: str = MODEL) -> Question:
    return Question(cast(Any, SimpleNamespace(prompt="Say word0.")), "candidate", model, 1)


async def shared_slots(valkey: str) -> int:
    async with redis.asyncio.Redis.from_url(valkey) as client:
        return int(await client.zcard(f"uplift:limits:{MODEL}:slots"))


async def test_whoever_waits_for_a_local_slot_keeps_no_shared_one_from_other_workers(
    valkey: str, process: Callable[[], Turns]
) -> None:
    one, other, over = process(), process(), asyncio.Event()
    run = a_run(max_in_flight=4)

    async def attempt(turns: Turns) -> None:
        async with turns.turn(run, a_question()) as turn:
            await turn.permit()
            await over.wait()

    tasks = [asyncio.create_task(attempt(one)) for _ in range(6)]
    while one.used < 2:  # noqa: ASYNC110 # the server is what changes
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(attempt(other)) for _ in range(2)]
    async with asyncio.timeout(30):
        while await shared_slots(valkey) < 4:  # noqa: ASYNC110 # as above
            await asyncio.sleep(0.01)
    assert (one.used, other.used) == (2, 2)
    over.set()
    await asyncio.gather(*tasks)
    assert await shared_slots(valkey) == 0


async def test_a_model_that_waits_for_its_limit_leaves_slots_to_others(process: Callable[[], Turns]) -> None:
    turns = process()
    slow = a_run("slow", rpm=0.001)
    async with turns.turn(slow, a_question()) as turn:
        await turn.permit()  # its bill says that no call was made, so it gives its permission back

    async def asked(turn_of: Run, model: str) -> None:
        async with turns.turn(turn_of, a_question(model)) as turn:
            await turn.permit()
            turn.bill = Bill(calls=1)

    await asked(slow, MODEL)
    waiting = [asyncio.create_task(asked(slow, MODEL)) for _ in range(20)]
    await asyncio.sleep(0.2)
    async with asyncio.timeout(30):
        await asyncio.gather(*(asked(a_run("quick"), "command:other") for _ in range(10)))
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert turns.used == 0


async def test_whoever_has_a_slot_when_the_provider_sets_the_pace_waits_for_it_without_one(
    process: Callable[[], Turns],
) -> None:
    turns, run, model = process(), a_run(), "openai:unlimited"
    refused = asyncio.Event()

    async def early() -> None:
        async with turns.turn(run, a_question(model)) as turn:
            await refused.wait()
            await turn.permit()

    async with turns.turn(run, a_question(model)) as turn:
        await turn.permit()
        waiting = [asyncio.create_task(early())]
        await asyncio.sleep(0.05)
        assert turns.used == 2
        with pytest.raises(ModelBusy):
            await turn.answer(
                cast(Any, Refusing(retry_after=60.0)), Request("hi", timeout_seconds=5), wait_beyond=False
            )
    refused.set()
    waiting += [asyncio.create_task(early()) for _ in range(20)]
    await asyncio.sleep(0.3)

    async def asked() -> None:
        async with turns.turn(a_run("quick"), a_question("command:other")) as turn:
            await turn.permit()

    async with asyncio.timeout(30):
        await asyncio.gather(*(asked() for _ in range(10)))
    assert turns.used == 1
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert turns.used == 0


class Refusing:
    """A model that is asked too often; a run without retries asks it once."""

    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after

    async def complete(self, request: Request) -> Completion:
        raise ModelBusy("HTTP 429", retry_after=self.retry_after, refused=True)


async def test_what_one_worker_is_refused_every_worker_waits_for(process: Callable[[], Turns]) -> None:
    one, other, model = process(), process(), "openai:unlimited"
    run = a_run()
    async with one.turn(run, a_question(model)) as turn:
        await turn.permit()
        with pytest.raises(ModelBusy):
            await turn.answer(cast(Any, Refusing(60.0)), Request("hi", timeout_seconds=5))
    for turns in (one, other):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), turns.turn(run, a_question(model)) as turn:
                await turn.permit()


async def test_a_judges_call_is_a_call_like_any_other(valkey: str, process: Callable[[], Turns]) -> None:
    turns, run = process(), a_run(max_in_flight=1)
    async with turns.judging(run, MODEL, "How good is it?"):
        assert await shared_slots(valkey) == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), turns.turn(run, a_question()) as turn:
                await turn.permit()
    async with turns.turn(run, a_question()) as turn:
        await turn.permit()


async def test_tokens_are_set_aside_for_the_skill_too(
    valkey: str, process: Callable[[], Turns], tmp_path: Any
) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    run = a_run(tpm=60_000, skills={"candidate": tmp_path})
    async with redis.asyncio.Redis.from_url(valkey) as client:
        async with process().turn(run, a_question()) as turn:
            await turn.permit()
            aside = int(await cast(Any, client.hget(f"uplift:limits:{MODEL}:pace", "sum")))
            turn.bill = Bill(calls=1, tokens=6_500)
        used = int(await cast(Any, client.hget(f"uplift:limits:{MODEL}:pace", "sum")))
    assert 7_000 <= aside < 7_100  # a quarter of the characters, and 1,000 for an answer
    assert used == 6_500


async def test_a_call_that_was_made_is_not_given_back_by_whoever_stops_waiting_for_the_next(
    valkey: str, process: Callable[[], Turns]
) -> None:
    turns = process()
    async with turns.turn(a_run(rpm=0.001), a_question()) as turn:
        await turn.permit()
        turn.bill = Bill(calls=1, uncounted=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turn.wait_for_retry(), 0.3)
    async with redis.asyncio.Redis.from_url(valkey) as client:
        assert await client.zcard(f"uplift:limits:{MODEL}:minute") == 1


async def test_an_answer_is_kept_though_nobody_can_be_told_of_the_pace_for_longer_than_it_may_take(
    valkey: str, process: Callable[[], Turns]
) -> None:
    async def complete(request: Request) -> Completion:
        async with redis.asyncio.Redis.from_url(valkey) as client:
            await client.client_pause(3000)
        return Completion(text="yes")

    model = cast(Any, SimpleNamespace(complete=complete, room=Room(0.1, 60, 30.0)))
    turns, request = process(), Request(prompt="?", timeout_seconds=1.0)
    async with turns.turn(a_run(), a_question("openai:m")) as turn:
        await turn.permit()
        assert (await turn.answer(model, request)).text == "yes"
    assert not turns.limits.is_free("openai:m"), "who is next knows of the pace"


async def test_a_stopped_run_waits_for_no_pace_to_repeat_a_call(
    process: Callable[[], Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.attempts.permits.LOOK_SECONDS", 0.05)
    run = a_run(rpm=0.001)
    async with process().turn(run, a_question()) as turn:
        await turn.permit()
        turn.bill = Bill(calls=1, uncounted=1)
        run.client = cast(Any, SimpleNamespace(hmget=_halted))
        with pytest.raises(ModelFailed, match="stopped before the call could be repeated"):
            await turn.wait_for_retry()


async def _halted(*_: Any) -> list[bytes]:
    return [b"cancelled", b"0"]


async def test_a_slot_that_came_while_the_run_was_halted_is_given_back(
    valkey: str, process: Callable[[], Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.attempts.permits.LOOK_SECONDS", 0.05)
    turns, first_over, looking = process(), asyncio.Event(), asyncio.Event()
    run = a_run(max_in_flight=1)

    async def halted_after_a_while(*_: Any) -> list[bytes]:
        looking.set()
        await asyncio.sleep(1.0)
        return [b"cancelled", b"0"]

    async def first() -> None:
        async with turns.turn(a_run("other", max_in_flight=1), a_question()) as turn:
            await turn.permit()
            await first_over.wait()

    async def second() -> None:
        async with turns.turn(run, a_question()) as turn:
            await turn.permit()

    holder = asyncio.create_task(first())
    while await shared_slots(valkey) < 1:  # noqa: ASYNC110 # the server is what changes
        await asyncio.sleep(0.01)
    run.client = cast(Any, SimpleNamespace(hmget=halted_after_a_while))
    waiter = asyncio.create_task(second())
    await looking.wait()
    first_over.set()
    await holder
    with pytest.raises(Halted):
        await waiter
    assert await shared_slots(valkey) == 0


async def test_a_deadline_stands_still_while_a_pace_is_waited_for() -> None:
    async def wait() -> None:
        assert deadline.when() is None
        await asyncio.sleep(0.2)

    now = asyncio.get_running_loop().time
    async with asyncio.timeout(60) as deadline:
        before = deadline.when() or 0.0
        await uncounted(deadline, wait())
        after = deadline.when() or 0.0
        assert before + 0.19 < after < now() + 60
