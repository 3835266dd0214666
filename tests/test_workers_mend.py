"""Mending: one worker is elected, and what got lost is set going again, however a worker or a message was lost."""

import json
import threading
from types import SimpleNamespace

import pytest
import redis
from submitting import RUN, a_server, a_stored_run, record_all, record_one, waiting

from producer.runs.submit import go_on
from workers.process.bootsteps import Mending
from workers.rounds.mend import UNSERVED_SECONDS, Mender
from workers.rounds.publish import send_finish
from workers.store.backlog import backlog
from workers.store.keys import (
    FINISH,
    LANES,
    PROTOCOL,
    UNACKED,
    UNACKED_INDEX,
    Keys,
    queue,
    script,
    waiting_keys,
)
from workers.store.redis_client import sign_of_life, tell_held
from workers.store.run_store import OtherVersion, Store

LEASE = 30.0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.close()
    made.store.client.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def mender(server, clock):
    return Mender(server.app, "host:1-a", server.store.client, LEASE, clock)


@pytest.fixture
def look(mender, clock):
    """Look once a second, for so many seconds."""

    def for_seconds(seconds):
        for _ in range(seconds):
            assert mender.look()
            clock.now += 1.0

    return for_seconds


def take_all(server):
    """The messages vanish, as if a worker had died between taking them and noting that it has them."""
    for key in server.store.client.keys("uplift:v*.lane.*"):
        if server.store.client.type(key) == b"list":
            server.store.client.delete(key)


def take_one(server, name=LANES[0]):
    """A worker takes a message and neither runs nor acknowledges it; the tag that it has by then."""
    connection = server.app.connection_for_read()
    lane = queue(name).bind(connection.default_channel)
    message = lane.get(accept=["json"])
    connection.default_channel._qos._delivered.clear()  # or closing the connection would give it back
    connection.close()
    return message.delivery_tag


def go(server, **fields):
    manifest = a_stored_run(server.store, **fields)
    go_on(server, server.store.run(RUN))
    return manifest


def test_one_worker_mends_at_a_time_and_another_when_it_leaves_or_dies(server, mender, clock):
    other = Mender(server.app, "host:2-b", server.store.client, LEASE, clock)
    assert [mender.look(), other.look(), mender.look()] == [True, False, True]
    other.resign()  # not its to give up
    assert mender.look()
    mender.resign()
    assert [other.look(), mender.look()] == [True, False]
    assert 0 < server.store.client.pttl("uplift:mender:4") <= 5000


@pytest.mark.parametrize("how", ["all recorded", "sealed by a worker that died", "cancelled"])
def test_a_run_that_nobody_finishes_is_finished(server, look, how):
    manifest = go(server)
    if how != "cancelled":
        take_all(server)
        record_all(server.store, manifest)
    if how.startswith("sealed"):
        assert server.store.seal(RUN, 1)
    elif how == "cancelled":
        server.store.halt(RUN, "cancelled")
    look(4)
    assert waiting(server.store, FINISH) == 1
    look(6)
    assert waiting(server.store, FINISH) == 1  # it may take its time


def test_a_run_that_is_being_finished_is_left_alone(server, look):
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest)
    with server.store.finishing(RUN, 60.0) as alone:
        assert alone
        look(20)
        assert waiting(server.store, FINISH) == 0


@pytest.mark.parametrize("halt", ["paused", "trouble"])
def test_a_run_that_waits_for_a_person_is_left_alone(server, look, halt):
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest)
    if halt == "paused":
        server.store.halt(RUN, "paused")
    else:
        server.store.set_trouble(RUN, 1, "aggregating failed")
    look(60)
    assert waiting(server.store, FINISH) == 0


def spoil_generation(client, keys):
    client.hset(keys.state, "generation", "no number")


def spoil_type(client, keys):
    client.delete(keys.records)
    client.set(keys.records, "no hash")


def spoil_errors(client, keys):
    client.hset(keys.errors, "0", "no error")


