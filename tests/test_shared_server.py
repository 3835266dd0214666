"""A server that others use too: our keys and channels are all we need, and what others have is left alone."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import resources

import pytest
import redis
from browsing import await_heard_worker
from celery import Celery
from conftest import start_server
from doc_blocks import ROOT, blocks
from running import a_suite, processes_below, standalone, start_uplift, uplift, worker
from test_monitor import ask, await_answer, free_port

pytestmark = pytest.mark.slow
LOGIN = "uplift:correct-horse"


@pytest.fixture
def port_and_admin(short_tmp):
    """A server that listens on a port, since only addresses with a host can name a user."""
    port = free_port()
    process, url = start_server(short_tmp, "--port", str(port))
    with redis.Redis.from_url(url) as admin:
        yield port, admin
    process.kill()
    process.wait()


def the_recipe():
    """The words after `redis-cli` in docs/deployment.md."""
    [block] = [
        one for one in blocks(ROOT / "docs" / "deployment.md") if "tests/test_shared_server.py" in one.words
    ]
    return shlex.split(block.text.replace("\\\n", " "))[1:]


def test_the_recipe_allows_what_our_scripts_do():
    scripts = resources.files("workers.store").joinpath("lua").iterdir()
    called = {word for one in scripts for word in re.findall(r"call\('(\w+)'", one.read_text())}
    assert {f"+{word.lower()}" for word in called} <= set(the_recipe())


def test_the_rights_of_the_recipe_are_enough_for_a_run(short_tmp, port_and_admin):
    port, admin = port_and_admin
    admin.execute_command(*the_recipe())
    admin.acl_log_reset()
    url = f"redis://evals:PASSWORD@127.0.0.1:{port}/0"
    with worker(url, short_tmp):
        words = (
            "--model",
            "sim:candidate=1,error=0.3",
            "--rpm",
            "6000",
            "--tpm",
            "6000000",
            "--budget-usd",
            "5",
        )
        ended = uplift(*standalone(a_suite(short_tmp, 2), "--broker", url, *words), cwd=short_tmp)
    assert ended.code in (0, 1), ended.err
    assert admin.acl_log() == []
    keys = list(admin.scan_iter())
    assert [key for key in keys if not key.startswith(b"uplift:")] == []
    assert [key for key in keys if b"task-meta" in key] == [], "nobody reads the results of batches"


@pytest.mark.long
def test_the_rights_of_the_recipe_are_enough_for_runs_flower_and_doctor(
    short_tmp, port_and_admin, eventually
):
    port, admin = port_and_admin
    admin.execute_command(*the_recipe())
    admin.acl_log_reset()
    url = f"redis://evals:PASSWORD@127.0.0.1:{port}/0"
    suite = a_suite(short_tmp)
    flower_port = free_port()
    flower = start_uplift(
        *("monitor", "--broker", url, "--port", str(flower_port)),
        cwd=short_tmp,
        env={"UPLIFT_MONITOR_PASSWORD": LOGIN.partition(":")[2]},
    )
    try:
        await_answer(flower, flower_port)
        with worker(url, short_tmp):
            await_heard_worker(f"http://127.0.0.1:{flower_port}", LOGIN)
            limited = ("--model", "sim:candidate=1,error=0.3", "--rpm", "6000", "--budget-usd", "5")
            ended = uplift(*standalone(suite, "--broker", url, *limited), cwd=short_tmp)
            assert ended.code in (0, 1), ended.err
            api = f"http://127.0.0.1:{flower_port}/api"
            eventually(lambda: "SUCCESS" in ask(f"{api}/tasks", LOGIN)[1])
            workers = json.loads(ask(f"{api}/workers?refresh=1", LOGIN)[1])
            assert [one["stats"]["pool"]["max-concurrency"] for one in workers.values()] == [1402]
            assert "v4.lane.7" in ask(f"http://127.0.0.1:{flower_port}/broker", LOGIN)[1]
            told = uplift("doctor", "--broker", url, "--json", cwd=short_tmp)
            checks = {one["name"]: one["status"] for one in json.loads(told.out)["checks"]}
            assert {checks[name] for name in ("server", "eviction", "persistence", "workers")} == {"ok"}
            slow = standalone(
                suite, "--broker", url, "--model", "sim:latency=1", "--in-flight", "1", "--detach"
            )
            run_id = uplift(*slow, cwd=short_tmp).out.strip()
            for words in (["cancel"], ["resume"], ["runs", "--delete"]):
                where = (run_id, "--state-root", short_tmp / "state", "--broker", url)
                said = uplift(*words, *where, cwd=short_tmp).err
            assert said == f"uplift: deleted {run_id}\n"
    finally:
        flower.terminate()
        flower.communicate(timeout=30)
    assert admin.acl_log() == []
    assert [key for key in admin.scan_iter() if not key.startswith(b"uplift:")] == []


def test_two_prefixes_on_one_database_are_two_tenants(short_tmp, valkey, client):
    suite = a_suite(short_tmp)
    here, there = {"UPLIFT_PREFIX": "team-a:"}, {"UPLIFT_PREFIX": "team-b:"}
    with worker(valkey, short_tmp, **here):
        ended = uplift(*standalone(suite, "--broker", valkey, "--mock", "--detach"), cwd=short_tmp, env=there)
        waits = ended.out.split()[-1]
        ended = uplift(*standalone(suite, "--broker", valkey, "--mock"), cwd=short_tmp, env=here)
        assert ended.code == 0, ended.err
        told = uplift("runs", "--broker", valkey, "--json", cwd=short_tmp, env=there)
        assert [one["run_id"] for one in json.loads(told.out)] == [waits]
        told = uplift("doctor", "--broker", valkey, cwd=short_tmp, env=there)
        assert "none answers" in told.out
        assert client.hlen(f"team-b:{waits}:records") == 0
        assert {key.partition(b":")[0] for key in client.scan_iter()} == {b"team-a", b"team-b"}


def test_a_run_of_a_private_server_is_resumed_with_its_prefix_and_kept_with_another(short_tmp, eventually):
    words, mine = (
        standalone(a_suite(short_tmp), "--model", "sim:latency=0.5", "--in-flight", "1"),
        {"UPLIFT_PREFIX": "mine:"},
    )
    process = start_uplift(*words, cwd=short_tmp, env=mine)
    embedded = short_tmp / "state" / "embedded"
    # What is in its file survives; the name of the state comes with the rest of the run, at once.
    eventually(lambda: any(b":state" in file.read_bytes() for file in embedded.rglob("*.incr.aof")))
    process.kill()
    process.communicate()
    [run] = embedded.iterdir()
    eventually(lambda: not processes_below(short_tmp))
    resume = ("resume", run.name, "--state-root", short_tmp / "state")
    refused = uplift(*resume, cwd=short_tmp)
    assert refused.code == 3
    assert f"run {run.name} was started with UPLIFT_PREFIX=mine:" in refused.err
    ended = uplift(*resume, cwd=short_tmp, env=mine)
    assert ended.code in (0, 1), ended.err


@pytest.mark.parametrize("prefix", ["", "uplift", "a:b:", "a*:", ":", f"{'x' * 65}:"])
def test_a_prefix_that_could_be_mistaken_for_another_is_refused(short_tmp, prefix):
    ended = uplift("runs", "--broker", "redis://127.0.0.1:1", cwd=short_tmp, env={"UPLIFT_PREFIX": prefix})
    assert ended.code == 2, ended.err
    assert ended.err.startswith(f"uplift: UPLIFT_PREFIX is {prefix!r}; give letters, digits, . _ or - and")


FOREIGN = """\
import sys, time
import redis
from celery import Celery

