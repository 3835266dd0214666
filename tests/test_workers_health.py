"""Whether a worker in a container makes progress, by what its heartbeat tells of it."""

import asyncio
from types import SimpleNamespace

from workers.process import quarantine
from workers.process.engine import Batch, Engine, Load
from workers.process.health import trouble
from workers.process.heartbeat import Heartbeat
from workers.store.process_settings import ProcessSettings
from workers.store.redis_client import SEEN_SECONDS


def beat(stalled, host="host"):
    return {"name": f"{host}:7-1f6b2a90", "stalled": stalled}


def test_a_worker_whose_attempts_end_or_that_has_none_is_healthy():
    assert trouble([beat(0)], "host") is None
    assert trouble([beat(3 * 3600 - 1)], "host") is None


def test_a_worker_in_which_nothing_ended_for_longer_than_an_attempt_may_take_is_not():
    assert trouble([beat(10801)], "host") == "attempts are under way, and none has ended for 10801 seconds"


def test_another_hosts_worker_says_nothing_of_this_one():
    told = "the broker has not heard of this worker for 30 seconds"
    assert trouble([beat(0, "another"), beat(0, "host2")], "host") == told
    assert trouble([beat(10801, "another"), beat(0)], "host") is None


def test_an_attempt_that_ran_alone_has_ended_too(monkeypatch):
    monkeypatch.setattr(quarantine, "_in_a_child", lambda batch, worker: 1)
    worker = SimpleNamespace(load=Load(), done=4, draining=False)
    assert quarantine.run_alone(Batch("r", 1, (7,), quarantine=True), worker) == 1
    assert (worker.load.alone, worker.done) == (0, 5)


async def test_a_worker_with_a_long_lease_tells_often_enough_that_it_is_alive():
    engine = SimpleNamespace(settings=ProcessSettings("", lease_seconds=600))
    beats = Heartbeat(engine, asyncio.get_running_loop(), public=True)
    assert beats.seconds <= SEEN_SECONDS / 3


def test_the_stall_counts_from_the_last_attempt_that_ended_and_only_while_one_is_under_way(
    monkeypatch, valkey
):
    now = [1000.0]
    monkeypatch.setattr("workers.process.engine.time.monotonic", lambda: now[0])
    engine = Engine(ProcessSettings(valkey), public=False)
    try:
        now[0] += 50
        assert engine.about()["stalled"] == 0, "nothing is under way"
        engine.load.alone = 1
        now[0] += 40
        assert engine.about()["stalled"] == 40
        engine.done += 1
        now[0] += 5
        assert engine.about()["stalled"] == 0
        now[0] += 7
        assert engine.about()["stalled"] == 7
    finally:
        engine.close()
