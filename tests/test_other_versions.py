"""Runs and workers of another version: told apart, left alone or ended with a reason; never a loop or a traceback."""

import json
import logging

import pytest
from running import start_uplift, uplift
from submitting import RUN, a_server, a_stored_run

from producer.runs.submit import go_on
from workers.process.celery_app import App
from workers.process.engine import Batch, Engine
from workers.store.keys import PROTOCOL, Keys
from workers.store.process_settings import ProcessSettings
from workers.store.redis_client import sign_of_life, versions
from workers.store.run_store import OtherVersion

WRONG = ["another protocol", "an unknown field", "no json", "an unknown halt", "a broken description"]


@pytest.fixture
def server(valkey):
    made = a_server(valkey)
    yield made
    made.app.disconnect()
    made.app.close()
    made.store.client.close()


def spoil(server, wrong):
    """Make a run one that another version could have written."""
    client, keys = server.store.client, Keys(RUN)
    a_stored_run(server.store)
    manifest = json.loads(client.get(keys.manifest))
    match wrong:
        case "another protocol":
            client.set(keys.manifest, json.dumps({**manifest, "format_version": 1}))
        case "an unknown field":
            client.set(keys.manifest, json.dumps({**manifest, "colour": "blue"}))
        case "no json":
            client.set(keys.manifest, b"\xff")
        case "an unknown halt":
            client.hset(keys.state, "halt", "bored")
        case _:
            client.set(keys.info, b"?")


def read(server):
    server.store.state(RUN)
    server.store.run(RUN)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_another_version_wrote_is_an_error_with_a_remedy(server, wrong):
    spoil(server, wrong)
    with pytest.raises(
        OtherVersion, match=f"run {RUN} was begun by another version of Uplift .*start it again"
    ):
        read(server)


@pytest.mark.parametrize("wrong", WRONG)
def test_commands_say_so_in_a_line_and_others_are_listed(server, valkey, short_tmp, wrong):
    spoil(server, wrong)
    here = ["--broker", valkey, "--state-root", short_tmp / "state"]
    for command in ("status", "watch", "resume"):
        ended = uplift(command, RUN, *here, cwd=short_tmp)
        assert ended.code == 2, (command, ended.err)
        assert "another version of Uplift" in ended.err
        assert len(ended.err.strip().splitlines()) == 1
    a_stored_run(server.store, run_id="run-2")
    sign_of_life(server.store.client, "old:1", {"name": "old:1"})
    ended = uplift("runs", *here, cwd=short_tmp)
    assert ended.code == 0
    assert [line.split()[:2] for line in ended.out.splitlines()[1:]] == [["run-2", "running"], [RUN, "other"]]
    assert "1 of Uplift 0.1.0, which cannot serve runs of this version" in ended.err


def test_a_worker_leaves_what_it_cannot_read_to_others_with_one_line(server, valkey, caplog):
    spoil(server, "an unknown field")
    engine = Engine(ProcessSettings(valkey))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(OtherVersion) as refused:
                engine.run_batch(Batch(RUN, 1, (0,), False))
            assert engine.leave_to_others(RUN, refused.value)
    assert len([line for line in caplog.messages if "left to other workers" in line]) == 1
    (look,) = server.store.open_runs().values() if server.store.next_generation(RUN) else ()
    engine.leave_to_others(RUN, refused.value)
    server.store.set_trouble(RUN, server.store.state(RUN).generation, "nobody can")
    assert not engine.leave_to_others(RUN, refused.value)
    assert look.refused == {}  # whoever resumes a run asks everybody anew
    engine.close()


def test_a_real_worker_hands_back_again_and_again_and_says_so_in_one_line(
    server, valkey, short_tmp, eventually
):
    client, keys = server.store.client, Keys(RUN)
    a_stored_run(server.store)
    go_on(server, server.store.run(RUN))
    client.set(keys.manifest, client.get(keys.manifest).replace(b"{", b'{"colour": "blue", ', 1))
    with (short_tmp / "log").open("w") as log:
        process = start_uplift("worker", "--broker", valkey, cwd=short_tmp, stdout=log, stderr=log)
        try:
            eventually(lambda: client.info("commandstats").get("cmdstat_hset", {}).get("calls", 0) > 24)
        finally:
            process.terminate()
            process.wait(30)
    said = (short_tmp / "log").read_text()
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if RUN in line]) == 1


def test_a_job_that_cannot_be_read_goes_back_and_one_of_a_run_that_is_over_does_not(
    server, valkey, monkeypatch
):
    from celery.exceptions import Reject

    from workers.process import celery_app

    spoil(server, "an unknown field")
    monkeypatch.setattr(celery_app, "OTHERS_SECONDS", (0.0, 0.0))
    app = App(ProcessSettings(valkey))
    job = app.tasks["uplift.run_batch"]
    with pytest.raises(Reject) as rejected:
        job(RUN, 1, [0])
    assert rejected.value.requeue
    server.store.set_trouble(RUN, server.store.state(RUN).generation, "nobody can")
    assert job(RUN, 1, [0]) == 0
    app.engine.close()
    app.close()


def test_versions_are_counted_and_those_that_cannot_serve_are_named():
    beats = [
        {"version": "0.3.0", "protocol": PROTOCOL},
        {"version": "0.3.0", "protocol": PROTOCOL},
        {"name": "old"},
    ]
    assert versions(beats) == "1 of Uplift 0.1.0, which cannot serve runs of this version, 2 of Uplift 0.3.0"
    assert versions([]) == ""