def spoil_manifest(client, keys):
    client.delete(keys.info)
    client.lpush(keys.info, "no text")


@pytest.mark.parametrize("spoil", [spoil_generation, spoil_type, spoil_errors, spoil_manifest])
def test_one_odd_run_keeps_no_other_from_being_mended(server, look, client, caplog, spoil):
    a_stored_run(server.store, run_id="odd")
    go_on(server, server.store.run("odd"))
    spoil(client, Keys("odd"))
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest)
    look(6)
    assert waiting(server.store, FINISH) == 1
    look(60)
    said = [record.message for record in caplog.records if "run odd is left out" in record.message]
    assert len(said) == 1
    assert client.zscore("uplift:runs", "odd") is not None
    assert backlog(client)["finishing"] == 1


def test_only_a_server_that_is_away_or_full_is_a_reason_to_look_afresh(server, mender, monkeypatch):
    """What a mender has seen is kept over any other error: one that comes again would forget it for ever."""
    forgotten, problems = [], []
    monkeypatch.setattr(Mender, "forget", lambda self: forgotten.append(problems[0]))
    monkeypatch.setattr(Mender, "look", lambda self: raises(problems[0]))
    monkeypatch.setattr("workers.process.bootsteps.LOOK_SECONDS", 0.0)
    heartbeat = SimpleNamespace(turn=threading.Lock())
    engine = SimpleNamespace(
        name="a:1", client=server.store.client, settings=server.settings, heartbeat=heartbeat
    )
    for problem in (KeyError("odd"), redis.ConnectionError("gone"), redis.OutOfMemoryError("full")):
        problems[:] = [problem]
        mending = Mending(SimpleNamespace(app=SimpleNamespace(engine=engine), steps=[]))
        mending._app = SimpleNamespace(engine=engine, amqp=None)
        waits = iter([False, True])
        monkeypatch.setattr(mending._stopped, "wait", lambda _, waits=waits: next(waits))
        mending._run()
    assert [type(problem) for problem in forgotten] == [redis.ConnectionError, redis.OutOfMemoryError]


def raises(problem):
    raise problem


def test_a_run_that_was_created_again_stays_in_the_list_of_runs(server, client, monkeypatch):
    """It was gone when all runs were read, and is there again by the time that it would leave the list."""
    client.zadd("uplift:runs", {RUN: 1.0})
    register = server.store.client.register_script

    def between(text):
        if "ZREM" in text and not client.exists(Keys(RUN).state):
            a_stored_run(server.store)
        return register(text)

    monkeypatch.setattr(server.store.client, "register_script", between)
    server.store.open_runs()
    assert client.zscore("uplift:runs", RUN) is not None


def test_a_run_that_goes_on_keeps_all_its_keys_and_bundles(server, look, client):
    server.store.put_bundle("digest", b"files")
    go(server, fixtures="digest")
    server.store.touch(RUN, days=1)
    client.expire("uplift:bundle:digest", 3600)
    look(1)
    names = [*client.keys(f"uplift:{RUN}:*"), "uplift:bundle:digest"]
    assert [name for name in names if client.ttl(name) < 6 * 86_400] == []


def test_runs_that_are_over_cost_a_look_one_question_each(server, look, client):
    for number in range(200):
        a_stored_run(server.store, run_id=f"over-{number}")
        client.set(Keys(f"over-{number}").artifacts, b"")
    go(server)
    look(1)
    asked = client.info("stats")["total_commands_processed"]
    look(1)
    assert client.info("stats")["total_commands_processed"] - asked < 200 + 40


@pytest.mark.parametrize("quiet", [280, 290, 300])
def test_a_message_that_gets_lost_late_is_noticed_as_soon_as_an_early_one(server, look, quiet):
    """However long all was quiet before: nothing waits longer than the lease and ten seconds."""
    go(server)
    look(quiet)
    take_all(server)
    look(20)
    assert waiting(server.store) == 6


