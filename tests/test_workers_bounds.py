"""What a worker and a run may take: processes, bytes, memory, days; and who may still write into a run's state."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import redis
import redis.asyncio
from submitting import RUN, a_server, a_stored_run, record_all

from aggregate.records.record import AttemptRecord
from judges.judgment import Completion, Judgment
from judges.spec import Contains
from producer.runs.submit import go_on
from workers.attempts import attempt, run_context
from workers.attempts.permits import ModelLimits
from workers.attempts.run_context import TaskCache
from workers.process import quarantine
from workers.process.engine import Drained, Load
from workers.rounds import finish as finishing
from workers.store import claims
from workers.store.claims import Coalescer, Finished, RunClaims, Wanted, drop_all
from workers.store.keys import RUNS, WORKING_SECONDS, Keys
from workers.store.messages import Limits, Task
from workers.store.run_store import pack, pack_task


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.close()
    made.store.client.close()


@pytest.fixture
async def own(valkey, server):
    """Claims of a run as one worker makes them."""
    client = redis.asyncio.Redis.from_url(valkey)
    yield RunClaims(client, RUN, "w1", lease_seconds=30.0)
    await client.aclose()


def test_as_many_attempts_run_alone_as_there_are_cores(monkeypatch):
    running, most = [], []

    def slow(batch, worker):
        running.append(batch)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(batch)
        return 1

    monkeypatch.setattr(quarantine, "_in_a_child", slow)
    worker = SimpleNamespace(load=Load(), done=0, draining=False)
    threads = [threading.Thread(target=quarantine.run_alone, args=(n, worker)) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 30
    assert max(most) <= (os.cpu_count() or 1)


def test_whoever_waits_to_run_alone_leaves_when_the_worker_does(monkeypatch):
    monkeypatch.setattr(quarantine, "_at_once", threading.BoundedSemaphore(1))
    assert quarantine._at_once.acquire()
    with pytest.raises(Drained):
        quarantine.run_alone(None, SimpleNamespace(load=Load(), draining=True))


async def test_a_private_servers_restart_counts_no_deaths(server, own, client):
    a_stored_run(server.store, budget_usd=10.0)
    for _ in range(3):
        claim = await own.claim(Wanted(0, 1, estimate=0.5))
        assert (claim.code, claim.deliveries) == ("go", 1)
        own.held.clear()
        assert drop_all(client, RUN) == 1
    assert not client.exists(Keys(RUN).deaths)
    assert float(client.hget(Keys(RUN).state, "assumed")) == 1.5  # three calls were cut off, and are billed
    assert float(client.hget(Keys(RUN).state, "reserved")) == 0


async def test_a_call_carries_a_bounded_number_of_bytes(monkeypatch):
    monkeypatch.setattr(claims, "MOST_BYTES", 100)
    calls = []

    async def send(items):
        calls.append([len(item) for item in items])
        return items

    together = Coalescer(send, size=len)
    sizes = [40, 40, 40, 300, 10, 10]
    assert [len(item) for item in await asyncio.gather(*(together(b"x" * size) for size in sizes))] == sizes
    assert calls == [[40, 40], [40], [300], [10, 10]]


async def test_a_large_answer_is_packed_beside_the_loop_and_a_small_one_on_it(monkeypatch):
    threads = []
    packed = attempt._packed

    def noting(record):
        threads.append(threading.current_thread() is threading.main_thread())
        return packed(record)

    class Claims:
        async def store(self, finished):
            return "stored"

    monkeypatch.setattr(attempt, "_packed", noting)
    run = SimpleNamespace(grid=SimpleNamespace(arms=2), claims=Claims(), manifest=SimpleNamespace(run_id=RUN))
    host = SimpleNamespace(count=lambda *_: None, name="w")
    one = attempt.Attempt(host, run, None, 0, 1)
    one._claim = claims.Claim("go", 1)
    for characters in (10, 200_000):
        record = AttemptRecord(
            task="t",
            arm="baseline",
            attempt=1,
            outcome="passed",
            completion=Completion(text="é" * characters),
        )
        assert await one.store(record, run_context.Bill()) == 1
    assert threads == [True, False]


def test_tasks_of_all_runs_together_are_bounded(monkeypatch):
    monkeypatch.setattr(run_context, "TASKS_KEPT_BYTES", 1000)
    cache = TaskCache()
    for run in range(16):
        for number in range(20):
            cache.add((f"run-{run}", number), None, 10)
            cache.add((f"run-{run}", number), None, 10)  # fetched twice, kept once
        cache.shrink()
    assert len(cache) == 100
    assert next(iter(cache)) == ("run-11", 0)
    cache.add(("huge", 0), None, 5000)
    cache.shrink()
    assert list(cache) == [("huge", 0)]


async def test_every_key_of_a_run_ends_some_day(server, own, client):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    for index, outcome in ((0, "passed"), (1, "error"), (2, "failed")):
        claim = await own.claim(Wanted(index, 1))
        await own.store(Finished(index, claim.token, 1, outcome, 0.1, 0.1, 0, 0, b"{}"))
    await own.claim(Wanted(3, 1))
    client.zadd(Keys(RUN).claims, {"3": 1})
    own.held.clear()
    await own.claim(Wanted(3, 1))
    names = client.keys(f"uplift:{RUN}:*")
    assert {Keys(RUN).records, Keys(RUN).rounds, Keys(RUN).deaths} <= {name.decode() for name in names}
    assert kept_for_ever(client) == []


def kept_for_ever(client):
    names = client.keys(f"uplift:{RUN}:*")
    return [name for name in names if not 0 < client.ttl(name) <= WORKING_SECONDS]


@pytest.mark.parametrize("how", ["its worker died", "its worker left", "its record comes late"])
async def test_what_is_first_written_when_a_run_is_over_ends_some_day_too(server, own, client, how):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    claim = await own.claim(Wanted(0, 1, estimate=0.5))
    own.asked.add(claim.token)
    server.store.halt(RUN, "cancelled")
    if how == "its worker left":
        await own.release(0, claim.token)
    elif how == "its worker died":
        client.zadd(Keys(RUN).claims, {"0": 1})
    server.store.seal(RUN, 1)
    if how == "its record comes late":
        assert await own.store(Finished(0, claim.token, 1, "passed", 0.1, 0.1, 0, 0, b"{}")) == "late"
    assert client.exists(Keys(RUN).assumed, Keys(RUN).billed) == 1
    assert kept_for_ever(client) == []


async def test_a_run_that_goes_on_keeps_its_keys_and_one_that_was_brought_home_does_not(server, own, client):
    a_stored_run(server.store)
    server.store.touch(RUN, days=2)
    await own.claim(Wanted(0, 1))
    assert client.ttl(Keys(RUN).state) > 6 * 86_400
    server.store.touch(RUN, days=2)
    client.hset(Keys(RUN).state, "sealed", 1)
    await own.store(Finished(0, 1, 1, "passed", 0.1, 0.1, 0, 0, b"{}"))
    assert client.ttl(Keys(RUN).state) <= 2 * 86_400


def test_runs_that_are_gone_leave_the_list_of_runs(server, client):
    a_stored_run(server.store)
    server.store.next_generation(RUN)
    client.zadd(RUNS, {"long-ago": 1.0})
    assert list(server.store.open_runs()) == [RUN]
    assert client.zrange(RUNS, 0, -1) == [RUN.encode()]


async def test_a_model_that_cannot_answer_halts_no_run_that_is_halted_sealed_or_gone(server, own, client):
    a_stored_run(server.store)
    server.store.halt(RUN, "cancelled")
    assert not await own.halt(0, "hopeless", "no key")
    assert (server.store.state(RUN).halt, server.store.state(RUN).why) == ("cancelled", "")
    server.store.next_generation(RUN)
    assert await own.halt(1, "hopeless", "no key")
    assert (server.store.state(RUN).halt, server.store.state(RUN).why) == ("hopeless", "no key")
    client.delete(Keys(RUN).state)
    assert not await own.halt(1, "hopeless", "no key")
    assert not server.store.halt(RUN, "cancelled")
    assert not client.exists(Keys(RUN).state)


async def test_attempts_from_before_a_resume_do_not_halt_the_run_that_goes_on(server, own):
    a_stored_run(server.store)
    server.store.next_generation(RUN)
    before = await own.claim(Wanted(0, 1))
    server.store.halt(RUN, "paused")
    server.store.next_generation(RUN)
    assert not await own.halt(before.generation, "hopeless", "no key")
    assert server.store.state(RUN).halt == ""
    after = await own.claim(Wanted(1, 1))
    assert await own.halt(after.generation, "hopeless", "no key")


@pytest.mark.parametrize("meanwhile", ["cancelled", "paused", "resumed"])
def test_a_run_that_may_stop_early_is_not_taken_from_whoever_did_something_else_meanwhile(
    server, monkeypatch, meanwhile
):
    a_stored_run(server.store, stop_early=True)
    generation, run = server.store.next_generation(RUN), server.store.run(RUN)

    def looks(*_):
        if meanwhile == "resumed":
            server.store.next_generation(RUN)
        else:
            server.store.halt(RUN, meanwhile)
        return SimpleNamespace(returncode=0, stdout='{"stop": true}')

    monkeypatch.setattr(finishing, "run_module", looks)
    finishing.may_stop(server.settings, server.store, run, generation)
    assert server.store.state(RUN).halt == ("" if meanwhile == "resumed" else meanwhile)


def test_whoever_cancels_has_the_last_word(server):
    a_stored_run(server.store)
    assert server.store.halt(RUN, "paused")
    assert server.store.halt(RUN, "cancelled")
    assert not server.store.halt(RUN, "paused")
    assert server.store.state(RUN).halt == "cancelled"


def test_a_run_that_is_sealed_is_not_halted_and_publishes_nothing_more(server):
    a_stored_run(server.store)
    assert server.store.seal(RUN, 0)
    assert not server.store.halt(RUN, "cancelled")
    server.store.set_published(RUN, 0, 6)
    assert (server.store.state(RUN).halt, server.store.state(RUN).published) == ("", 0)


def test_a_run_that_has_its_artifacts_gets_into_no_trouble(server):
    a_stored_run(server.store)
    assert server.store.seal(RUN, 0)
    assert server.store.put_artifacts(RUN, 0, [])
    server.store.set_trouble(RUN, 0, "finishing failed: late")
    assert server.store.state(RUN).trouble is None


def test_whoever_lost_the_right_to_finish_a_run_takes_it_from_nobody(server, client, eventually):
    a_stored_run(server.store)
    key = Keys(RUN).finishing
    with server.store.finishing(RUN, 0.2) as alone:
        assert alone
        client.set(key, "another")
        time.sleep(0.3)
        assert client.get(key) == b"another"
    assert client.get(key) == b"another"
    client.delete(key)
    with server.store.finishing(RUN, 0.2) as alone:
        time.sleep(0.5)
        assert client.pttl(key) > 0  # renewed
        with server.store.finishing(RUN, 0.2) as other:
            assert (alone, other) == (True, False)
    assert not client.exists(key)


LARGE = "".join(map(chr, np.random.default_rng(1).integers(0x4E00, 0x9FFF, 1_000_000)))  # does not compress


def replies(monkeypatch, *names):
    """The sizes of what a client is answered, or asked to write, a call."""
    sizes = []
    for name in names:
        real = getattr(redis.Redis, name)

        def counted(client, *args, real=real, **options):
            answer = real(client, *args, **options)
            told = answer[1].values() if isinstance(answer, tuple) else answer
            told = options["mapping"].values() if "mapping" in options else told
            sizes.append(sum(len(value) for value in told if isinstance(value, bytes)))
            return answer

        monkeypatch.setattr(redis.Redis, name, counted)
    return sizes


def test_large_records_and_tasks_come_and_go_a_few_at_a_time(server, monkeypatch):
    cached = {
        index: AttemptRecord(
            task=f"task-{index // 2}", arm="baseline", attempt=1, outcome="passed",
            completion=Completion(text=LARGE[index:] + LARGE[:index]),
        )
        for index in range(0, 40, 2)
    }  # fmt: skip
    largest = max(len(pack(record)) for record in cached.values())
    assert len(cached) * largest > 4 * claims.MOST_BYTES
    sizes = replies(monkeypatch, "hset", "hmget")
    manifest = a_stored_run(server.store, 20, cached=cached)
    assert {index for index, _ in server.store.indexed_records(RUN)} == cached.keys()
    server.store.put_stored("other", cached.items())
    assert max(sizes) <= claims.MOST_BYTES + 2 * largest
    # One task is as large as a record here.
    client, run = server.store.client, server.store.run(RUN)
    big = Task(id="t", prompt=LARGE, judge=Contains(type="contains", expected=["it"]))
    client.hset(Keys(RUN).tasks, mapping={str(n): pack_task(big) for n in range(manifest.task_count)})
    sizes.clear()
    assert len(list(server.store.tasks(run))) == 20
    assert max(sizes) <= claims.MOST_BYTES + 2 * largest


def test_small_records_and_tasks_travel_many_at_a_time(server, monkeypatch):
    manifest = a_stored_run(server.store, 2000)
    record_all(server.store, manifest)
    sizes = replies(monkeypatch, "hmget")
    assert len(list(server.store.records(RUN))) == 4000
    assert len(list(server.store.tasks(server.store.run(RUN)))) == 2000
    assert len(sizes) < 30


@pytest.mark.parametrize("where", ["completion", "details", "panel"])
async def test_a_large_record_is_packed_in_a_thread_wherever_its_text_is(where, monkeypatch):
    record = AttemptRecord(task="t", arm="candidate", attempt=1, outcome="passed")
    text = "x" * (attempt.LARGE_CHARACTERS + 1)
    more = {
        "completion": {"completion": Completion(text=text)},
        "details": {"details": text},
        "panel": {"judgments": (Judgment(judge="contains"), Judgment(judge="contains", missed=(text,)))},
    }
    assert attempt._characters(record) <= 100
    assert attempt._characters(record.model_copy(update=more[where])) > attempt.LARGE_CHARACTERS


def test_what_an_earlier_generation_says_is_not_written(server, client):
    a_stored_run(server.store)
    generation = server.store.next_generation(RUN)
    server.store.set_trouble(RUN, generation - 1, "late")
    server.store.set_published(RUN, generation - 1, 99)
    server.store.set_warning(RUN, generation - 1, "late")
    state = server.store.state(RUN)
    assert (state.trouble, state.warning, server.store.state(RUN).published) == (None, "", 0)
    server.store.set_trouble(RUN, generation, "now")
    server.store.set_published(RUN, generation, 4)
    assert (server.store.state(RUN).trouble, server.store.state(RUN).published) == ("now", 4)


async def test_whoever_keeps_slots_goes_on_after_any_error(valkey, monkeypatch):
    client = redis.asyncio.Redis.from_url(valkey)
    limits = ModelLimits(client, lease_seconds=0.06)
    permit = await limits.acquire("m", Limits(max_in_flight=1), 0)
    asked, thrice = [], asyncio.Event()

    async def broken():
        asked.append(1)
        if len(asked) == 3:
            thrice.set()
        raise OSError("no route")

    monkeypatch.setattr(client, "time", broken)
    await asyncio.wait_for(thrice.wait(), 20)
    await limits.used(permit, None)
    await limits.close()
    await client.aclose()


@pytest.mark.parametrize("code", [1, -9])
def test_a_look_that_fails_stops_nothing_and_the_artifact_says_so(server, monkeypatch, code):
    manifest = a_stored_run(server.store, pass_k=2, stop_early=True, told={"stop_early": True})
    run = server.store.run(RUN)
    go_on(server, run)
    record_all(server.store, manifest)
    failed = SimpleNamespace(returncode=code, stdout="", stderr="MemoryError: no room\n")
    monkeypatch.setattr(finishing, "run_module", lambda *_: failed)
    assert not finishing.may_stop(server.settings, server.store, run, 1)
    info = finishing.ended(server.store, RUN, server.store.state(RUN))
    assert info.warnings == (
        "a look at the numbers failed, and no early stop came of it: MemoryError: no room",
    )
    failed.returncode = finishing.TRY_AGAIN
    with pytest.raises(finishing.ServerAway):
        finishing.may_stop(server.settings, server.store, run, 1)