app = Celery("foreign", broker=sys.argv[1], backend=sys.argv[1])
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)

@app.task(name="foreign.count")
def count():
    time.sleep(0.5)
    return redis.Redis.from_url(sys.argv[2]).incr("foreign:ran")

app.worker_main(["worker", "--pool", "threads", "--concurrency", "1", "--loglevel", "error"])
"""


def test_another_celery_app_on_the_same_database_is_left_alone_and_leaves_us_alone(
    short_tmp, valkey, client, eventually
):
    suite = a_suite(short_tmp)
    socket = f"redis+socket://{valkey.removeprefix('unix://')}"
    foreign = Celery("asks", broker=socket, backend=socket, set_as_current=False)
    argv = [sys.executable, "-c", FOREIGN, socket, valkey]
    theirs = subprocess.Popen(argv, cwd=short_tmp, env=dict(os.environ), stdin=subprocess.DEVNULL)
    try:
        results = [foreign.send_task("foreign.count") for _ in range(5)]
        with worker(valkey, short_tmp, UPLIFT_LEASE_SECONDS="2") as ours:
            ended = uplift(*standalone(suite, "--broker", valkey, "--mock"), cwd=short_tmp)
            assert ended.code == 0, ended.err
            assert sorted(one.get(timeout=60) for one in results) == [1, 2, 3, 4, 5]
            assert len(foreign.control.ping(timeout=2)) == 1
            foreign.control.shutdown()
            theirs.wait(timeout=30)
            assert ours.poll() is None
            again = uplift(*standalone(suite, "--broker", valkey, "--mock"), cwd=short_tmp)
            assert again.code == 0, again.err
        assert client.get("foreign:ran") == b"5"
    finally:
        theirs.kill()
        theirs.wait()
        foreign.close()
