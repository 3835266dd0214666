"""One number to scale workers on: what there is to do on a server, whether or not a worker is alive."""

import json
from pathlib import Path

import pytest
from builders import a_record
from running import a_suite, standalone, uplift
from submitting import RUN, a_server, a_stored_run, record_all, record_one

from workers.store.backlog import backlog
from workers.store.keys import Keys


def to_do(server):
    now = backlog(server.store.client)
    left = now["waiting"], now["under_way"], now["finishing"]
    assert now["total"] == sum(left)
    return left


@pytest.fixture
def server(valkey):
    return a_server(valkey)


def begun(server, tasks=3, **fields):
    """A run of which every attempt was sent: three tasks in two arms are six."""
    manifest = a_stored_run(server.store, tasks, **fields)
    server.store.set_published(manifest.run_id, 0, manifest.grid.attempts)
    return manifest


def claim(server, index, run_id=RUN):
    """Take an attempt as a worker does, for a minute."""
    seconds, _ = server.store.client.time()
    server.store.client.zadd(Keys(run_id).claims, {str(index): (seconds + 60) * 1000})


def test_an_empty_server_has_nothing_to_do(server):
    assert to_do(server) == (0, 0, 0)
    assert backlog(server.store.client)["workers"] == 0


def test_attempts_wait_until_they_are_claimed_and_are_under_way_until_they_are_recorded(server):
    manifest = begun(server)
    assert to_do(server) == (6, 0, 0)
    claim(server, 0)
    claim(server, 1)
    assert to_do(server) == (4, 2, 0)
    server.store.client.zrem(Keys(RUN).claims, "0")
    record_one(server.store, manifest, 0)
    assert to_do(server) == (4, 1, 0)


def test_a_dead_workers_attempts_wait_again_when_its_lease_has_run_out(server):
    begun(server)
    server.store.client.zadd(Keys(RUN).claims, {"0": 1.0})
    assert to_do(server) == (6, 0, 0)


def test_a_run_that_only_waits_for_its_end_still_needs_a_worker(server):
    manifest = begun(server)
    record_all(server.store, manifest)
    assert to_do(server) == (0, 0, 1)


def test_errors_that_are_tried_again_wait_once_more(server):
    manifest = begun(server)
    record_all(server.store, manifest, but=(2, 3))
    record_one(server.store, manifest, 2, "error")
    record_one(server.store, manifest, 3, "error")
    assert to_do(server) == (0, 0, 1)
    server.store.begin_round(RUN, 0, 2, [2, 3])
    assert to_do(server) == (2, 0, 0)
    record_one(server.store, manifest, 2, "error", round=2)
    assert to_do(server) == (1, 0, 0)


def test_cached_records_of_later_rounds_do_not_hide_what_waits_in_this_one(server):
    # Attempts 0 to 3 are the first round of two tasks in two arms; the cache knows the baseline of both rounds.
    cached = {index: a_record("passed", arm="baseline", run_id=RUN) for index in (0, 2, 4, 6)}
    a_stored_run(server.store, 2, pass_k=2, cached=cached)
    server.store.set_published(RUN, 0, 4)
    assert to_do(server) == (2, 0, 0)


@pytest.mark.parametrize(("halt", "left"), [("paused", (0, 0, 0)), ("cancelled", (0, 1, 0))])
def test_a_halted_run_has_nothing_waiting(server, halt, left):
    begun(server)
    claim(server, 0)
    server.store.halt(RUN, halt)
    assert to_do(server) == left


def test_a_run_of_another_version_or_one_that_cannot_go_on_calls_for_no_worker(server):
    begun(server)
    begun(server, run_id="run-2")
    begun(server, run_id="run-3")
    server.store.client.hset(Keys(RUN).state, "protocol", 999)
    server.store.set_trouble("run-2", 0, "aggregating failed")
    server.store.client.set(Keys("run-3").manifest, b"{}")
    assert to_do(server) == (0, 0, 0)


def test_runs_add_up(server):
    begun(server)
    begun(server, 5, run_id="run-2")
    claim(server, 0, "run-2")
    assert to_do(server) == (6 + 9, 1, 0)


@pytest.mark.slow
def test_the_command_counts_a_run_that_nobody_serves(valkey, tmp_path):
    suite = a_suite(tmp_path, tasks=4)
    uplift(*standalone(suite, "--broker", valkey, "--mock", "--pass-k", "3", "--detach"), cwd=tmp_path)
    told = uplift("queue", "--json", cwd=tmp_path, env={"UPLIFT_BROKER": valkey})
    assert (told.code, told.err) == (0, "")
    assert json.loads(told.out) == {"total": 24, "waiting": 24, "under_way": 0, "finishing": 0, "workers": 0}
    assert told.out in (Path(__file__).parent.parent / "docs" / "scaling.md").read_text()
    said = uplift("queue", "--broker", valkey, cwd=tmp_path)
    assert said.out == "24 to do: 24 attempts waiting, 0 under way, 0 runs to finish; 0 workers\n"


def test_without_a_broker_there_is_nothing_to_count(tmp_path):
    ended = uplift("queue", cwd=tmp_path)
    assert ended.code == 2
    assert "UPLIFT_BROKER" in ended.err
