"""A team's broker: workers on it share runs, come late, die and are replaced; commands steer from anywhere."""

import base64
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import redis
from conftest import refusing_writes, start_server
from running import a_suite, processes_below, standalone, start_uplift, the_artifact, uplift, worker

from workers.store.keys import Keys
from workers.store.run_store import Store

pytestmark = pytest.mark.slow

QUICK = {"UPLIFT_LEASE_SECONDS": "4"}


def submit(suite, url, *more):
    """Start a detached run and return its id."""
    begun = uplift(*standalone(suite, "--broker", url, "--detach", *more), cwd=suite.parent)
    assert begun.code == 0, begun.err
    return begun.out.strip()


def watch(run_id, url, folder):
    return uplift("watch", run_id, "--broker", url, "--state-root", folder / "state", cwd=folder)


def records_of(client, run_id):
    return list(Store(client).records(run_id))


def test_two_workers_share_one_run_and_the_artifact_names_both(valkey, client, short_tmp):
    suite = a_suite(short_tmp, 30)
    with (
        worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4") as one,
        worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4") as two,
    ):
        ended = uplift(*standalone(suite, "--broker", valkey, "--model", "sim:latency=0.2"), cwd=short_tmp)
    assert ended.code in (0, 1), ended.err
    environment = the_artifact(short_tmp)["environment"]
    assert {int(name.rsplit(":")[-1].split("-")[0]) for name in environment["workers"]} == {one.pid, two.pid}
    done = [record.worker for record in records_of(client, the_artifact(short_tmp)["run_id"])]
    assert min(done.count(name) for name in set(done)) >= 15


def test_a_worker_that_joins_late_takes_its_share(valkey, client, short_tmp, eventually):
    suite = a_suite(short_tmp, 150)
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4"):
        run_id = submit(suite, valkey, "--model", "sim:latency=0.3")
        eventually(lambda: client.hlen(Keys(run_id).records) >= 10)
        with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4") as late:
            assert watch(run_id, valkey, short_tmp).code in (0, 1)
    records = records_of(client, run_id)
    its_own = [record.started_at for record in records if f":{late.pid}-" in record.worker]
    since = [record for record in records if its_own and record.started_at >= min(its_own)]
    # Half would be fair; a worker that hoards would leave it next to nothing.
    assert len(its_own) >= 0.3 * len(since) > 0


def test_killing_a_worker_mid_run_loses_nothing_and_counts_nothing_twice(
    valkey, client, short_tmp, eventually
):
    suite = a_suite(short_tmp, 30)
    with (
        worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4", **QUICK) as victim,
        worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="4", **QUICK),
    ):
        run_id = submit(suite, valkey, "--model", "sim:latency=0.3,cost=0.01")
        eventually(lambda: client.hlen(Keys(run_id).records) >= 8)
        victim.kill()
        ended = watch(run_id, valkey, short_tmp)
    assert ended.code in (0, 1), ended.err
    records = records_of(client, run_id)
    assert len(records) == 60 == len({(record.task, record.arm) for record in records})
    assert {record.outcome for record in records} <= {"passed", "failed"}
    assert any(record.deliveries == 2 for record in records)
    assert the_artifact(short_tmp)["run_id"] == run_id
    assert client.zcard(Keys(run_id).claims) == 0


def test_a_worker_told_to_stop_hands_its_attempts_back_at_once(valkey, client, short_tmp, eventually):
    suite, model, go_on = a_suite(short_tmp, 4), *a_waiting_program(short_tmp)
    with worker(valkey, short_tmp, UPLIFT_DRAIN_SECONDS="1") as leaving:
        run_id = submit(suite, valkey, *model)
        eventually(lambda: client.zcard(Keys(run_id).claims) == 8)
        leaving.terminate()
        leaving.communicate(timeout=60)
    assert leaving.returncode == 0
    assert client.zcard(Keys(run_id).claims) == 0
    go_on.touch()
    with worker(valkey, short_tmp):
        assert watch(run_id, valkey, short_tmp).code in (0, 1)
    assert [record.deliveries for record in records_of(client, run_id)] == [1] * 8


def a_program(folder, text):
    """A shell script as the model `command:program`; returns the words that choose it."""
    program = folder / "program.sh"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    config = folder / "uplift.toml"  # which workers that start in this folder read, too
    config.write_text(
        f'least_sandbox = "off"\n[commands.program]\nargv = ["{program}"]\noutput = "text"\nagent = false\n'
    )
    return ("--config", config, "--model", "command:program")


def a_waiting_program(folder):
    """The same for one that answers once a file is there, which no sandbox hides; returns the words and that file."""
    go_on = folder / "go-on"
    words = a_program(folder, f"cat > /dev/null; until [ -e {go_on} ]; do sleep 0.2; done; echo word1")
    return (*words, "--sandbox", "off"), go_on


def programs(folder):
    """The programs of this test that are still there."""
    return [words for words in processes_below(folder) if "program.sh" in words]


def test_a_run_of_programs_outlives_a_server_that_cannot_save_for_a_while(
    valkey, client, short_tmp, eventually
):
    model, go_on = a_waiting_program(short_tmp)
    with worker(valkey, short_tmp, **QUICK):
        run_id = submit(a_suite(short_tmp, 4), valkey, *model)
        eventually(lambda: len(programs(short_tmp)) >= 8)
        with refusing_writes(client, short_tmp):
            go_on.touch()
            eventually(lambda: not programs(short_tmp))
            time.sleep(1)  # their ends are to be stored, which is refused
        eventually(lambda: client.hlen(Keys(run_id).records) == 8)
        assert watch(run_id, valkey, short_tmp).code in (0, 1)
    assert {record.outcome for record in records_of(client, run_id)} == {"passed", "failed"}


