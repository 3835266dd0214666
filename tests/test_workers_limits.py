"""Limits that hold over all workers together, and a breaker for models that cannot answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio

from workers.limits import Breaker, ModelLimits, estimated_tokens, limits_for
from workers.messages import Limits, ModelSettings

MODEL = "openai:some-model"
Worker = Callable[..., ModelLimits]


@pytest.fixture
async def server(valkey: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(valkey)
    yield client
    await client.aclose()


@pytest.fixture
async def worker(valkey: str) -> AsyncIterator[Worker]:
    """Make workers, each with a connection of its own as if it were a process of its own."""
    made: list[tuple[ModelLimits, redis.asyncio.Redis]] = []

    def make(**options: Any) -> ModelLimits:
        client = redis.asyncio.Redis.from_url(valkey)
        made.append((ModelLimits(client, **options), client))
        return made[-1][0]

    yield make
    for limits, client in made:
        await limits.close()
        await client.aclose()


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


async def pace(server: redis.asyncio.Redis, field: str) -> int:
    """When the next turn of a model comes, in microseconds of the server's clock."""
    value: Any = await server.hget(f"uplift:limits:{MODEL}:pace", field)  # type: ignore[misc] # typed for both clients
    return int(value or 0)


async def in_flight(server: redis.asyncio.Redis) -> int:
    return int(await server.zcard(f"uplift:limits:{MODEL}:slots"))


