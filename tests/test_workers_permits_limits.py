"""Limits that hold over all workers together, and a breaker for models that cannot answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
import redis.asyncio
from standing_in import Clock

from workers.attempts.breaker import Breaker
from workers.attempts.permits import ModelLimits, estimated_tokens
from workers.store.messages import Limits, ModelSettings

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


def most_within_a_minute(starts: list[tuple[float, float]]) -> float:
    """The largest sum over any sixty seconds of what began in them."""
    return max(sum(size for at, size in starts if begin <= at < begin + 60) for begin, _ in starts)


async def in_flight(server: redis.asyncio.Redis) -> int:
    return int(await server.zcard(f"uplift:limits:{MODEL}:slots"))


async def test_two_workers_together_start_at_most_rpm_calls_in_any_minute_and_evenly(worker: Worker) -> None:
    clock = Clock()
    workers = [worker(sleep=clock.sleep, clock=clock), worker(sleep=clock.sleep, clock=clock)]
    starts = []
    for number in range(300):
        await workers[number % 2].acquire(MODEL, Limits(rpm=120))
        starts.append((clock.seconds, 1.0))
    assert most_within_a_minute(starts) <= 120
    # No burst at the beginning either, and hardly slower than allowed.
    assert starts[8][0] - starts[0][0] >= 4
    assert starts[-1][0] - starts[0][0] < 299 / 120 * 60 * 1.03


async def starts_of_runs(worker: Worker, *rpms: float) -> list[tuple[float, float]]:
    """When calls start in five minutes if a run of each limit always has one to make, and whose they are."""
    now, due, starts = 1000.0, dict.fromkeys(rpms, 0.0), []

    async def look(rpm: float, seconds: float) -> None:
        due[rpm] = now + seconds
        raise TimeoutError

    async def ask(rpm: float) -> None:
        with suppress(TimeoutError):
            await workers[rpm].acquire(MODEL, Limits(rpm=rpm, tpm=rpm * 1000), 100)
            starts.append((now, rpm))

    workers = {rpm: worker(sleep=partial(look, rpm), clock=lambda: now) for rpm in rpms}
    while now < 1000 + 5 * 61:
        for rpm, at in due.items():
            if at <= now:
                await ask(rpm)
        now = max(now, min(due.values()) + 0.001)
    return starts


async def test_runs_that_tell_different_limits_are_each_paced_by_their_own_and_together_by_the_largest(
    worker: Worker,
) -> None:
    starts = await starts_of_runs(worker, 1.0, 600.0)
    mine = {rpm: [(at, 1.0) for at, whose in starts if whose == rpm] for rpm in (1.0, 600.0)}
    assert 4 <= len(mine[1.0]) <= 5, "neither starved by the larger one, nor above its own"
    assert len(mine[600.0]) > 0.9 * 5 * 600
    assert most_within_a_minute(mine[1.0]) == 1
    assert most_within_a_minute([(at, 1.0) for at, _ in starts]) <= 600


async def test_runs_whose_limits_are_more_than_the_larger_one_if_added_share_that(worker: Worker) -> None:
    starts = await starts_of_runs(worker, 100.0, 120.0)
    assert len(starts) > 0.9 * 5 * 120
    assert most_within_a_minute([(at, 1.0) for at, _ in starts]) <= 120
    assert {whose for at, whose in starts if at > 1200} == {100.0, 120.0}


async def test_whoever_waits_for_a_small_limit_does_not_stand_before_others_of_a_larger_one(
    worker: Worker,
) -> None:
    limits = worker()
    await limits.acquire(MODEL, Limits(rpm=1))
    waiting = asyncio.create_task(limits.acquire(MODEL, Limits(rpm=1)))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        for _ in range(3):
            await limits.acquire(MODEL, Limits(rpm=600))
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_call_that_starts_late_pushes_the_next_ones_back(worker: Worker) -> None:
    """Leave that was promised ahead would let calls meet that were held up on their way."""
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    starts = []
    for number in range(10):
        clock.seconds += 5 if number == 1 else 0  # such as the import of an SDK
        await limits.acquire(MODEL, Limits(rpm=60))
        starts.append(clock.seconds)
    assert all(later - earlier >= 1 for earlier, later in pairwise(starts))


@pytest.mark.parametrize("estimate", [1_500, 7_500, 9_000])
@pytest.mark.parametrize("seconds", [0.5, 20.0])
async def test_a_minute_holds_hardly_more_tokens_than_it_may_however_wrong_the_estimate_is(
    worker: Worker, estimate: int, seconds: float
) -> None:
    """Calls use 7,500 tokens each and take a while; what they used is known when they end."""
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    under_way: list[tuple[float, Any]] = []
    starts = []
    for _ in range(80):
        for ends, permit in [one for one in under_way if one[0] <= clock.seconds]:
            await limits.used(permit, 7_500)
            under_way.remove((ends, permit))
        permit = await limits.acquire(MODEL, Limits(tpm=60_000), estimate)
        starts.append((clock.seconds, 7_500.0))
        under_way.append((clock.seconds + seconds, permit))
    later = [one for one in starts if one[0] >= starts[0][0] + 60]
    assert most_within_a_minute(later) <= 60_000 * 1.05
    if estimate >= 7_500 or seconds < 1:
        assert most_within_a_minute(starts) <= 60_000 * 1.05
    # What was set aside for nothing is given to others.
    assert (starts[-1][0] - starts[0][0]) < 79 * 7_500 / 60_000 * 60 * 1.25


async def test_a_call_that_was_not_made_gives_its_leave_back(worker: Worker) -> None:
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    both = Limits(rpm=1, tpm=1000)
    permit = await limits.acquire(MODEL, both, 1000)
    await limits.used(permit, None)
    begun = clock.seconds
    await limits.acquire(MODEL, both, 1000)
    assert clock.seconds == begun
    await limits.acquire(MODEL, both, 1000)
    assert clock.seconds - begun >= 60


async def test_a_call_larger_than_a_minutes_share_starts_alone_and_is_not_stuck(worker: Worker) -> None:
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    begun = clock.seconds
    for _ in range(3):
        await limits.acquire(MODEL, Limits(tpm=1000), 50_000)
    assert 120 <= clock.seconds - begun < 130


@pytest.mark.parametrize(
    ("others", "its"), [(2_000, 50_000), (50_000, 30_000), (50_000, 50_000), (30_000, 60_000)]
)
async def test_a_call_of_any_size_gets_its_turn_although_others_never_end(
    worker: Worker, others: int, its: int
) -> None:
    now, sleeping, limits = 1000.0, list[tuple[float, asyncio.Future[None]]](), Limits(tpm=60_000)
    all_sleep, served = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal now
        if served.is_set():
            now += seconds
            return
        sleeping.append((now + seconds, asyncio.get_running_loop().create_future()))
        if len(sleeping) == 2:
            all_sleep.set()
        await sleeping[-1][1]

    async def all_others() -> None:
        while not served.is_set():
            await worker_a.acquire(MODEL, limits, others)

    async def this_one() -> float:
        await sleep(120)  # the minute is full by then
        await worker_b.acquire(MODEL, limits, its)
        served.set()
        all_sleep.set()
        return now

    worker_a, worker_b = (worker(sleep=sleep, clock=lambda: now) for _ in range(2))
    tasks = [asyncio.create_task(one) for one in (this_one(), all_others())]
    while not served.is_set() and now < 1000 + 600:
        await all_sleep.wait()
        all_sleep.clear()
        if not served.is_set():
            now, nap = sleeping.pop(sleeping.index(min(sleeping, key=lambda one: one[0])))
            nap.set_result(None)
    assert served.is_set(), "it waits in vain"
    for _, nap in sleeping:
        nap.set_result(None)
    served_at, _ = await asyncio.gather(*tasks)
    assert served_at < 1000 + 120 + 2 * 61


async def test_models_do_not_share_their_limits(worker: Worker) -> None:
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    begun = clock.seconds
    await limits.acquire("openai:a", Limits(rpm=1))
    await limits.acquire("openai:b", Limits(rpm=1))
    assert clock.seconds == begun


async def test_without_limits_and_a_vendor_nothing_is_asked_of_the_server() -> None:
    nobody = redis.asyncio.Redis(port=1)
    async with asyncio.timeout(1):
        for model in ("sim", "claude-code", "command:mine"):
            await ModelLimits(nobody).acquire(model, Limits())
    await nobody.aclose()


async def test_workers_together_hold_at_most_the_slots_there_are(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    workers = [worker() for _ in range(3)]
    most, now = 0, 0

    async def call(limits: ModelLimits) -> None:
        nonlocal most, now
        permit = await limits.acquire(MODEL, Limits(max_in_flight=4))
        now += 1
        most = max(most, now)
        assert await in_flight(server) <= 4
        await asyncio.sleep(0.1)  # a call takes a while, or slots would never be scarce
        now -= 1
        await limits.release(permit)

    await asyncio.gather(*(call(workers[number % 3]) for number in range(60)))
    assert most == 4
    assert await in_flight(server) == 0


async def test_a_dead_workers_slots_come_back_by_themselves(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    begun = time.monotonic()
    dead = ModelLimits(server, lease_seconds=1.5)
    await dead.acquire(MODEL, Limits(max_in_flight=1))
    assert dead._keeper is not None
    dead._keeper.cancel()
    await worker().acquire(MODEL, Limits(max_in_flight=1))
    assert time.monotonic() - begun > 1.4
    assert await in_flight(server) == 1


async def test_a_living_workers_slot_is_kept_beyond_its_lease(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    await worker(lease_seconds=3.0).acquire(MODEL, Limits(max_in_flight=1))
    [(slot, ends)] = await server.zrange(f"uplift:limits:{MODEL}:slots", 0, -1, withscores=True)
    async with asyncio.timeout(60):
        while (await server.zscore(f"uplift:limits:{MODEL}:slots", slot) or 0) <= ends + 3_000_000:  # noqa: ASYNC110 # the server is what changes
            await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await worker().acquire(MODEL, Limits(max_in_flight=1))


async def test_a_waiter_holds_no_slot_before_its_call_may_start(
    server: redis.asyncio.Redis, worker: Worker
) -> None:
    limits = worker()
    strict = Limits(max_in_flight=5, rpm=1)
    await limits.acquire(MODEL, strict)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await limits.acquire(MODEL, strict)
    assert await in_flight(server) == 1


async def test_closing_gives_every_slot_back(server: redis.asyncio.Redis, worker: Worker) -> None:
    limits = worker()
    await limits.acquire(MODEL, Limits(max_in_flight=2))
    await limits.close()
    assert await in_flight(server) == 0


async def test_what_a_limit_leaves_behind_expires(server: redis.asyncio.Redis, worker: Worker) -> None:
    await worker().acquire(MODEL, Limits(max_in_flight=2, rpm=60))
    assert [await server.ttl(key) > 0 for key in await server.keys("uplift:limits:*")] == [True] * 3


def test_a_models_own_limits_win_over_the_default_ones() -> None:
    settings = ModelSettings(limits={MODEL: Limits(rpm=5)}, default_limits=Limits(rpm=9))
    assert settings.limits_of(MODEL) == Limits(rpm=5)
    assert settings.limits_of("mock") == Limits(rpm=9)


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


async def test_a_held_slot_is_renewed_after_a_server_that_did_not_answer_for_a_moment(
    worker: Worker, server: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = worker(lease_seconds=0.9)
    away = 1
    told = limits._server.time

    async def time() -> Any:
        nonlocal away
        away -= 1
        if away == 0:
            raise redis.ConnectionError("away")
        return await told()

    monkeypatch.setattr(limits._server, "time", time)
    await limits.acquire(MODEL, Limits(max_in_flight=1))
    for _ in range(100):
        if away < 0:
            break
        await asyncio.sleep(0.05)
    assert limits._keeper is not None
    assert not limits._keeper.done()
    assert away < 0


async def test_a_worker_closes_though_its_cancellation_was_taken_for_the_end_of_a_commands_time(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, asked = worker(lease_seconds=0.1), asyncio.Event()

    async def time() -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise redis.TimeoutError("timeout") from None

    monkeypatch.setattr(limits._server, "time", time)
    await limits.acquire(MODEL, Limits(max_in_flight=1))
    await asked.wait()
    closing = asyncio.create_task(limits.close())
    _, late = await asyncio.wait([closing], timeout=5)
    for _ in range(10):  # until one is not lost
        if late and limits._keeper is not None:
            limits._keeper.cancel()
            await asyncio.sleep(0.01)
    assert not late, "it waits for ever"


async def test_waiters_that_are_cancelled_leave_nothing_that_others_would_wait_for(worker: Worker) -> None:
    clock = Clock()
    limits = worker(sleep=clock.sleep, clock=clock)
    ask, asked = limits._script, asyncio.Event()

    async def answering_late(**what: Any) -> Any:
        answer = await ask(**what)
        asked.set()
        await asyncio.sleep(0.01)
        return answer

    limits._script = cast(Any, answering_late)
    for _ in range(20):
        asked.clear()
        waiting = asyncio.create_task(limits.acquire(MODEL, Limits(rpm=60, max_in_flight=5)))
        await asked.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    limits._script = ask
    before = clock.seconds
    await limits.acquire(MODEL, Limits(rpm=60, max_in_flight=5))
    assert clock.seconds == before


async def test_a_waiter_for_a_slot_that_is_cancelled_leaves_no_call_in_the_minute(
    worker: Worker, server: redis.asyncio.Redis
) -> None:
    limits = worker()
    permit = await limits.acquire(MODEL, Limits(max_in_flight=5))
    await limits.give_back(permit)
    assert await server.zcard(f"uplift:limits:{MODEL}:minute") == 0


async def test_a_call_that_used_hardly_less_than_was_set_aside_moves_an_enormous_limit_by_nothing(
    worker: Worker,
) -> None:
    mine = worker()
    permit = await mine.acquire(MODEL, Limits(tpm=1_000_000_000), 100)
    await mine.used(permit, permit.aside - 1)  # less than half a microsecond's share


async def test_a_slot_is_given_back_though_nobody_can_be_told_what_was_used(
    worker: Worker, server: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = worker()
    permit = await mine.acquire(MODEL, Limits(max_in_flight=1, tpm=1000), 10)

    async def away(*_: Any) -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(mine, "used", away)
    with pytest.raises(redis.ConnectionError):
        await mine.give_back(permit)
    assert await in_flight(server) == 0