def test_batches_that_nobody_has_are_published_again_and_only_those(server, look):
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest, but=(2, 3))
    look(int(LEASE) + 10)
    assert waiting(server.store) == 2
    look(120)
    assert waiting(server.store) == 2  # now they wait
    assert server.store.state(RUN).generation == 1


def test_attempts_that_wait_or_run_are_left_alone_however_long_it_takes(server, look, client):
    manifest = go(server)
    assert waiting(server.store) == 6
    look(200)
    assert waiting(server.store) == 6
    take_all(server)
    record_all(server.store, manifest, but=(2, 3))
    seconds, _ = client.time()
    client.zadd(Keys(RUN).claims, {"2": (seconds + 3600) * 1000, "3": (seconds + 3600) * 1000})
    look(200)
    assert waiting(server.store) == 0


def test_a_run_that_goes_on_is_not_searched(server, look, mender):
    manifest = go(server)
    take_all(server)
    for index in range(5):
        record_one(server.store, manifest, index)
        look(9)  # less than it takes to be searched
    assert waiting(server.store) == 0


def test_a_clock_that_jumps_hours_ahead_publishes_nothing(server, mender, clock, look):
    go(server)
    look(3)
    take_all(server)
    clock.now += 8 * 3600
    assert mender.look()
    assert waiting(server.store) == 0


def test_what_a_living_worker_holds_stays_with_it_and_what_a_dead_one_held_waits_again(server, look, client):
    go(server)
    tag = take_one(server)
    assert (waiting(server.store), client.hlen(UNACKED)) == (5, 1)
    sign_of_life(client, "host:7-c", {"name": "host:7-c"})
    tell_held(client, "host:7-c", [tag], 3600)
    look(60)
    assert (waiting(server.store), client.hlen(UNACKED)) == (5, 1)
    client.delete("uplift:held:host:7-c")  # as when its lease is over
    look(15)
    assert (waiting(server.store), client.hlen(UNACKED)) == (6, 0)
    again = take_one(server)
    assert again == tag


def test_what_a_whole_fleet_held_waits_again_after_a_few_round_trips(server, look, client, monkeypatch):
    for number in range(1200):
        message = {"body": "", "properties": {"delivery_tag": f"tag-{number}", "priority": 3}}
        client.hset(UNACKED, f"tag-{number}", json.dumps([message, "", LANES[1]]))
    client.hset(UNACKED, "odd", "no json")
    sent, send = [], redis.connection.AbstractConnection.send_packed_command
    monkeypatch.setattr(
        redis.connection.AbstractConnection,
        "send_packed_command",
        lambda self, *words, **more: [sent.append(1), send(self, *words, **more)],
    )
    look(int(LEASE / 3) + 2)
    assert (client.hlen(UNACKED), client.llen(waiting_keys(LANES[1])[1])) == (0, 1200)
    assert len(sent) < 300


def test_a_run_whose_attempts_take_long_is_not_read_every_second(server, look, client, monkeypatch):
    go(server)
    seconds, _ = client.time()
    client.zadd(Keys(RUN).claims, {"2": (seconds + 3600) * 1000})
    look(3)
    read, manifest = [], server.store.manifest
    monkeypatch.setattr(Store, "manifest", lambda self, run_id: [read.append(1), manifest(run_id)][1])
    monkeypatch.setattr(Store, "info", lambda self, run_id: read.append(100))
    look(60)
    assert len(read) <= 2 * 60 / (LEASE / 3)


def test_a_message_that_two_put_back_waits_once(server, client):
    go(server)
    tag = take_one(server)
    message, _, lane = json.loads(client.hget(UNACKED, tag))
    put_back = client.register_script(script("put_back"))
    keys = [UNACKED, UNACKED_INDEX, waiting_keys(lane)[0]]
    assert [put_back(keys=keys, args=[tag, json.dumps(message)]) for _ in range(2)] == [1, 0]
    assert waiting(server.store) == 6


