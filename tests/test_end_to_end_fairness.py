"""Nobody waits behind a big run: lanes are served in turn, and priorities come before them."""

import time

import pytest
from running import a_suite, standalone, uplift, worker
from submitting import a_server, a_stored_run

from workers.rounds.publish import publish_batches
from workers.store.keys import UNACKED, Keys
from workers.store.run_store import Store

pytestmark = pytest.mark.slow


def submit(suite, url, *more):
    begun = uplift(*standalone(suite, "--broker", url, "--detach", *more), cwd=suite.parent)
    assert begun.code == 0, begun.err
    return begun.out.strip()


def test_a_small_run_behind_a_big_one_finishes_long_before_it(valkey, client, short_tmp, eventually):
    big = submit(a_suite(short_tmp / "big", 2000), valkey, "--model", "sim:latency=0.05")
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="10"):
        eventually(lambda: client.hlen(Keys(big).records) > 50)
        small = submit(a_suite(short_tmp / "small", 10), valkey, "--model", "sim:latency=0.05")
        at_start = client.hlen(Keys(big).records)
        eventually(lambda: client.hlen(Keys(small).records) == 20)
        # The small run's 20 attempts cost the big one about as many turns as they took themselves.
        assert client.hlen(Keys(big).records) - at_start < 1500
        Store(client).halt(big, "cancelled")


@pytest.mark.parametrize("slow", [["--rpm", "6"], ["--budget-usd", "0.05"]])
def test_a_run_that_waits_for_its_pace_or_its_budget_keeps_no_other_waiting_nor_takes_more_than_it_can_do(
    valkey, client, short_tmp, eventually, slow
):
    model = "sim:latency=60,cost=0.05" if "--budget-usd" in slow else "sim"
    paced = submit(a_suite(short_tmp / "paced", 40), valkey, "--model", model, *slow)
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="10"):
        eventually(lambda: client.hlen(UNACKED) >= 14)
        time.sleep(2)
        begun = time.monotonic()
        words = standalone(a_suite(short_tmp / "small", 3), "--broker", valkey, "--mock", "--quiet")
        ended = uplift(*words, cwd=short_tmp)
        assert ended.code == 0, ended.err
        assert time.monotonic() - begun < 15
        # One and a half times of what can be in flight waits here, and some that came before that was known.
        assert client.hlen(UNACKED) <= 30, "nothing is left to a worker that joins late"
        Store(client).halt(paced, "cancelled")


def test_a_run_of_high_priority_is_taken_before_the_others(valkey, client, short_tmp, eventually):
    low = submit(a_suite(short_tmp / "low", 200), valkey, "--model", "sim:latency=1", "--priority", "low")
    high = submit(a_suite(short_tmp / "high", 50), valkey, "--model", "sim:latency=0.1", "--priority", "high")
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="5"):
        eventually(lambda: client.hlen(Keys(high).records) == 100)
        assert client.hlen(Keys(low).records) < 50
        Store(client).halt(low, "cancelled")


def test_attempts_that_run_alone_keep_no_other_run_waiting(valkey, client, short_tmp, eventually):
    """Whoever takes them has just been started, because the worker before it died of them."""
    server = a_server(valkey)
    a_stored_run(server.store, tasks=10, run_id="deadly", models=("sim:latency=600",))
    server.store.set_published("deadly", 0, 20)
    deadly = list(range(20))
    with worker(valkey, short_tmp):
        publish_batches(server.app, server.store.run("deadly"), number=1, indexes=deadly, alone=deadly)
        eventually(lambda: client.zcard(Keys("deadly").claims))
        words = standalone(a_suite(short_tmp / "small", 3), "--broker", valkey, "--mock", "--quiet")
        ended = uplift(*words, cwd=short_tmp, timeout=60)
        assert ended.code == 0, ended.err
        server.store.halt("deadly", "cancelled")
    server.app.close()
    server.store.client.close()
