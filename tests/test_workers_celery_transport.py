"""Messages are published, taken, acknowledged and counted several at a time, over few connections."""

import asyncio
import json
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
import redis
from celery.worker.control import Panel
from submitting import a_server, a_stored_run, waiting

from workers.process import bootsteps, celery_app
from workers.process.celery_app import App
from workers.process.engine import MOST_ALONE, Load
from workers.process.transport import Channel, Together
from workers.rounds.publish import publish_round
from workers.store.keys import LANES, QUARANTINE, UNACKED, UNACKED_INDEX, script, waiting_keys
from workers.store.process_settings import ProcessSettings
from workers.store.redis_client import MOST_CONNECTIONS, connect, connect_insisting, sign_of_life


def taken(channel):
    with channel.conn_or_acquire() as client:
        return client


def test_all_channels_of_an_app_share_the_connections_for_commands_and_those_of_two_apps_share_none(valkey):
    one, other = App(ProcessSettings(valkey)), App(ProcessSettings(valkey))
    with (
        one.connection_for_read() as reading,
        reading.clone() as copied,
        one.connection_for_write() as writing,
        other.connection_for_write() as foreign,
    ):
        shared = taken(reading.default_channel)
        assert shared.ping()
        for connection in (reading, copied, writing):
            assert type(connection.default_channel) is Channel
            assert taken(connection.channel()) is shared
        assert taken(foreign.default_channel) is not shared
        one.disconnect()
        assert taken(writing.default_channel).ping()  # they come again where they are needed


def test_user_and_database_in_a_sockets_address_are_celerys_too(valkey, client):
    client.acl_setuser(
        "some", enabled=True, passwords=["+p@ss"], keys=["*"], channels=["*"], categories=["+@all"]
    )
    app = App(ProcessSettings(valkey.replace("unix://", "unix://some:p%40ss@") + "?db=3"))
    with app.connection_for_write() as connection, closing(app.backend.client) as backend:
        for one in (taken(connection.default_channel), backend):
            assert b"db=3 " in one.execute_command("CLIENT", "INFO")
            assert one.acl_whoami() == "some"


def test_whoever_finds_no_connection_free_waits_for_one(valkey):
    app = App(ProcessSettings(valkey, in_flight=1))
    with app.connection_for_write() as connection, closing(connect(valkey)) as ours:
        channel = connection.default_channel
        for pool in (
            channel.pool,
            channel.async_pool,
            app.backend.client.connection_pool,
            ours.connection_pool,
        ):
            all_of_them = [pool.get_connection() for _ in range(pool.max_connections)]
            threading.Timer(0.1, pool.release, [all_of_them.pop()]).start()
            all_of_them.append(pool.get_connection())
            for one in all_of_them:
                pool.release(one)
            pool.disconnect()


def test_a_message_that_was_taken_from_a_full_server_is_noted_and_not_lost(valkey, client):
    message = json.dumps({"properties": {"delivery_tag": "tag"}})
    take = client.register_script(script("take"))
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.OutOfMemoryError):
        client.hset(UNACKED, "other", "message")
    answer = take(
        keys=[UNACKED, UNACKED_INDEX, "uplift:workers", *waiting_keys(LANES[0])[:1]],
        args=[0, 1, 30, message, LANES[0], LANES[0]],
    )
    assert answer == [message.encode(), LANES[0].encode(), b"tag"]
    client.config_set("maxmemory", 0)
    assert client.hkeys(UNACKED) == [b"tag"]


async def test_attempts_that_find_no_connection_free_wait_for_one(valkey):
    async with connect_insisting(valkey) as server:
        answers = await asyncio.gather(*(server.time() for _ in range(3 * MOST_CONNECTIONS)))
        pipes = [server.pipeline(transaction=False).time() for _ in range(3 * MOST_CONNECTIONS)]
        piped = await asyncio.gather(*(pipe.execute() for pipe in pipes))
    assert len(answers) == len(piped) == 300


