"""A server that is full: a run that cannot fit is refused, one that waits says why, and goes on when there is room."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from builders import a_record
from conftest import refusing_writes
from running import a_suite
from submitting import RUN, a_server, a_stored_run, record_all, record_one
from test_producer_watch import Clock, take_all

from judges.judgment import Completion
from producer import plan
from producer.baselines.cache import Reuse
from producer.plan import Plan
from producer.runs.submit import DoesNotFit, check_size, go_on, submit
from producer.runs.watch import Interrupted, RunLost, Watch
from producer.settings.run_settings import RunSettings
from workers.store.bundles import Bundle
from workers.store.keys import Keys
from workers.store.redis_client import UnusableServer, forget_worker, memory, sign_of_life


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
def said(clock):
    return []


@pytest.fixture
def follow(server, clock, said):
    """Watch the run to its end; `said` gets what is said, each with the seconds since the beginning."""

    def to_its_end(**more: Any) -> Any:
        def say(text: str) -> None:
            said.append((clock.now - 1000, text))

        return Watch(server, server.store.run(RUN), clock=clock, sleep=clock.sleep, say=say, **more).follow()

    return to_its_end


@pytest.fixture
def limit(client) -> Callable[[int], None]:
    """Leave so many bytes of room on the server; less than nothing is too much in use."""

    def leave(room: int) -> None:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + room)

    return leave


def a_published_run(server):
    manifest = a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    return manifest


# Just below what is used, and just above: then small writes pass now and then, and those of workers do not.
@pytest.mark.parametrize("room", [-1_000, 20_000])
def test_a_full_server_is_said_within_ten_seconds_and_nothing_of_workers(
    server, follow, clock, said, client, limit, room
):
    manifest = a_published_run(server)
    limit(room)
    clock.then[600] = lambda: client.config_set("maxmemory", 0)  # after 150 s
    clock.then[640] = lambda: (record_all(server.store, manifest), take_all(server))
    (artifact,) = follow()
    assert artifact.attempts.run == 6
    (full_at, full), (again_at, again), *lonely = said
    assert full_at <= 10
    assert full.startswith("the server is out of memory (maxmemory is reached)")
    assert "the run waits" in full
    assert 150 <= again_at <= 160
    assert "goes on" in again
    assert all(at > 155 for at, _ in lonely)  # only then does it mean something that nobody answers


def test_workers_that_cannot_give_signs_of_life_stay_in_the_view(server, follow, clock, client, limit):
    manifest = a_published_run(server)
    for name in ("a:1", "b:2", "c:3"):
        sign_of_life(client, name, {"name": name})
    views: list[Any] = []
    limit(-1_000)
    clock.then[100] = lambda: [forget_worker(client, name) for name in ("a:1", "b:2", "c:3")]
    clock.then[200] = lambda: client.config_set("maxmemory", 0)
    clock.then[240] = lambda: (record_all(server.store, manifest), take_all(server))
    follow(show=views.append)
    assert {view.workers for view in views[:200]} == {3}
    assert views[-1].workers == 0


def test_records_that_still_come_do_not_hide_why_no_worker_is_seen(
    server, follow, clock, said, client, limit
):
    manifest = a_stored_run(server.store, 60)
    go_on(server, server.store.run(RUN))
    limit(-1_000)

    def record(index: int) -> None:  # claimed before, so that the script stores it on a full server too
        client.config_set("maxmemory", 0)
        record_one(server.store, manifest, index)
        limit(-1_000)

    for index in range(20):
        clock.then[8 * (index + 1)] = lambda index=index: record(index)
    clock.then[170] = lambda: (
        client.config_set("maxmemory", 0),
        record_all(server.store, manifest, but=tuple(range(20))),
        take_all(server),
    )
    follow()
    assert "out of memory" in said[0][1]
    assert not any("no worker answers" in text for at, text in said if at < 40)


def test_whoever_stops_watching_a_server_that_cannot_save_waits_until_that_can_be_written(
    server, follow, clock, client, short_tmp
):
    a_published_run(server)
    clock.then[60] = lambda: client.config_set("stop-writes-on-bgsave-error", "no")
    with refusing_writes(client, short_tmp), pytest.raises(Interrupted, match=f"uplift resume {RUN}"):
        follow(stop=lambda: clock.sleeps > 2)
    assert clock.sleeps >= 60
    assert server.store.state(RUN).halt == "paused"


def test_a_run_that_fills_the_server_can_be_stopped_and_cancelled(server, follow, limit):
    a_published_run(server)
    limit(-1_000)
    with pytest.raises(Interrupted, match=f"uplift resume {RUN}"):
        follow(stop=lambda: True)
    assert server.store.state(RUN).halt == "paused"
    assert server.store.halt(RUN, "cancelled")
    assert server.store.state(RUN).halt == "cancelled"


def test_after_as_long_as_workers_insist_the_watcher_says_how_to_go_on(server, follow, clock, said, limit):
    a_published_run(server)
    limit(-1_000)
    with pytest.raises(RunLost, match=f"out of memory.*records are kept.*uplift resume {RUN}"):
        follow()
    assert 300 <= clock.now - 1000 <= 320
    assert len(said) == 1


def test_a_server_that_had_room_meanwhile_is_waited_for_as_long_again(server, follow, clock, client, limit):
    manifest = a_published_run(server)
    limit(-1_000)
    clock.then[800] = lambda: client.config_set("maxmemory", 0)  # after 200 s
    clock.then[1000] = lambda: limit(-1_000)
    clock.then[1800] = lambda: client.config_set("maxmemory", 0)
    clock.then[1840] = lambda: (record_all(server.store, manifest), take_all(server))
    (artifact,) = follow()
    assert artifact.attempts.run == 6


def test_what_a_server_with_room_refuses_is_not_waited_for(server, follow, monkeypatch):
    def refuse(_: Any) -> None:
        raise redis.ResponseError("WRONGTYPE of value")

    a_published_run(server)
    monkeypatch.setattr(server.store, "progress", refuse)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        follow()


def words(characters: int, seed: int = 1) -> str:
    """Text that compresses no better than prose."""
    drawn = random.Random(seed)
    letters = (drawn.choice("etaoinshrdlu ") for _ in range(characters))
    return "".join(letters)


def a_plan(folder: Path, tasks: int = 200, **options: Any) -> Plan:
    suite = a_suite(folder, tasks)
    settings = RunSettings(
        task_suite=suite, skill_path=folder / "skill", state_root=folder / "state", models=("sim",), **options
    )
    return plan.make(settings)


def test_a_run_that_cannot_fit_is_refused_with_the_figures_before_anything_is_written(
    server, client, limit, short_tmp
):
    limit(125_000)
    keys = set(client.keys())
    with pytest.raises(DoesNotFit) as refused:
        submit(server, a_plan(short_tmp, pass_k=5), Reuse())
    assert refused.value.exit_code == 3
    assert "the run needs at least 0.8 MB" in str(refused.value)
    assert "2,000 new ones of 400 bytes" in str(refused.value)
    assert "0.1 MB of its maxmemory" in str(refused.value)
    assert "raise maxmemory" in refused.value.remedy
    assert set(client.keys()) == keys


def test_a_run_on_a_server_that_is_full_already_is_refused_in_one_line(server, limit, short_tmp):
    limit(-10_000)
    with pytest.raises(DoesNotFit, match=r"0\.0 MB of its maxmemory"):
        submit(server, a_plan(short_tmp, 4), Reuse())


def test_a_run_that_may_not_fit_is_told_so_and_begins(server, limit, short_tmp):
    said: list[str] = []
    limit(2_000_000)
    run = submit(server, a_plan(short_tmp, pass_k=5), Reuse(), say=said.append)
    (warning,) = said
    assert "may fill the server: it takes about 2.8 MB" in warning
    assert "2.0 MB of its maxmemory" in warning
    assert "900 bytes, an assumption" in warning
    assert server.store.state(run.run_id) is not None


def test_a_run_that_fits_and_a_server_without_a_limit_cause_no_words(server, client, limit, short_tmp):
    said: list[str] = []
    limit(50_000_000)
    submit(server, a_plan(short_tmp), Reuse(), say=said.append)
    client.config_set("maxmemory", 0)
    submit(server, a_plan(short_tmp, pass_k=50), Reuse(), say=said.append)
    assert said == []


def test_records_that_are_there_tell_how_large_the_others_will_be(server, limit, short_tmp):
    said: list[str] = []
    made = a_plan(short_tmp, 20)
    answer = Completion(text=words(100_000))
    cached = {index: a_record(completion=answer, run_id=made.run_id) for index in range(0, 10, 2)}
    limit(1_500_000)
    submit(server, made, Reuse(cached=cached), say=said.append)
    (warning,) = (text for text in said if "may fill the server" in text)
    assert "bytes, as in the 5 that are there" in warning


def test_records_that_are_there_need_room_too(server, limit, short_tmp):
    made = a_plan(short_tmp, 20)
    answer = Completion(text=words(100_000))
    cached = {index: a_record(completion=answer, run_id=made.run_id) for index in range(0, 10, 2)}
    limit(150_000)
    with pytest.raises(DoesNotFit, match=r"records that are there 0\.3 MB"):
        check_size(server.store, made, Reuse(cached=cached))


@pytest.mark.parametrize("ends", [{"stop_early": True}, {"budget_usd": 5.0}])
def test_a_run_that_may_end_early_is_not_refused_for_records_that_it_may_not_need(
    server, limit, short_tmp, ends
):
    said: list[str] = []
    limit(4_000_000)  # and 20,000 of the smallest records need 8
    submit(server, a_plan(short_tmp, pass_k=50, **ends), Reuse(), say=said.append)
    assert "may fill the server" in said[0]


def test_skills_need_room_unless_they_are_there_already(server, client, limit, short_tmp):
    made = a_plan(short_tmp, 4)
    large = Bundle("ab" * 32, bytes(1_000_000))
    made = replace(made, fixtures=large)
    limit(900_000)
    with pytest.raises(DoesNotFit, match=r"bundles 1\.0 MB"):
        check_size(server.store, made, Reuse())
    client.config_set("maxmemory", 0)
    server.store.put_bundle(large.digest, large.data)
    limit(900_000)
    assert check_size(server.store, made, Reuse()) is None


def test_a_run_that_is_there_already_needs_no_room_a_second_time(server, limit, short_tmp):
    made = a_plan(short_tmp, pass_k=50)
    submit(server, made, Reuse())
    limit(7_000_000)
    submit(server, made, Reuse())


def test_a_server_that_is_full_before_all_is_published_is_said_with_how_to_go_on(server, client, limit):
    a_stored_run(server.store)
    limit(-1_000)
    with pytest.raises(UnusableServer, match=f"out of memory.*uplift resume {RUN}"):
        go_on(server, server.store.run(RUN))
    client.config_set("maxmemory", 0)
    assert go_on(server, server.store.run(RUN)) == 6


def test_what_is_said_before_a_run_is_about_what_it_takes(server, client, limit, short_tmp):
    said: list[str] = []
    made = a_plan(short_tmp, pass_k=5)
    limit(2_000_000)
    before, _ = memory(client)
    run = submit(server, made, Reuse(), say=said.append)
    client.config_set("maxmemory", 0)
    for index in range(run.grid.attempts):
        record_one(server.store, run.manifest, index)
    assert client.hlen(Keys(run.run_id).records) == 2000
    client.config_set("maxmemory", 1)
    used, _ = memory(client)
    assert 0.2 < (used - before) / 2.8e6 < 1.2


def test_a_server_that_does_not_tell_its_memory_is_taken_as_it_is(client):
    client.config_set("maxmemory", 1)
    client.execute_command("ACL", "SETUSER", "some", "on", "nopass", "~*", "+@all", "-info")
    path = client.connection_pool.connection_kwargs["path"]
    other = redis.Redis.from_url(f"unix://some:x@{path}")
    assert memory(other) is None
    other.close()