def test_looks_that_take_long_put_back_what_a_dead_worker_held_too(
    server, mender, clock, client, monkeypatch
):
    go(server)
    take_one(server)
    open_runs = mender._store.open_runs

    def slow():
        clock.now += 5.5
        return open_runs()

    monkeypatch.setattr(mender._store, "open_runs", slow)
    for _ in range(6):
        mender.look()
        clock.now += 1.0
    assert client.hlen(UNACKED) == 0


def test_a_message_that_nobody_can_read_holds_up_nothing(server, look, client):
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest, but=(2,))
    for number, wrong in enumerate(("no json", "[]", '["a", "b", "c"]', '[{"properties": 1}, "", "lane"]')):
        client.hset(UNACKED, f"tag-{number}", wrong)
    client.rpush(waiting_keys(LANES[0])[0], "no json", json.dumps({"body": "?"}), json.dumps([RUN]))
    look(40)
    assert client.hlen(UNACKED) == 0
    assert waiting(server.store) == 3 + 1


def test_a_callback_that_somebody_has_taken_does_not_hide_that_attempts_got_lost(server, look, client):
    go(server)
    take_all(server)
    send_finish(server.app, RUN, 1, 1)
    sign_of_life(client, "host:1-a", {"name": "host:1-a", "protocol": PROTOCOL})
    tell_held(client, "host:1-a", [take_one(server, FINISH)], LEASE)
    look(40)
    assert waiting(server.store) == 6


def test_a_run_of_another_version_ends_when_workers_live_and_none_can_read_it(server, look, client):
    go(server)
    client.hset(Keys(RUN).state, "protocol", PROTOCOL + 1)
    look(2 * int(UNSERVED_SECONDS))
    assert server.store.state(RUN).trouble is None  # fleets may start from nothing
    sign_of_life(client, "host:1-a", {"name": "host:1-a", "protocol": PROTOCOL, "version": "0.2.0"})
    look(int(UNSERVED_SECONDS))
    assert server.store.state(RUN).trouble is None
    look(3)
    assert "another version began; there are 1 of Uplift 0.2.0" in server.store.state(RUN).trouble
    assert waiting(server.store) == 6


@pytest.mark.parametrize("other_protocol", [PROTOCOL, PROTOCOL + 1])
def test_a_run_that_one_worker_can_read_goes_on(server, look, client, other_protocol):
    go(server)
    client.hset(Keys(RUN).state, "protocol", other_protocol)
    server.store.refuse(RUN, "host:1-a", OtherVersion("it says otherwise"))
    for name, protocol in (("host:1-a", PROTOCOL), ("host:2-b", other_protocol)):
        sign_of_life(client, name, {"name": name, "protocol": protocol})
    look(2 * int(UNSERVED_SECONDS))
    assert server.store.state(RUN).trouble is None
    server.store.refuse(RUN, "host:2-b", OtherVersion("it says otherwise"))
    look(int(UNSERVED_SECONDS) + 3)
    assert server.store.state(RUN).trouble is not None


def test_whoever_cannot_read_a_run_leaves_mending_to_others_that_may(server, mender, clock, client):
    manifest = go(server)
    take_all(server)
    record_all(server.store, manifest)
    data = client.get(Keys(RUN).manifest)
    client.set(Keys(RUN).manifest, b"{}")
    sign_of_life(client, "host:1-a", {"name": "host:1-a", "protocol": PROTOCOL})
    assert mender.look()  # nobody else is there
    sign_of_life(client, "host:2-b", {"name": "host:2-b", "protocol": PROTOCOL})
    clock.now += 1
    assert [mender.look(), client.exists("uplift:mender:4")] == [False, 0]
    client.set(Keys(RUN).manifest, data)
    other = Mender(server.app, "host:2-b", client, LEASE, clock)
    for _ in range(4):
        assert [mender.look(), other.look()] == [False, True]
        clock.now += 1
    assert waiting(server.store, FINISH) == 1