async def test_two_workers_together_start_at_most_rpm_calls_in_any_minute(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    workers = [worker(sleep=no_sleep), worker(sleep=no_sleep)]
    turns = []
    for number in range(122):
        await workers[number % 2].acquire(MODEL, Limits(rpm=60))
        turns.append(await pace(server, "calls"))
    # A turn's end is where the next call starts, so sixty turns must last longer than a minute.
    assert all(later - earlier > 60_000_000 for earlier, later in zip(turns, turns[60:], strict=False))
    assert turns[-1] - turns[0] < 123_000_000


async def test_a_waiter_is_told_its_turn_once_and_turns_are_taken_in_order(worker: Worker) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    limits = worker(sleep=note)
    for _ in range(4):
        await limits.acquire(MODEL, Limits(rpm=6))
    assert len(waits) == 3
    assert waits == sorted(waits)
    assert [round(wait / 10) for wait in waits] == [1, 2, 3]


async def test_tokens_are_paced_and_the_estimate_is_corrected_by_what_was_used(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    limits = worker(sleep=no_sleep)
    first = await limits.acquire(MODEL, Limits(tpm=60_000), 10_000)
    booked = await pace(server, "tokens")
    await limits.release(first, used_tokens=4_000)
    assert booked - await pace(server, "tokens") == 6_000_000
    await limits.acquire(MODEL, Limits(tpm=60_000), 30_000)
    # The second call starts four seconds after the first; its own thirty come on top.
    assert await pace(server, "tokens") - booked == 24_000_000


async def test_models_do_not_share_their_limits(worker: Worker) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    limits = worker(sleep=note)
    await limits.acquire("openai:a", Limits(rpm=1))
    await limits.acquire("openai:b", Limits(rpm=1))
    assert slept == []


async def test_without_limits_nothing_is_asked_of_the_server() -> None:
    nobody = redis.asyncio.Redis(port=1)
    permit = await ModelLimits(nobody).acquire(MODEL, Limits())
    assert permit.waited < 1
    await nobody.aclose()


async def test_workers_together_hold_at_most_the_slots_there_are(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    workers = [worker() for _ in range(3)]
    most, now = 0, 0

    async def call(limits: ModelLimits) -> None:
        nonlocal most, now
        async with limits.permit(MODEL, Limits(max_in_flight=4)):
            now += 1
            most = max(most, now)
            assert await in_flight(server) <= 4
            await asyncio.sleep(0.1)  # a call takes a while, or slots would never be scarce
            now -= 1

    await asyncio.gather(*(call(workers[number % 3]) for number in range(60)))
    assert most == 4
    assert await in_flight(server) == 0


async def test_a_dead_workers_slots_come_back_by_themselves(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    dead = ModelLimits(server, lease_seconds=1.5)
    await dead.acquire(MODEL, Limits(max_in_flight=1))
    assert dead._keeper is not None
    dead._keeper.cancel()
    permit = await worker().acquire(MODEL, Limits(max_in_flight=1))
    assert permit.waited > 0
    assert await in_flight(server) == 1


async def test_a_living_workers_slot_is_kept_beyond_its_lease(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    await worker(lease_seconds=2.0).acquire(MODEL, Limits(max_in_flight=1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4.5):
            await worker().acquire(MODEL, Limits(max_in_flight=1))


async def test_a_cancelled_waiter_keeps_no_slot(server: redis.asyncio.Redis, worker: Worker) -> None:
    limits = worker()
    strict = Limits(max_in_flight=5, rpm=1)
    await limits.acquire(MODEL, strict)
    waiter = asyncio.create_task(limits.acquire(MODEL, strict))
    while await in_flight(server) < 2:  # noqa: ASYNC110 # the server is what changes
        await asyncio.sleep(0.01)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await in_flight(server) == 1


async def test_closing_gives_every_slot_back(server: redis.asyncio.Redis, worker: Worker) -> None:
    limits = worker()
    await limits.acquire(MODEL, Limits(max_in_flight=2))
    await limits.close()
    assert await in_flight(server) == 0


async def test_what_a_limit_leaves_behind_expires(server: redis.asyncio.Redis, worker: Worker) -> None:
    await worker().acquire(MODEL, Limits(max_in_flight=2, rpm=60))
    assert [await server.ttl(key) > 0 for key in await server.keys("uplift:limits:*")] == [True, True]


def test_a_models_own_limits_win_over_the_default_ones() -> None:
    settings = ModelSettings(limits={MODEL: Limits(rpm=5)}, default_limits=Limits(rpm=9))
    assert limits_for(MODEL, settings) == Limits(rpm=5)
    assert limits_for("mock", settings) == Limits(rpm=9)


def test_tokens_are_estimated_from_the_prompt_and_the_longest_answer() -> None:
    assert estimated_tokens("x" * 400, ModelSettings(params={"max_tokens": 50})) == 150
    assert estimated_tokens("x" * 400, ModelSettings()) == 1100


async def test_a_model_that_never_answers_is_given_up_after_five_hopeless_failures(
    server: redis.asyncio.Redis,
) -> None:
    one, other = Breaker(server, "b"), Breaker(server, "b")
    said = [await (one, other)[number % 2].failed(MODEL, "HTTP 401: wrong key") for number in range(7)]
    message = f"{MODEL} cannot answer: HTTP 401: wrong key"
    assert said == [None] * 4 + [message] * 3


async def test_a_model_that_does_answer_is_not_given_up_so_soon(server: redis.asyncio.Redis) -> None:
    breaker = Breaker(server, "b")
    await breaker.answered(MODEL)
    said = [await breaker.failed(MODEL, "HTTP 403") for _ in range(50)]
    assert said[:49] == [None] * 49
    assert said[49] is not None


async def test_an_answer_in_between_starts_the_count_afresh(server: redis.asyncio.Redis) -> None:
    for _ in range(4):
        await Breaker(server, "b").failed(MODEL, "HTTP 401")
    await Breaker(server, "b").answered(MODEL)
    assert [await Breaker(server, "b").failed(MODEL, "HTTP 401") for _ in range(10)] == [None] * 10


async def test_models_and_runs_are_given_up_apart(server: redis.asyncio.Redis) -> None:
    for _ in range(5):
        await Breaker(server, "run-1").failed("openai:a", "HTTP 401")
    assert await Breaker(server, "run-1").failed("openai:b", "HTTP 401") is None
    assert await Breaker(server, "run-2").failed("openai:a", "HTTP 401") is None
