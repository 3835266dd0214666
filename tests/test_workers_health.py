"""Whether a worker in a container makes progress, by what its heartbeat tells of it."""

from workers.process.engine import Engine
from workers.process.health import trouble
from workers.store.process_settings import ProcessSettings


def beat(stalled, host="host"):
    return {"name": f"{host}:7-1f6b2a90", "stalled": stalled}


def test_a_worker_whose_attempts_end_or_that_has_none_is_healthy():
    assert trouble([beat(0)], "host") is None
    assert trouble([beat(3599)], "host") is None


def test_a_worker_in_which_nothing_ended_for_an_hour_is_not():
    assert trouble([beat(3601)], "host") == "attempts are under way, and none has ended for 3601 seconds"


def test_another_hosts_worker_says_nothing_of_this_one():
    told = "the broker has not heard of this worker for 30 seconds"
    assert trouble([beat(0, "another"), beat(0, "host2")], "host") == told
    assert trouble([beat(3601, "another"), beat(0)], "host") is None


def test_the_stall_counts_from_the_last_attempt_that_ended_and_only_while_one_is_under_way(
    monkeypatch, valkey
):
    now = [1000.0]
    monkeypatch.setattr("workers.process.engine.time.monotonic", lambda: now[0])
    engine = Engine(ProcessSettings(valkey), public=False)
    try:
        now[0] += 50
        assert engine.about()["stalled"] == 0, "nothing is under way"
        engine.alone = 1
        now[0] += 40
        assert engine.about()["stalled"] == 40
        engine.done += 1
        now[0] += 5
        assert engine.about()["stalled"] == 0
        now[0] += 7
        assert engine.about()["stalled"] == 7
    finally:
        engine.close()
