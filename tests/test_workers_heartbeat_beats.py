"""What workers tell of a run while it goes on, and what a display makes of it."""

import json
import zlib

import pytest
from running import a_suite, standalone, start_uplift, uplift, worker

from producer.display.snapshot import Looker
from workers.process import heartbeat
from workers.process.heartbeat import FORGOTTEN_SECONDS, Pace, Tally, Teller
from workers.store.keys import Keys, limits
from workers.store.messages import Arm, Grid, Manifest
from workers.store.run_store import Progress, Store

GRID = Grid(tasks=3, models=2, arms=2, pass_k=1)


def told(client, teller, held, now):
    pipe = client.pipeline(transaction=False)
    teller.tell(pipe, {"r": GRID}, {"r": held}, now)
    return len(pipe.execute())


def a_manifest():
    arms = (Arm(name="baseline"), Arm(name="candidate"))
    facts = {"run_id": "r", "created_at": "2026-01-01T00:00:00Z", "task_count": 3, "pass_k": 1, "lane": "l"}
    return Manifest(arms=arms, models=("one", "two"), **facts)


def test_a_beat_says_since_when_each_attempt_has_been_in_flight_and_by_which_model(client):
    teller = Teller("w", Tally())
    told(client, teller, {0: 11, 2: 12}, 100.0)
    told(client, teller, {0: 11, 2: 12, 5: 13}, 103.0)
    told(client, teller, {0: 11, 5: 14}, 107.5)  # 2 has ended; 5 was claimed anew
    [beat] = heartbeat.read(client, "r")
    assert beat.slowest == ((0, 7.5), (5, 0.0))
    assert beat.in_flight == {0: 2}  # attempts 0 and 5 are of the first model


def test_a_worker_that_falls_silent_keeps_its_counts_and_loses_its_attempts(client):
    tally = Tally()
    tally.retried("r", "one")
    told(client, Teller("w", tally), {0: 11}, 100.0)
    assert 0 < client.ttl("uplift:r:beat:w") <= FORGOTTEN_SECONDS
    client.delete("uplift:r:beat:w")
    [beat] = heartbeat.read(client, "r")
    assert (beat.in_flight, beat.slowest, beat.rate, beat.retries) == (None, (), None, 1)


def test_a_worker_with_nothing_new_to_tell_says_nothing(client):
    teller = Teller("w", Tally())
    assert told(client, teller, {0: 11}, 100.0) > 0
    assert told(client, teller, {}, 101.0) == 0


def test_what_was_told_of_a_run_goes_with_the_run(client):
    told(client, Teller("w", Tally()), {0: 11}, 100.0)
    Store(client).delete("r")
    assert heartbeat.read(client, "r") == []


def test_a_pace_is_that_of_the_last_half_minute():
    pace = Pace()
    assert pace.rate(0.0, 0) == 0.0
    assert pace.rate(10.0, 20) == 2.0
    assert pace.rate(100.0, 20) == 0.0
    assert pace.rate(105.0, 30) == 2.0


def test_a_display_names_the_slowest_of_all_workers_and_adds_up_their_counts(client):
    for name, index in (("a", 0), ("b", 3)):
        tally = Tally()
        tally.retried("r", "one")
        teller = Teller(name, tally)
        told(client, teller, {index: 1}, 0.0)
        told(client, teller, {index: 1}, 5.0 + index)
    client.hset(Keys("r").tasks, "0", zlib.compress(json.dumps({"id": "names-it"}).encode()))
    client.hset(limits("two")[1], "rate", 53.7)
    inside = Looker(Store(client), a_manifest()).view(Progress(), 2).inside
    assert inside.paced == {"two": 54}
    assert [(slow.task, slow.arm, slow.model, slow.seconds) for slow in inside.slowest] == [
        ("names-it", "candidate", "two", 8.0),
        ("names-it", "baseline", "one", 5.0),
    ]
    assert inside.in_flight == {"one": 1, "two": 1}
    assert inside.retries == 2
    assert [beat.worker for beat in inside.workers] == ["a", "b"]


def test_looking_often_asks_the_server_for_the_inside_once_a_second(client):
    now = [0.0]
    looker = Looker(Store(client), a_manifest(), clock=lambda: now[0])
    before = client.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"]
    for _ in range(41):
        looker.view(Progress(), 1)
        now[0] += 0.25
    assert client.info("commandstats")["cmdstat_hgetall"]["calls"] - before == 11


def test_the_rate_is_that_of_the_last_minute_and_unknown_at_first(client):
    now = [0.0]
    looker = Looker(Store(client), a_manifest(), clock=lambda: now[0])

    def rate(at, recorded):
        now[0] = at
        return looker.view(Progress(outcomes={0: {"passed": recorded}}), 1).rate

    assert rate(0.0, 100) is None  # a run that was joined late: what was there before says nothing
    assert rate(0.5, 104) is None
    assert rate(10.0, 120) == pytest.approx(2.0)
    for at in range(11, 200):
        last = rate(float(at), 120 + at - 10)
    assert last == pytest.approx(1.0)


@pytest.mark.slow
def test_a_run_under_way_is_told_from_the_inside(valkey, client, short_tmp, eventually):
    suite = a_suite(short_tmp, 300)  # more than it can do before it is cancelled
    here = ["--broker", valkey, "--state-root", short_tmp / "state"]
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4"):
        run = start_uplift(
            *standalone(suite, "--model", "sim:latency=1.5,cost=0.01", "--broker", valkey), cwd=short_tmp
        )
        eventually(lambda: client.zcard("uplift:runs") and client.keys("uplift:*:beat:*"))
        run_id = client.zrange("uplift:runs", 0, 0)[0].decode()

        facts = {}

        def stands_well():
            """Between two attempts there may be three in flight for a moment."""
            facts.update(uplift("status", run_id, *here, "--json", cwd=short_tmp).line)
            return (
                all(facts[name] for name in ("slowest", "seconds_left"))
                and facts["in_flight"] == 4 <= facts["done"]
            )

        eventually(stands_well)
        table = uplift("status", run_id, *here, cwd=short_tmp, env={"COLUMNS": "80"})
        cancelled = uplift("cancel", run_id, *here, cwd=short_tmp)
        run.communicate(timeout=60)
    assert cancelled.code == 3
    assert facts["state"] == "running"
    assert facts["in_flight_by_model"] == {"sim:latency=1.5,cost=0.01": 4}
    assert facts["slowest"][0]["task"].startswith("task-")
    assert facts["arms"]["baseline"]["total"] == 300
    assert facts["spent_usd"] == pytest.approx(0.01 * facts["done"], abs=0.05)
    assert max(map(len, table.out.splitlines())) <= 80
    assert "candidate" in table.out
    assert "left" in table.out