def test_a_worker_that_is_starting_programs_leaves_when_it_is_told_to(valkey, client, short_tmp, eventually):
    model = a_program(short_tmp, "cat > /dev/null; sleep 0.4; echo word1")
    with worker(valkey, short_tmp, UPLIFT_DRAIN_SECONDS="1", UPLIFT_IN_FLIGHT="60") as leaving:
        run_id = submit(a_suite(short_tmp, 400), valkey, *model)
        eventually(lambda: client.zcard(Keys(run_id).claims) >= 30)
        leaving.terminate()
        leaving.communicate(timeout=60)
    assert leaving.returncode == 0
    assert client.zcard(Keys(run_id).claims) == 0
    eventually(lambda: not programs(short_tmp))


def test_half_a_character_in_an_output_is_judged_like_any_other(valkey, client, short_tmp):
    """Its judge quotes it, and no store can hold the quotation."""
    model = a_program(short_tmp, """cat > /dev/null; echo '{"Hell\\ud83d": 1}'""")
    suite = a_suite(short_tmp, 1)
    strict = "{type: json-schema, schema: {additionalProperties: {type: string}}}"
    suite.write_text(suite.read_text().replace("{type: contains, expected: [word0]}", strict))
    with worker(valkey, short_tmp):
        ended = uplift(*standalone(suite, "--broker", valkey, *model), cwd=short_tmp)
    assert ended.code in (0, 1), ended.err
    records = records_of(client, the_artifact(short_tmp)["run_id"])
    assert [record.outcome for record in records] == ["failed", "failed"]
    assert all("Hell?" in record.details for record in records)


def test_cancel_ends_a_run_whose_batches_are_handed_back(valkey, client, short_tmp, eventually):
    run_id = submit(a_suite(short_tmp, 4), valkey, "--mock")
    client.hset(Keys(run_id).tasks, "1", b"no task")
    with worker(valkey, short_tmp):
        eventually(lambda: client.exists(Keys(run_id).refused))
        here = ("--broker", valkey, "--state-root", short_tmp / "state")
        cancelled = uplift("cancel", run_id, *here, cwd=short_tmp, timeout=60)
    assert "cannot be read" in cancelled.err
    assert Store(client).artifacts(run_id) is not None
    assert client.zcard(Keys(run_id).claims) == 0


def test_a_plain_celery_worker_does_the_same(valkey, short_tmp, eventually):
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "workers", "worker", "--loglevel", "error"],
        cwd=short_tmp,
        env={**os.environ, "UPLIFT_BROKER": valkey},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ended = uplift(*standalone(a_suite(short_tmp), "--broker", valkey, "--mock"), cwd=short_tmp)
        assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_without_a_worker_the_command_says_how_to_start_one(valkey, short_tmp, eventually):
    process = start_uplift(*standalone(a_suite(short_tmp), "--broker", valkey, "--mock"), cwd=short_tmp)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "no worker answers" in line:
            break
    assert "uplift worker --broker" in lines[-1]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_status_cancel_and_resume_work_from_another_terminal(valkey, client, short_tmp, eventually):
    suite = a_suite(short_tmp, 60)
    here = ["--broker", valkey, "--state-root", short_tmp / "state"]
    with worker(valkey, short_tmp, UPLIFT_IN_FLIGHT="2"):
        run_id = submit(suite, valkey, "--model", "sim:latency=0.15")
        eventually(lambda: client.hlen(Keys(run_id).records) >= 2)
        status = uplift("status", run_id, *here, "--json", cwd=short_tmp).line
        assert (status["state"], status["total"], status["workers"]) == ("running", 120, 1)
        cancelled = uplift("cancel", run_id, *here, cwd=short_tmp)
        assert cancelled.code == 3
        before = client.hlen(Keys(run_id).records)
        assert before < 120
        resumed = uplift("resume", run_id, *here, cwd=short_tmp)
        assert resumed.code in (0, 1), resumed.err
    assert client.hlen(Keys(run_id).records) == 120
    assert the_artifact(short_tmp)["status"] == "finished"


def test_messages_hold_ids_only(valkey, client, short_tmp):
    suite = a_suite(short_tmp)
    suite.write_text(suite.read_text().replace("Say word0.", "Say CANARY."))
    submit(suite, valkey, "--mock")
    held = b"".join(
        message for lane in client.keys("uplift:v*.lane.*") for message in client.lrange(lane, 0, -1)
    )

    bodies = [
        base64.b64decode(json.loads(m)["body"])
        for lane in client.keys("uplift:v*.lane.*")
        for m in client.lrange(lane, 0, -1)
    ]
    assert len(bodies) == 8
    assert b"CANARY" not in held + b"".join(bodies)
    assert b"Write three lines" not in held + b"".join(bodies)
    assert b"tasks task-0" in held


def test_a_wrong_password_and_an_evicting_server_are_refused(short_tmp):
    process, url = start_server(short_tmp, "--maxmemory-policy", "allkeys-lru")
    try:
        suite = a_suite(short_tmp)
        ended = uplift(*standalone(suite, "--broker", url, "--mock"), cwd=short_tmp)
        assert (ended.code, "evict" in ended.err) == (3, True)
        made = redis.Redis.from_url(url)
        made.config_set("requirepass", "right")
        made.close()
        ended = uplift(*standalone(suite, "--broker", url + "?password=wrong", "--mock"), cwd=short_tmp)
        assert ended.code == 3
        assert "password" in ended.err
        assert len(ended.err.strip().splitlines()) == 1
    finally:
        process.kill()
        process.wait()