def test_events_of_batches_are_sent_only_while_somebody_asks_for_them(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(bootsteps.time, "monotonic", lambda: now)
    events = SimpleNamespace(groups=set(), flush=lambda: None)
    consumer = SimpleNamespace(
        app=SimpleNamespace(engine=None), connection_errors=(), qos=None, event_dispatcher=events
    )
    deliveries = bootsteps.Deliveries(consumer)

    def sent():
        deliveries._send_events()
        return events.groups

    timers = SimpleNamespace(call_repeatedly=lambda seconds, call: None)
    deliveries.register_with_event_loop(consumer, SimpleNamespace(timer=timers))
    assert events.groups == {"worker", "task"}  # the first batch may come before any timer
    assert sent() == {"worker", "task"}  # Flower may be there already, and asks again within seconds
    now += bootsteps.LISTENING_SECONDS + 1
    assert sent() == {"worker"}
    assert Panel.data["enable_events"](None) == {"ok": "task events enabled"}
    assert sent() == {"worker", "task"}
    now += bootsteps.LISTENING_SECONDS + 1
    assert sent() == {"worker"}


@pytest.fixture
def app(valkey):
    made = App(ProcessSettings(valkey))
    yield made
    made.disconnect()
    made.close()


@pytest.fixture
def consumer(app):
    """Takes messages of all lanes, as many as it has room for; what came is in `got`."""
    with app.connection_for_read() as connection:
        channel, got = connection.default_channel, []
        for lane in LANES:
            channel.basic_consume(lane, False, got.append, lane)
        yield SimpleNamespace(connection=connection, channel=channel, got=got)


NOTHING = b"[[], {}, {}]"


def put(client, lane, *names, step=0, body=NOTHING):
    for name in names:
        properties = {"delivery_tag": name, "delivery_info": {"exchange": "", "routing_key": lane}}
        kind = {"content-type": "application/json", "content-encoding": "utf-8"}
        headers = {"task": "uplift.run_batch", "id": name}
        message = {
            "body": b64encode(body).decode(),
            "headers": headers,
            "properties": {**properties, "body_encoding": "base64"},
        }
        client.lpush(waiting_keys(lane)[step], json.dumps({**message, **kind}))


def take(consumer, room):
    consumer.channel.basic_qos(0, room, False)
    before = len(consumer.got)
    consumer.connection.drain_events(timeout=5)
    return [message.delivery_tag for message in consumer.got[before:]]


def test_what_there_is_room_for_is_taken_at_once_from_the_lanes_in_turn_and_by_priority(client, consumer):
    put(client, LANES[1], "low", step=2)
    put(client, LANES[1], "a1", "a2", "a3")
    put(client, LANES[2], "b1", "b2")
    tags = take(consumer, 5)
    assert sorted(tags) == ["a1", "a2", "a3", "b1", "b2"]
    assert {tags[0][0], tags[1][0]} == {"a", "b"} or {tags[1][0], tags[2][0]} == {"a", "b"}
    assert client.llen(waiting_keys(LANES[1])[2]) == 1
    message, exchange, lane = json.loads(client.hget(UNACKED, "b2"))
    assert (message["properties"]["delivery_tag"], exchange, lane) == ("b2", "", LANES[2])
    assert set(client.zrange(UNACKED_INDEX, 0, -1)) == {tag.encode() for tag in tags}


def test_a_worker_leaves_the_others_their_share_of_what_waits(client, consumer):
    for name in ("host:1-a", "host:2-b", "host:3-c", "host:4-d"):
        sign_of_life(client, name, {"name": name})
    put(client, LANES[0], *(f"m{number}" for number in range(41)))
    assert len(take(consumer, 1000)) == 1 + 10


def test_a_message_that_nobody_can_read_holds_up_no_other(client, consumer):
    client.lpush(waiting_keys(LANES[0])[0], "no json", "[]")
    client.lpush(waiting_keys(LANES[0])[0], json.dumps({"properties": {"delivery_tag": 7}}))
    half = {"body": "a", "properties": {"delivery_tag": "half", "body_encoding": "base64"}}
    client.lpush(waiting_keys(LANES[0])[0], json.dumps(half))  # it would end one worker after another
    decimal = b'{"__type__": "decimal", "__value__": "x"}'
    # JSON for the server, and none, or more than text and numbers, for us.
    for odd in (b"nan", b"0x10", b"9" * 5000, b'"\xff"', decimal, b"[" * 900 + b"]" * 900):
        text = b'{"odd": ' + odd + b', "properties": {"delivery_tag": "odd"}}'
        client.lpush(waiting_keys(LANES[0])[0], text)
    # Celery would fail where nobody looks, and keep the room of such a batch for ever.
    put(client, LANES[0], "late", body=b"[[" + decimal + b"], {}, {}]")
    put(client, LANES[0], "wide", body=NOTHING.decode().encode("utf-16"))
    put(client, LANES[0], "good")
    assert take(consumer, 20) == ["good"]
    assert client.hkeys(UNACKED) == [b"good"]


def test_a_message_that_comes_while_a_worker_leaves_waits_again(client, consumer):
    channel = consumer.channel
    channel.basic_qos(0, 5, False)
    consumer.connection.transport.cycle.on_poll_start()  # it waits for messages
    for lane in LANES:
        channel.basic_cancel(lane)
    put(client, LANES[0], "one", "two")
    channel._brpop_read()
    assert (client.hlen(UNACKED), client.llen(waiting_keys(LANES[0])[0])) == (0, 2)


def test_a_worker_that_was_at_a_small_run_takes_little_of_a_large_one_at_first():
    load = Load()
    load.add(0.01)
    load.remove(0.01)
    assert load.room() <= 4
    load.add(0.5)
    assert load.room() == 1 + 2  # one is held, and two more of its size fit into 1.5 times the capacity


def test_what_waits_needs_no_room_until_as_much_of_its_lane_waits_as_a_worker_takes():
    load = Load()
    for _ in range(15):
        load.add(0.1)
    assert load.room() == 15
    with load.waits("a", 1.4), load.waits("b", 0.1):
        assert (load.room(), load.closed()) == (30, frozenset())
        with load.waits("a", 0.1):
            assert load.closed() == {"a"}
    assert (load.room(), load.closed()) == (15, frozenset())


def test_what_runs_alone_takes_no_room_and_closes_the_quarantine_when_there_is_enough_of_it():
    load = Load()
    with ExitStack() as alone:
        for held in range(1, MOST_ALONE + 1):
            assert load.closed() == frozenset()
            alone.enter_context(load.runs_alone())
            assert load.room() == held + 1
        assert load.closed() == {QUARANTINE}
        load.add(0.5)
        assert load.room() == MOST_ALONE + 1 + 2
    assert (load.room(), load.closed()) == (1 + 2, frozenset())


def test_nothing_is_taken_from_a_lane_that_is_closed_and_one_that_opens_is_asked_at_once(client, consumer):
    put(client, LANES[0], "a1", "a2")
    put(client, LANES[1], "b1")
    consumer.channel.closed_lanes = {LANES[0]}
    assert take(consumer, 5) == ["b1"]
    with pytest.raises(TimeoutError):
        consumer.connection.drain_events(timeout=0.5)
    consumer.channel.closed_lanes = frozenset()
    begun = time.monotonic()
    assert take(consumer, 5) == ["a1", "a2"]
    assert time.monotonic() - begun < 0.5


def test_kombu_puts_no_message_back_by_the_clock_of_whoever_took_it(client, consumer, monkeypatch):
    monkeypatch.setattr("workers.process.transport.time.time", lambda: 1.0)
    put(client, LANES[0], "one")
    assert take(consumer, 1) == ["one"]
    monkeypatch.undo()
    consumer.channel.qos.restore_visible()
    assert (client.hlen(UNACKED), client.llen(waiting_keys(LANES[0])[0])) == (1, 0)


def test_messages_that_end_meanwhile_are_acknowledged_together(client, consumer, monkeypatch):
    put(client, LANES[0], *(f"m{number}" for number in range(20)))
    take(consumer, 20)
    later = []
    monkeypatch.setattr(
        "workers.process.transport.get_event_loop", lambda: SimpleNamespace(call_soon=later.append)
    )
    for message in consumer.got:
        message.ack()
    assert (len(later), client.hlen(UNACKED)) == (1, 20)
    client.config_resetstat()
    later[0]()
    assert (client.hlen(UNACKED), client.zcard(UNACKED_INDEX)) == (0, 0)
    assert client.info("commandstats")["cmdstat_hdel"]["calls"] == 1


def test_what_a_channel_has_acknowledged_is_forgotten_before_it_closes(client, app, monkeypatch):
    put(client, LANES[0], "one")
    monkeypatch.setattr(
        "workers.process.transport.get_event_loop", lambda: SimpleNamespace(call_soon=lambda _: None)
    )
    with app.connection_for_read() as connection:
        connection.default_channel.basic_consume(LANES[0], False, lambda message: message.ack(), "one")
        connection.drain_events(timeout=5)
        assert client.hlen(UNACKED) == 1
    assert client.hlen(UNACKED) == 0


def test_what_threads_bring_meanwhile_goes_together_and_each_gets_its_own_answer():
    sent, free = [], threading.Event()

    def send(items):
        sent.append(list(items))
        free.wait(10)
        if 13 in items:
            raise ValueError(str(len(items)))
        return [-item for item in items]

    together = Together(send)
    with ThreadPoolExecutor(13) as threads:
        first = threads.submit(together, 1)
        while not sent:
            time.sleep(0.001)
        rest = {number: threads.submit(together, number) for number in range(2, 12)}
        while len(together._waiting) < len(rest):
            time.sleep(0.001)
        free.set()
        assert first.result() == -1
        assert {number: future.result() for number, future in rest.items()} == {n: -n for n in range(2, 12)}
        with pytest.raises(ValueError, match="1"):
            together(13)
    assert [len(items) for items in sent] == [1, 10, 1]


def test_a_queue_is_known_by_its_name_with_the_prefix(client, consumer):
    assert not consumer.channel._has_queue(LANES[0])
    put(client, LANES[0], "one")
    assert consumer.channel._has_queue(LANES[0])


def test_batches_of_chords_are_counted_together(valkey, monkeypatch):
    monkeypatch.setattr(celery_app, "Together", lambda send: lambda item: (send.__name__, item))
    count = App(ProcessSettings(valkey)).backend._chord_part_return_script
    assert count(keys=["a", "b"], args=["c"], client=None) == ("_counted", ("a", "b", "c"))


def test_a_chord_of_many_batches_is_published_in_a_few_round_trips(valkey, client, monkeypatch):
    server = a_server(valkey)
    run = server.store.run(a_stored_run(server.store, 300).run_id)
    trips = []
    send = redis.Connection.send_packed_command
    monkeypatch.setattr(
        redis.connection.AbstractConnection,
        "send_packed_command",
        lambda self, *args, **options: trips.append(1) or send(self, *args, **options),
    )
    publish_round(server.app, run, generation=1, number=1, indexes=list(range(600)))
    assert waiting(server.store) == 200
    assert len(trips) < 25  # most of them to connect
    server.close()
