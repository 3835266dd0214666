"""Ending a run: errors get their rounds, whoever comes late or twice changes nothing, and one artifact remains."""

import pytest
import redis
from submitting import RUN, a_server, a_stored_run, record_all, record_one, waiting

from aggregate.records import AttemptRecord
from producer.submit import go_on
from workers import finish as finishing
from workers.finish import ServerAway, finish, grid_of
from workers.look import verdict_settled
from workers.settings import FINISH
from workers.store import Keys, Store


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.close()
    made.store.client.close()


def end(server, generation=1, number=1):
    return finish(server.app, server.settings, RUN, generation, number)


def begun(server, tasks=3, **fields):
    manifest = a_stored_run(server.store, tasks, **fields)
    assert go_on(server, RUN) == grid_of(manifest).attempts
    return manifest


def test_a_run_whose_records_are_all_there_is_sealed_and_has_one_artifact(server):
    record_all(server.store, begun(server))
    assert end(server) == "finished"
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact["attempts"]["run"], artifact["verdict"]) == (6, "pass")
    assert server.store.state(RUN).sealed
    assert end(server) == "done already"
    assert server.store.artifacts(RUN) == [artifact]


def test_missing_attempts_are_published_again_and_nothing_else(server):
    record_all(server.store, begun(server), but=(1, 4))
    server.store.client.delete("uplift.lane.0", "uplift.lane.0\x06\x163")
    assert end(server) == "another round"
    assert waiting(server.store) == 2
    assert server.store.artifacts(RUN) is None


def test_a_callback_that_comes_twice_publishes_the_same_attempts_again(server):
    manifest = begun(server)
    record_all(server.store, manifest, but=(1, 4))
    assert end(server) == "another round"
    record_one(server.store, manifest, 1)
    assert end(server) == "another round"
    assert server.store.begin_round(RUN, 1, 2, []) == [1, 4]


def test_errors_are_tried_twice_more_and_then_final(server):
    manifest = begun(server)
    record_all(server.store, manifest, outcome="error")
    assert end(server, number=1) == "another round"
    for index in range(6):
        record_one(server.store, manifest, index, "error", round=2)
    assert end(server, number=2) == "another round"
    for index in range(6):
        record_one(server.store, manifest, index, "error", round=3)
    assert end(server, number=3) == "finished"
    (artifact,) = server.store.artifacts(RUN)
    assert artifact["verdict"] == "error"


def test_the_callback_of_an_earlier_generation_does_nothing(server):
    manifest = begun(server)
    go_on(server, RUN)
    record_all(server.store, manifest)
    assert end(server, generation=1) == "not now"
    assert server.store.artifacts(RUN) is None
    assert end(server, generation=2) == "finished"


def test_a_run_that_is_resumed_while_it_is_sealed_stays_open(server, monkeypatch):
    begun(server)
    server.store.halt(RUN, "cancelled")
    real = finishing.run_module

    def resumed_meanwhile(settings, module, *arguments):
        server.store.next_generation(RUN)
        return real(settings, module, *arguments)

    monkeypatch.setattr(finishing, "run_module", resumed_meanwhile)
    end(server)
    state = server.store.state(RUN)
    assert (state.sealed, state.halt, state.generation) == (False, "", 2)
    assert server.store.artifacts(RUN) is None


def test_artifacts_of_an_earlier_generation_are_not_kept(server):
    begun(server)
    assert server.store.seal(RUN, 1) is not None
    server.store.next_generation(RUN)
    assert not server.store.put_artifacts(RUN, 1, [{"status": "cancelled"}])
    assert server.store.seal(RUN, 1) is None
    assert not server.store.state(RUN).sealed


def test_the_first_sealing_counts_as_the_end(server):
    begun(server)
    first = server.store.seal(RUN, 1).sealed_at
    assert server.store.seal(RUN, 1).sealed_at == first


def test_a_server_that_goes_away_while_aggregating_is_no_failure_of_the_run(server, monkeypatch):
    record_all(server.store, begun(server))
    real = finishing.run_module

    def without_server(settings, module, *arguments):
        from dataclasses import replace

        return real(replace(settings, broker="redis://127.0.0.1:1/0"), module, *arguments)

    monkeypatch.setattr(finishing, "run_module", without_server)
    with pytest.raises(ServerAway):
        end(server)
    assert server.store.state(RUN).trouble is None
    monkeypatch.setattr(finishing, "run_module", real)
    assert end(server) == "finished"


def test_what_a_flush_leaves_of_a_run_is_no_run(server, client):
    begun(server)
    client.flushall()
    client.hset(Keys(RUN).state, "trouble", "a worker's last words")
    assert Store(client).state(RUN) is None
    assert end(server) == "gone"


def test_the_callback_finds_its_queue_even_after_a_flush(server, client):
    client.flushall()
    begun(server)
    bound = client.smembers("_kombu.binding.uplift")
    assert any(FINISH.encode() in member for member in bound)


def test_passes_from_the_cache_count_when_a_run_looks_whether_its_verdict_is_settled(server):
    """A baseline that passed everything is in the cache; a candidate that failed once may still end level."""
    passed = {
        index: AttemptRecord(task=f"task-{task}", arm="baseline", attempt=number, outcome="passed")
        for index, task, number in ((0, 0, 1), (2, 1, 1), (4, 0, 2), (6, 1, 2))
    }
    manifest = a_stored_run(server.store, 2, cached=passed, pass_k=2, stop_early="verdict")
    grid, info = grid_of(manifest), server.store.info(RUN)
    assert {unit: count[2] for unit, count in server.store.unit_counts(RUN, grid).items()} == {
        0: True,
        2: True,
    }
    for index in (1, 3):
        record_one(server.store, manifest, index, "failed")
    # Both candidates' tasks failed and have an attempt left: delta may end anywhere from -1 to 0.
    assert not verdict_settled(server.store, manifest, info, grid)
    for index in (5, 7):
        record_one(server.store, manifest, index, "failed")
    assert verdict_settled(server.store, manifest, info, grid)


def test_a_paused_run_is_not_finished(server):
    record_all(server.store, begun(server))
    server.store.halt(RUN, "paused")
    assert end(server) == "not now"


def test_publishing_waits_for_a_server_that_went_away(server, monkeypatch):
    manifest = a_stored_run(server.store)
    real, calls = server.store.next_generation, []

    def away_at_first(run_id):
        calls.append(run_id)
        if len(calls) == 1:
            raise redis.ConnectionError("gone")
        return real(run_id)

    monkeypatch.setattr(server.store, "next_generation", away_at_first)
    assert go_on(server, RUN) == grid_of(manifest).attempts
    assert len(calls) == 2


def test_publishing_gives_up_with_the_way_to_go_on(server, monkeypatch):
    a_stored_run(server.store)

    def away(run_id):
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(server.store, "next_generation", away)
    with pytest.raises(redis.ConnectionError, match=f"uplift resume {RUN}"):
        go_on(server, RUN, insist_seconds=0)
