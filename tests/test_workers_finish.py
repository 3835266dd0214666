"""Ending a run: errors get their rounds, whoever comes late or twice changes nothing, and one artifact remains."""

import pytest
import redis
from builders import an_artifact
from submitting import RUN, a_server, a_stored_run, record_all, record_one, waiting

from aggregate.records.record import AttemptRecord
from producer.runs.submit import go_on
from producer.runs.watch import RunLost
from workers.rounds import finish as finishing
from workers.rounds.finish import ServerAway, finish
from workers.rounds.publish import send_finish
from workers.store.keys import FINISH, LANES, Keys, waiting_keys
from workers.store.run_store import Store


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
    assert go_on(server, server.store.run(RUN)) == manifest.grid.attempts
    return manifest


def test_a_run_whose_records_are_all_there_is_sealed_and_has_one_artifact(server):
    record_all(server.store, begun(server))
    assert end(server) == "finished"
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact.attempts.run, artifact.verdict) == (6, "pass")
    assert server.store.state(RUN).sealed
    assert end(server) == "done already"
    assert server.store.artifacts(RUN) == [artifact]


def test_missing_attempts_are_published_again_and_nothing_else(server):
    record_all(server.store, begun(server), but=(1, 4))
    server.store.client.delete(*waiting_keys(LANES[0]))
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
    assert artifact.verdict == "error"


def test_the_callback_of_an_earlier_generation_does_nothing(server):
    manifest = begun(server)
    go_on(server, server.store.run(RUN))
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
    assert not server.store.put_artifacts(RUN, 1, [an_artifact(status="cancelled")])
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
    begun(server)
    client.flushall()
    send_finish(server.app, RUN, 1, 1)
    assert client.exists(*waiting_keys(FINISH))


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
    assert go_on(server, server.store.run(RUN)) == manifest.grid.attempts
    assert len(calls) == 2


def test_a_run_that_a_server_forgot_while_it_was_published_does_not_come_back_by_halves(
    server, client, monkeypatch
):
    a_stored_run(server.store)
    run = server.store.run(RUN)

    def restarted(*_, **__):
        client.flushall()
        raise redis.ConnectionError("gone")

    monkeypatch.setattr("producer.runs.submit.publish_round", restarted)
    with pytest.raises(RunLost, match=f"run {RUN} vanished from the server"):
        go_on(server, run)
    assert client.keys(f"uplift:{RUN}:*") == []


def test_publishing_gives_up_with_the_way_to_go_on(server, monkeypatch):
    a_stored_run(server.store)

    def away(run_id):
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(server.store, "next_generation", away)
    with pytest.raises(redis.ConnectionError, match=f"uplift resume {RUN}"):
        go_on(server, server.store.run(RUN), insist_seconds=0)


SKILL = {"baseline": "skill"}
WEAK = "baseline pass rate can reach 10.0 % at most, < 20.0 %: it failed 9 of 10 tasks"


def a_failed_baseline(tasks, attempt=1):
    """Cached records of a baseline that failed these tasks, by index in a run of 10 tasks and two arms."""
    records = (
        AttemptRecord(task=f"task-{n}", arm="baseline", model="sim", attempt=attempt, outcome="failed")
        for n in tasks
    )
    return {2 * n + 20 * (attempt - 1): record for n, record in zip(tasks, records, strict=True)}


def test_a_run_ends_as_soon_as_its_baseline_is_sure_to_be_weak(server):
    manifest = begun(server, 10, told=SKILL)
    for task in range(8):
        record_one(server.store, manifest, 2 * task, "failed")
        record_one(server.store, manifest, 2 * task + 1)
    # It could still pass two of ten, which is 0.2 and not below.
    assert server.store.state(RUN).halt == ""
    record_one(server.store, manifest, 16, "timeout")
    assert server.store.state(RUN).halt == "weak_baseline"
    record_one(server.store, manifest, 17)  # was in flight
    assert end(server) == "finished"
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact.status, artifact.verdict, artifact.decision) == (
        "weak_baseline",
        "error",
        None,
    )
    assert artifact.reason == WEAK
    assert (artifact.attempts.run, artifact.attempts.skipped) == (18, 2)
    assert (artifact.execution_pass_rate, artifact.baseline_pass_rate) == (1.0, 0.0)
    # Going on says the same and starts nothing.
    assert go_on(server, server.store.run(RUN)) == 0
    assert server.store.artifacts(RUN) == [artifact]


def test_a_run_that_was_cancelled_with_a_weak_baseline_starts_nothing_when_it_goes_on(server):
    manifest = begun(server, 10, told=SKILL)
    for task in range(9):
        record_one(server.store, manifest, 2 * task, "failed")
    server.store.halt(RUN, "cancelled")
    assert end(server) == "finished"
    assert server.store.artifacts(RUN)[0].status == "cancelled"
    assert go_on(server, server.store.run(RUN)) == 0
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact.status, artifact.reason) == ("weak_baseline", WEAK)


def test_a_task_is_lost_only_when_all_its_attempts_failed(server):
    manifest = begun(server, 10, told=SKILL, pass_k=2)
    for index in range(0, 20, 2):
        record_one(server.store, manifest, index, "failed")
    for index in range(20, 36, 2):
        record_one(server.store, manifest, index, "failed")
    record_one(server.store, manifest, 36, "error")
    assert server.store.state(RUN).halt == ""
    record_one(server.store, manifest, 36, "failed", round=2)
    assert server.store.state(RUN).halt == "weak_baseline"


def test_a_weak_baseline_from_the_cache_ends_the_run_before_its_first_call(server):
    a_stored_run(server.store, 10, told=SKILL, cached=a_failed_baseline(range(9)))
    assert go_on(server, server.store.run(RUN)) == 0
    assert waiting(server.store) == 0
    (artifact,) = server.store.artifacts(RUN)
    assert (artifact.status, artifact.reason) == ("weak_baseline", WEAK)
    assert (artifact.attempts.run, artifact.attempts.skipped) == (9, 11)


def test_what_is_cached_and_what_is_run_make_a_baseline_weak_together(server):
    cached = {**a_failed_baseline(range(8)), **a_failed_baseline(range(9), attempt=2)}
    manifest = a_stored_run(server.store, 10, told=SKILL, cached=cached, pass_k=2)
    assert go_on(server, server.store.run(RUN)) == 40 - 17
    record_one(server.store, manifest, 16, "failed")
    assert server.store.state(RUN).halt == "weak_baseline"


@pytest.mark.parametrize(
    "told", [{"baseline": "bare"}, {**SKILL, "weak_baseline": "warn"}, {**SKILL, "models": ("mock",)}]
)
def test_a_weak_baseline_that_is_no_error_ends_nothing(server, told):
    manifest = begun(server, 10, told=told)
    for task in range(10):
        record_one(server.store, manifest, 2 * task, "failed")
    assert server.store.state(RUN).halt == ""
