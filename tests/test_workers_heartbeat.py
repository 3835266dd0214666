"""Leases: a process that lives keeps what it holds, one that hangs leaves, one that is told to stop hands back."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
from conftest import refusing_writes
from submitting import RUN, a_stored_run

from workers.attempts.breaker import Breaker
from workers.attempts.run_context import Run
from workers.process import heartbeat as leases
from workers.process.bootsteps import Idleness, tolerated
from workers.process.celery_app import App
from workers.process.engine import Batch, Drained, Engine
from workers.process.heartbeat import Heartbeat, silent_beats, start_again
from workers.store.claims import Finished, RunClaims, Wanted, drop_all
from workers.store.keys import LANES, Keys, queue
from workers.store.process_settings import ProcessSettings
from workers.store.redis_client import SEEN_SECONDS, connect, connect_insisting, sign_of_life
from workers.store.redis_client import workers as known_workers
from workers.store.run_store import Store


class Holder:
    """Somebody who holds one claim."""

    name = "here:1"

    def __init__(self, settings, held):
        self.settings = settings
        self.client = connect(settings.broker, timeout_seconds=1, retries=1)
        self._held = held

    def held(self):
        return self._held

    def about(self):
        return {"name": self.name}


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


@pytest.fixture
def claimed(valkey, client):
    """A run with one claim that lasts two seconds; its token."""
    client.hset(Keys(RUN).state, mapping={"generation": 1, "halt": "", "sealed": 0, "created": "0.0"})

    async def claim():
        mine = redis.asyncio.Redis.from_url(valkey)
        try:
            return (await RunClaims(mine, RUN, "here:1", lease_seconds=2).claim(Wanted(0, 1))).token
        finally:
            await mine.aclose()

    return asyncio.run(claim())


def expiry(client):
    return float(client.zscore(Keys(RUN).claims, "0"))


def test_a_heartbeat_renews_claims_and_says_that_a_worker_is_there(valkey, client, claimed, loop, eventually):
    holder = Holder(ProcessSettings(valkey, lease_seconds=2), {RUN: {0: claimed}})
    heartbeat, before = Heartbeat(holder, loop, public=True), expiry(client)
    heartbeat.start()
    eventually(lambda: expiry(client) >= before + 1000)
    assert client.zscore("uplift:workers", "here:1") is not None
    heartbeat.stop()


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_worker_whose_clock_is_wrong_counts_as_long_as_it_gives_signs_of_life(client, monkeypatch, hours):
    right = time.time
    monkeypatch.setattr("workers.store.redis_client.time.time", lambda: right() + hours * 3600)
    sign_of_life(client, "here:1", {"name": "here:1"})
    assert known_workers(client) == [{"name": "here:1"}]
    monkeypatch.undo()
    assert known_workers(client) == [{"name": "here:1"}]
    client.zincrby("uplift:workers", -SEEN_SECONDS - 1, "here:1")
    assert known_workers(client) == []


def test_workers_of_one_host_name_and_process_number_are_two(valkey):
    one, other = (Engine(ProcessSettings(valkey), public=False) for _ in range(2))
    assert one.name != other.name
    one.close()
    other.close()


def test_a_heartbeat_survives_a_server_that_goes_away(valkey, client, claimed, loop, eventually):
    holder = Holder(ProcessSettings(valkey, lease_seconds=1), {RUN: {0: claimed}})
    heartbeat = Heartbeat(holder, loop, public=False)
    heartbeat.start()
    for _ in range(5):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    before = expiry(client)
    eventually(lambda: expiry(client) > before + 1000)
    assert not client.exists("uplift:workers")
    heartbeat.stop()


def test_one_thread_with_one_connection_does_everything_that_was_added(valkey, loop, eventually):
    heartbeat = Heartbeat(Holder(ProcessSettings(valkey), {}), loop, public=False)
    done = []

    def one(client):
        done.append(("one", threading.get_ident(), id(client)))
        raise OSError("one that fails holds up no other")

    def other(client):
        done.append(("other", threading.get_ident(), id(client)))

    for duty in (one, other):
        heartbeat.add(duty, 0.05)
    heartbeat.start()
    eventually(lambda: len({name for name, *_ in done}) == 2)
    assert len({(thread, client) for _, thread, client in done}) == 1
    heartbeat.remove(one)
    heartbeat.remove(one)
    eventually(lambda: [name for name, *_ in done[-3:]] == ["other"] * 3)
    heartbeat.stop()


def test_who_asks_the_server_beside_the_heartbeat_has_its_connection_but_never_for_long(
    valkey, loop, eventually
):
    heartbeat, beats = Heartbeat(Holder(ProcessSettings(valkey), {}), loop, public=False), []
    heartbeat.add(lambda _: beats.append(time.monotonic()), 0.01)
    begun = time.monotonic()
    with heartbeat.turn:
        heartbeat.start()
        eventually(lambda: beats)
    heartbeat.stop()
    assert beats[0] - begun > 0.9 * leases.BEAT_SECONDS


def test_while_the_server_is_away_nothing_waits_for_it_before_the_claims_do(valkey, loop):
    asked = []
    holder = Holder(ProcessSettings(valkey), {})
    holder.held = lambda: asked.append("claims") or {}
    heartbeat = Heartbeat(holder, loop, public=False)

    def away(_):
        asked.append("away")
        raise redis.ConnectionError

    heartbeat.add(away, 0.0)
    heartbeat.add(lambda _: asked.append("later"), 0.0)
    heartbeat._do_what_is_due(None)
    assert asked == ["claims", "away"]
    heartbeat.remove(away)
    heartbeat._do_what_is_due(None)
    assert asked == ["claims", "away", "later"]


def test_a_renewal_that_failed_is_tried_again_within_a_second(valkey, loop, monkeypatch):
    """After an outage others find claims that ran out: whoever is still at them must be first."""
    clock, renewed = [1000.0], []
    monkeypatch.setattr(leases.time, "monotonic", lambda: clock[0])

    def held():
        renewed.append(clock[0])
        raise redis.ConnectionError if clock[0] < 1020 else redis.ResponseError

    holder = Holder(ProcessSettings(valkey, lease_seconds=30), {})
    holder.held = held
    heartbeat = Heartbeat(holder, loop, public=False)
    while clock[0] < 1040:
        heartbeat._do_what_is_due(None)
        clock[0] += 0.25
    assert renewed[0] == 1000
    assert max(b - a for a, b in pairwise(renewed)) <= 1.0


def test_while_renewals_fail_a_loop_has_as_long_as_ever_to_answer(valkey, loop, monkeypatch):
    clock, left = [1000.0], []
    monkeypatch.setattr(leases.time, "monotonic", lambda: clock[0])
    holder = Holder(ProcessSettings(valkey, lease_seconds=30), {})
    holder.held = lambda: 1 / 0
    heartbeat = Heartbeat(holder, SimpleNamespace(call_soon_threadsafe=lambda _: None), public=False)
    heartbeat.leave = lambda why: left.append(clock[0])
    while not left:
        heartbeat._do_what_is_due(None)
        clock[0] += 0.5
    assert 60 <= left[0] - 1000 <= 75


def test_a_run_whose_claims_cannot_be_renewed_costs_no_other_its_claims(valkey, client, claimed, loop):
    client.set(Keys("odd").state, "no hash")
    client.set(Keys("odd").claims, "no set")
    holder = Holder(ProcessSettings(valkey, lease_seconds=2), {"odd": {0: 1}, RUN: {0: claimed}})
    before = expiry(client)
    time.sleep(0.05)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        Heartbeat(holder, loop, public=False)._renew(client)
    assert expiry(client) > before


def test_claims_are_renewed_on_a_full_server_too(valkey, client, claimed, loop):
    holder = Holder(ProcessSettings(valkey, lease_seconds=2), {RUN: {0: claimed}})
    before = expiry(client)
    time.sleep(0.05)
    client.config_set("maxmemory", 1)
    Heartbeat(holder, loop, public=False)._renew(client)
    client.config_set("maxmemory", 0)
    assert expiry(client) > before


def test_a_worker_reads_its_settings_in_one_place():
    folder = Path(leases.__file__).parent
    readers = {path.name for path in folder.glob("*.py") if "from_environment(" in path.read_text()}
    assert readers == {"celery_app.py", "quarantine.py", "health.py"}  # the others are processes of their own


def test_a_process_whose_loop_hangs_is_made_to_leave(valkey, loop, eventually, monkeypatch):
    monkeypatch.setattr(leases, "SILENT_BEATS", 3)
    monkeypatch.setattr(leases, "SHORTEST_SILENCE", 0.0)
    heartbeat = Heartbeat(Holder(ProcessSettings(valkey, lease_seconds=0.2), {}), loop, public=False)
    left = []
    heartbeat.leave = left.append
    heartbeat.start()
    free = threading.Event()
    loop.call_soon_threadsafe(free.wait, 30)
    eventually(lambda: left)
    free.set()
    heartbeat.stop()
    assert "hangs" in left[0]


def test_silence_is_counted_in_beats_and_never_shorter_than_twenty_seconds():
    assert silent_beats(7.5) == 8  # a minute at production settings
    assert silent_beats(0.5) == 40


def test_a_worker_is_stuck_when_messages_wait_and_it_takes_none_for_long_enough():
    idle = Idleness(3)
    looks = [idle.is_stuck(waiting=True, busy=False, taken=0) for _ in range(5)]
    assert looks == [False, False, False, True, True]
    assert not idle.worked


@pytest.mark.parametrize(
    "look",
    [
        {"waiting": False, "busy": False, "taken": 0},
        {"waiting": True, "busy": True, "taken": 0},
        {"waiting": True, "busy": False, "taken": 1},
    ],
)
def test_any_sign_of_life_starts_the_count_anew(look):
    idle = Idleness(3)
    for _ in range(3):
        assert not idle.is_stuck(waiting=True, busy=False, taken=0)
    assert not idle.is_stuck(**look)
    for _ in range(3):
        assert not idle.is_stuck(waiting=True, busy=False, taken=look["taken"])
    assert idle.is_stuck(waiting=True, busy=False, taken=look["taken"])


def test_a_stuck_process_becomes_a_fresh_one_with_the_same_id_and_leaves_after_three_times():
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from workers.process.heartbeat import start_again\n"
        "print(os.getpid(), flush=True); start_again('stuck', worked=False)"
    )
    root = Path(leases.__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", program, root], stdout=subprocess.PIPE, timeout=60)
    assert ended.returncode == leases.STUCK_EXIT
    pids = ended.stdout.split()
    assert (len(pids), len(set(pids))) == (4, 1)


def test_a_process_that_worked_before_it_got_stuck_may_start_anew_as_often_as_it_takes(monkeypatch):
    monkeypatch.setenv("UPLIFT_RESTARTS", "3")
    began = []
    monkeypatch.setattr(os, "execv", lambda *words: began.append(words))
    start_again("stuck", worked=True)
    assert len(began) == 1
    assert os.environ["UPLIFT_RESTARTS"] == "1"


async def test_dropping_all_frees_what_one_owner_holds_and_nothing_else(valkey, client):
    client.hset(Keys(RUN).state, mapping={"generation": 1, "halt": "", "sealed": 0, "created": "0.0"})
    made = redis.asyncio.Redis.from_url(valkey)
    mine, other = (RunClaims(made, RUN, name, lease_seconds=30) for name in ("here:1", "here:12"))
    await asyncio.gather(*(mine.claim(Wanted(index, 1)) for index in range(3)), other.claim(Wanted(3, 1)))
    assert drop_all(client, RUN, "here:1") == 3
    assert client.hkeys(Keys(RUN).owners) == [b"3"]
    assert client.hgetall(Keys(RUN).deaths) == {}
    await made.aclose()


async def test_claims_and_stores_wait_for_a_server_that_is_full(valkey, client):
    client.hset(Keys(RUN).state, mapping={"generation": 1, "halt": "", "sealed": 0, "created": "0.0"})
    made = connect_insisting(valkey)
    claims = RunClaims(made, RUN, "here:1", lease_seconds=30)
    client.config_set("maxmemory", "1")
    asked = asyncio.create_task(claims.claim(Wanted(0, 1)))
    await asyncio.sleep(0.3)
    assert not asked.done()
    client.config_set("maxmemory", "0")
    claim = await asked
    assert claim.code == "go"
    client.config_set("maxmemory", "1")
    kept = asyncio.create_task(claims.store(Finished(0, claim.token, 1, "passed", 0.5, 0.5, 0, 0, b"{}")))
    await asyncio.sleep(0.3)
    client.config_set("maxmemory", "0")
    assert await kept == "stored"
    assert float(client.hget(Keys(RUN).state, "spent")) == 0.5
    await made.aclose()


def test_an_engine_that_drains_drops_even_claims_that_are_on_their_way(valkey, client, eventually):
    a_stored_run(Store(client), 3, models=("sim:latency=60",))
    engine = Engine(ProcessSettings(valkey))
    ends = []

    def run(index):
        try:
            engine.run_batch(Batch(RUN, 1, (index,)))
        except Drained:
            ends.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    eventually(lambda: client.hlen(Keys(RUN).owners))  # the others may be anywhere on the way
    engine.drain()
    for thread in threads:
        thread.join(timeout=20)
    assert sorted(ends) == list(range(6))
    assert client.hlen(Keys(RUN).owners) == 0
    engine.close()


@pytest.mark.parametrize("deaf", ["questions", "claim"])
def test_an_engine_drains_though_a_cancellation_got_lost(valkey, client, monkeypatch, deaf):
    """asyncio.wait_for of Python 3.11, which redis calls, forgets one that comes just when it is done."""
    a_stored_run(Store(client), 1, models=("sim:latency=600",))
    owner = Run if deaf == "questions" else RunClaims
    real, asked = getattr(owner, deaf), threading.Event()

    async def forgetful(self, wanted):
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await real(self, wanted)

    monkeypatch.setattr(owner, deaf, forgetful)
    engine = Engine(ProcessSettings(valkey))
    ends = []

    def run():
        with suppress(Drained):
            ends.append(engine.run_batch(Batch(RUN, 1, (0,))))

    thread = threading.Thread(target=run)
    thread.start()
    asked.wait(20)
    engine.drain()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert ends == []
    assert client.hlen(Keys(RUN).owners) == 0
    engine.close()


def test_an_engine_that_leaves_waits_for_nobody_and_renews_nothing(valkey, client, monkeypatch, eventually):
    """An attempt that does not end when it is cancelled loses its claim all the same."""
    a_stored_run(Store(client), 1, models=("sim:latency=0",))
    free = threading.Event()

    async def deaf(*_):
        while not free.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    monkeypatch.setattr("workers.attempts.attempt.Attempt.ask", deaf)
    monkeypatch.setattr("workers.process.engine.CANCEL_SECONDS", 0.5)
    engine = Engine(ProcessSettings(valkey, lease_seconds=1))

    def run():
        with suppress(Drained):
            engine.run_batch(Batch(RUN, 1, (0,)))

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: client.hlen(Keys(RUN).owners))
    begun = time.monotonic()
    engine.drain()
    assert time.monotonic() - begun < 20
    assert thread.is_alive()
    assert client.hlen(Keys(RUN).owners) == 0
    assert engine.held() == {}
    free.set()
    thread.join(timeout=20)
    engine.close()


def test_a_worker_that_cannot_stop_is_ended():
    program = (
        "import workers.__main__ as main\n"
        "from workers.process.celery_app import App\n"
        "from workers.store.process_settings import ProcessSettings\n"
        "main.LEAVE_SECONDS = 0.1\n"
        "class Broken:\n    def drain(self): raise OSError\n"
        "app = App(ProcessSettings('unix:///nowhere', drain_seconds=0.1))\n"
        "app.engine = Broken()\n"
        "main._leave_in_time(app)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == leases.HUNG_EXIT, ended.stderr
    assert b"told to stop" in ended.stderr


@pytest.fixture
def alone(valkey, client):
    """A quarantined attempt of a minute, in a process of its own."""
    a_stored_run(Store(client), 1, models=("sim:latency=60",))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "workers.process.quarantine", json.dumps([RUN, 1, [0]])],
        env={**os.environ, "UPLIFT_BROKER": valkey, "UPLIFT_LEASE_SECONDS": "2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_quarantined_attempt_keeps_its_claim_for_longer_than_a_lease(alone, client, eventually):
    eventually(lambda: client.zscore(Keys(RUN).claims, "0"))
    first = expiry(client)
    eventually(lambda: expiry(client) > first + 2000)


def test_a_quarantined_attempt_whose_worker_is_gone_hands_itself_back(alone, client, eventually):
    eventually(lambda: client.zscore(Keys(RUN).claims, "0"))
    alone.stdin.close()
    alone.wait(timeout=30)
    assert client.hlen(Keys(RUN).owners) == 0
    assert client.hgetall(Keys(RUN).deaths) == {}


def test_a_stopped_clock_is_no_hang(valkey):
    """SIGSTOP and a laptop's sleep stop the beats along with the loop, so none of them goes unanswered."""
    program = (
        "import asyncio, sys, threading, time\n"
        "from workers.process import heartbeat\nfrom workers.store.process_settings import ProcessSettings\n"
        "heartbeat.SILENT_BEATS, heartbeat.SHORTEST_SILENCE = 3, 0.0\n"
        "class Holder:\n"
        f"    name, settings = 'x:1', ProcessSettings({valkey!r}, lease_seconds=2)\n"
        "    held = about = lambda self: {}\n"
        "loop = asyncio.new_event_loop()\n"
        "threading.Thread(target=loop.run_forever, daemon=True).start()\n"
        "heartbeat.Heartbeat(Holder(), loop, public=False).start()\n"
        "print('up', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)  # more than the three beats that may go unanswered
    process.send_signal(signal.SIGCONT)
    process.stdin.close()
    assert process.wait(timeout=20) == 0
    process.stdout.close()


def test_acknowledging_on_a_channel_that_is_gone_is_taken_for_a_lost_connection(valkey):
    app = App(ProcessSettings(valkey))
    with app.connection_for_read() as connection:
        lane = queue(LANES[0]).bind(connection.default_channel)
        lane.declare()
        app.send_task("uplift.run_batch", queue=LANES[0], argsrepr="")
        message = lane.get(accept=["json"])
        errors = connection.connection_errors
    message.channel._pool = None  # as a lost connection leaves it
    said = []
    logger = logging.getLogger("acknowledging")
    logger.critical = lambda text, *args, **_: said.append(text)
    message.ack_log_error(logger, tolerated(errors))
    assert "ack" in said[0]
    app.close()


def test_no_call_to_the_broker_waits_for_ever(valkey):
    app = App(ProcessSettings(valkey))
    with app.connection_for_read() as connection:
        settings = connection.default_channel.client.connection_pool.connection_kwargs
        assert settings["socket_timeout"] == 30
    app.close()


def test_an_answer_that_is_paid_for_is_recorded_even_when_judging_breaks(valkey, client, monkeypatch):
    """Handing the batch back would ask, and pay, again and again."""

    async def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workers.attempts.attempt.Attempt.judge", no_room)
    store = Store(client)
    a_stored_run(store, 1, models=("sim:latency=0,cost=0.5",))
    engine = Engine(ProcessSettings(valkey))
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    engine.close()
    record = dict(store.indexed_records(RUN))[0]
    assert (record.outcome, record.score) == ("error", None)
    assert "No space left on device" in record.error
    assert record.completion.cost_usd == 0.5


@pytest.mark.parametrize(
    "broken",
    [
        "workers.attempts.attempt.Attempt.note",
        "workers.attempts.permits.Turn._tell_used",
        "workers.attempts.attempt.Attempt.store",
    ],
    ids=["noting the answer", "giving back the limit", "storing the record"],
)
def test_an_attempt_that_ends_without_a_record_gives_its_claim_back(valkey, client, monkeypatch, broken):
    """Otherwise the process would renew a claim that nobody works at, and answer its own next try with "held"."""

    async def refused(*_):
        raise redis.ResponseError("NOPERM this user has no permissions")

    a_stored_run(Store(client), 1, models=("sim:latency=0",))
    engine = Engine(ProcessSettings(valkey))
    with monkeypatch.context() as patch:
        patch.setattr(broken, refused)
        with pytest.raises(redis.ResponseError):
            engine.run_batch(Batch(RUN, 1, (0,)))
    assert engine.held() == {RUN: {}}
    assert client.hlen(Keys(RUN).owners) == client.zcard(Keys(RUN).claims) == 0
    assert engine.run_batch(Batch(RUN, 1, (0,))) == 1
    engine.close()


async def test_a_second_delivery_does_not_give_back_the_claim_of_the_first(valkey, client):
    client.hset(Keys(RUN).state, mapping={"generation": 1, "halt": "", "sealed": 0, "created": "0.0"})
    made = redis.asyncio.Redis.from_url(valkey)
    claims = RunClaims(made, RUN, "here:1", lease_seconds=30)
    first = await claims.claim(Wanted(0, 1))
    second = await claims.claim(Wanted(0, 1))
    await claims.release(0, second.token)
    assert claims.held == {0: first.token}
    await claims.release(0, first.token)
    assert claims.held == {}
    assert client.hlen(Keys(RUN).owners) == 0
    await made.aclose()


async def test_every_write_of_a_worker_waits_while_the_server_cannot_save(valkey, client, short_tmp):
    made = connect_insisting(valkey)
    with refusing_writes(client, short_tmp):
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("x", 1)
        calls = [
            made.sadd("workers", "me"),
            Breaker(made, "breaker").failed("m", "no key"),
            Breaker(made, "breaker").answered("m"),
            made.register_script("return redis.call('SET', KEYS[1], 1)")(keys=["y"]),
        ]
        asked = [asyncio.ensure_future(call) for call in calls]
        await asyncio.wait(asked, timeout=0.5)
        assert not any(one.done() for one in asked)
    await asyncio.gather(*asked)
    assert client.smembers("workers") == {b"me"}
    await made.aclose()
