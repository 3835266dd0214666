"""Watching a run: what is only slow is left alone, trouble is said, and without workers a run that is over is ended."""

import time

import pytest
import redis
from builders import an_artifact
from submitting import RUN, a_server, a_stored_run, record_all, waiting

from producer.runs.submit import go_on
from producer.runs.watch import Interrupted, RunLost, Watch
from workers.store.keys import PROTOCOL, UNACKED, Keys


class Clock:
    """A clock that a test moves; every sleep moves it too, and `then` happens after so many sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.sleeps = 0
        self.then = {}

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps += 1
        if self.sleeps in self.then:
            self.then.pop(self.sleeps)()
        assert self.sleeps < 3000, "the run is never over"


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
def said():
    return []


@pytest.fixture
def follow(server, clock, said):
    """Watch the run that is there by then."""

    def to_its_end(**more):
        run = server.store.run(RUN)
        return Watch(server, run, clock=clock, sleep=clock.sleep, say=said.append, **more).follow()

    return to_its_end


def take_all(server):
    """The messages vanish, as if a worker had died between taking them and noting that it has them."""
    for key in server.store.client.keys(f"uplift:v{PROTOCOL}.lane.*"):
        if server.store.client.type(key) == b"list":
            server.store.client.delete(key)


def test_whoever_has_a_run_does_not_read_it_back(server, clock, monkeypatch):
    a_stored_run(server.store)
    run = server.store.run(RUN)
    for name in ("manifest", "info"):
        monkeypatch.setattr(type(server.store), name, None)
    assert go_on(server, run) == 6
    assert server.store.seal(RUN, 1)
    made = [an_artifact(run_id=RUN)]
    assert server.store.put_artifacts(RUN, 1, made)
    assert Watch(server, run, clock=clock, sleep=clock.sleep).follow() == made


def test_a_run_whose_callback_got_lost_is_finished_by_its_watcher(server, follow, clock):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    take_all(server)
    record_all(server.store, manifest)
    (artifact,) = follow()
    assert artifact.attempts.run == 6
    assert clock.now - 1000 < 60


def test_a_clock_that_jumps_hours_ahead_publishes_nothing_twice(server, follow, clock, said):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))

    def jump():
        clock.now += 8 * 3600

    clock.then[5] = jump
    clock.then[10] = lambda: (record_all(server.store, manifest), take_all(server))
    follow()
    assert server.store.state(RUN).generation == 1


@pytest.mark.parametrize("hours", [-3, 3])
def test_what_is_in_flight_is_told_by_the_servers_clock_not_by_ours(server, monkeypatch, hours):
    a_stored_run(server.store)
    seconds, _ = server.store.client.time()
    server.store.client.zadd(Keys(RUN).claims, {"0": (seconds + 20) * 1000, "1": (seconds - 20) * 1000})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    assert server.store.progress(RUN).in_flight == 1


def test_a_cancelled_run_ends_even_when_no_worker_will_ever_take_its_batches(server, follow, clock):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    server.store.halt(RUN, "cancelled")
    (artifact,) = follow()
    assert artifact.status == "cancelled"
    assert waiting(server.store) == 6


def test_a_sealed_run_whose_worker_died_with_its_callback_is_finished_by_its_watcher(server, follow, clock):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    record_all(server.store, manifest)
    assert server.store.seal(RUN, 1)
    server.store.client.hset(UNACKED, "tag", f"a message of {RUN} that nobody gives back")
    (artifact,) = follow()
    assert (artifact.status, artifact.attempts.run) == ("finished", 6)
    assert clock.now - 1000 < 60


@pytest.mark.parametrize("first", ["cancel", "stop"])
def test_whoever_stops_watching_does_not_take_back_that_a_run_is_cancelled(server, clock, follow, first):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    seconds, _ = server.store.client.time()
    server.store.client.zadd(Keys(RUN).claims, {"0": (seconds + 3600) * 1000})
    asked = {"cancel": 10, "stop": 20} if first == "cancel" else {"stop": 10, "cancel": 20}
    clock.then[asked["cancel"]] = lambda: server.store.halt(RUN, "cancelled")
    clock.then[40] = lambda: server.store.client.delete(Keys(RUN).claims)
    stop = lambda: clock.sleeps > asked["stop"]  # noqa: E731
    (artifact,) = follow(stop=stop)
    assert artifact.status == "cancelled"


def test_a_run_with_attempts_in_flight_is_not_cut_off_by_its_cancelling(server, follow, clock):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    server.store.halt(RUN, "cancelled")
    seconds, _ = server.store.client.time()
    server.store.client.zadd(Keys(RUN).claims, {"0": (seconds + 3600) * 1000})
    clock.then[400] = lambda: server.store.client.delete(Keys(RUN).claims)
    follow()
    assert clock.sleeps >= 400


def test_a_run_that_vanished_is_said_with_what_can_have_happened(server, follow, clock, client):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    clock.then[3] = client.flushall
    with pytest.raises(RunLost, match="vanished from the server: it was deleted, flushed, or restarted"):
        follow()


def test_a_full_server_is_said_and_after_a_while_the_way_to_go_on(server, follow, clock, said, client):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    client.config_set("maxmemory", "1")
    with pytest.raises(RunLost, match=f"out of memory.*uplift resume {RUN}"):
        follow()
    (full,) = said  # and not that nobody works: workers could not say that they do
    assert "out of memory" in full


def test_a_full_server_that_gets_room_again_is_waited_for(server, follow, clock, said, client):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    client.config_set("maxmemory", "1")
    clock.then[60] = lambda: client.config_set("maxmemory", "0")
    clock.then[90] = lambda: (record_all(server.store, manifest), take_all(server))
    assert follow()
    assert any("out of memory" in text for text in said)


def test_a_server_that_does_not_answer_is_waited_for(server, follow, clock, said, monkeypatch):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    take_all(server)
    record_all(server.store, manifest)
    real = server.store.state

    def away(run_id):
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(server.store, "state", away)
    clock.then[40] = lambda: monkeypatch.setattr(server.store, "state", real)
    assert follow()
    assert said[0] == "the server does not answer (refused); waiting for it"


def test_a_paused_run_is_left_to_whoever_resumes_it(server, follow):
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    server.store.halt(RUN, "paused")
    with pytest.raises(Interrupted, match=f"uplift resume {RUN}"):
        follow()


def test_two_producers_that_resume_one_run_end_with_one_artifact(server, follow):
    manifest = a_stored_run(server.store)
    assert [go_on(server, server.store.run(RUN)), go_on(server, server.store.run(RUN))] == [6, 6]
    take_all(server)
    record_all(server.store, manifest)
    first, second = follow(), follow()
    assert first == second
    assert go_on(server, server.store.run(RUN)) == 0
    assert len(follow()) == 1
