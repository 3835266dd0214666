"""Joining a run from another terminal, while its owner may finish it at any moment."""

import json
import shutil
import signal
import threading
import time

import pytest
import redis
from running import a_suite, processes_below, standalone, start_uplift, the_artifact, uplift

from producer import server as servers
from producer.cli import app
from producer.display import attempts, progress, run_list
from producer.runs import evaluate
from producer.runs.evaluate import RunContext
from producer.state_root import Places
from workers.store.keys import Keys
from workers.store.run_store import UnknownRun

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", ["cancel", "watch"])
def test_whoever_looks_too_late_finds_what_the_owner_of_the_private_server_has_left(
    short_tmp, eventually, command
):
    suite = a_suite(short_tmp, 10)
    words = standalone(suite, "--model", "sim:latency=2", "--in-flight", "4", "--detach")
    run_id = uplift(*words, cwd=short_tmp).out.strip()
    places = Places(short_tmp / "state")
    state = redis.Redis.from_url(servers.address(places.embedded(run_id)))
    joined = start_uplift(command, run_id, "--state-root", short_tmp / "state", cwd=short_tmp)
    if command == "cancel":
        eventually(lambda: state.hget(Keys(run_id).state, "halt") == b"cancelled")
    else:
        assert "attempts" in joined.stderr.readline()  # it follows the run by now
    joined.send_signal(signal.SIGSTOP)
    state.close()
    eventually(lambda: len(processes_below(short_tmp)) == 1)  # the owner has brought the run home and left
    joined.send_signal(signal.SIGCONT)
    out, err = joined.communicate(timeout=60)
    artifact = the_artifact(short_tmp)
    assert artifact["status"] == ("cancelled" if command == "cancel" else "finished")
    assert joined.returncode == (3 if command == "cancel" else 0 if artifact["verdict"] == "pass" else 1), err
    assert f'"verdict": "{artifact["verdict"]}"' in out


def watched(places, run_id):
    """How `uplift watch` ends: its exit code, or what it raises."""
    return app(["watch", run_id, "--state-root", str(places.root), "--quiet"], standalone_mode=False)


@pytest.mark.usefixtures("capfd")
def test_a_run_that_ends_can_be_asked_about_at_any_moment(short_tmp):
    """Its owner removes the address, the server, the data and the lock one after the other."""
    suite, places = a_suite(short_tmp, 1), Places(short_tmp / "state")
    words = standalone(suite, "--model", "sim:latency=0.05,baseline=1,candidate=1", "--quiet")
    listed, stood, ends = set(), set(), set()
    process = start_uplift(*words, cwd=short_tmp)
    while process.poll() is None:
        rows = run_list.rows(places, None)
        listed |= {row.state for row in rows}
        if rows and rows[0].state != "starting":
            stood.add(run_list.status(places, None, rows[0].run_id)["state"])
            ends.add(watched(places, rows[0].run_id))
    process.communicate()
    assert process.returncode == 0
    assert listed <= {"starting", "running", "finished"}
    assert stood <= {"running", "finished"}
    assert ends == {0}


@pytest.fixture(scope="module")
def finished_root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    assert uplift(*standalone(a_suite(folder, 2), "--mock"), cwd=folder).code == 0
    return folder / "state"


@pytest.fixture
def leaving(finished_root, tmp_path, monkeypatch):
    """A finished run whose private server answers once more and is gone when it is asked for anything."""
    places = Places(tmp_path / "state")
    shutil.copytree(finished_root, places.root)
    (run_id,) = places.run_ids("runs")
    places.embedded(run_id).mkdir(parents=True)
    answers = [f"unix://{tmp_path}/gone.sock"]
    monkeypatch.setattr(servers, "address", lambda folder: answers.pop() if answers else None)
    return places, run_id


def test_watch_finds_the_artifact_of_a_server_that_goes_while_it_is_joined(leaving, capfd):
    places, run_id = leaving
    assert watched(places, run_id) in (0, 1)
    assert json.loads(capfd.readouterr().out)["verdict"] in ("pass", "fail")


def test_a_list_of_runs_outlives_the_servers_in_it(leaving):
    places, run_id = leaving
    assert [(row.run_id, row.state) for row in run_list.rows(places, None)] == [(run_id, "finished")]


def test_attempts_are_read_at_home_when_the_server_goes(leaving):
    places, run_id = leaving
    records = places.records(run_id)
    records.rename(records.with_name("later"))
    asked = servers.address

    def brought_home(folder):
        if (found := asked(folder)) is None and not records.exists():
            records.with_name("later").rename(records)
        return found

    servers.address = brought_home  # the fixture's monkeypatch puts it back
    assert len(attempts.of_task(places, None, run_id, "task-0")) == 2


def test_a_run_that_is_over_cannot_be_cancelled_even_while_its_server_leaves(leaving):
    places, run_id = leaving
    where = RunContext(places, None, progress.choose(quiet=True))
    with pytest.raises(UnknownRun, match="over already"):
        evaluate.cancel(run_id, where)


@pytest.mark.parametrize("empty", [True, False])
def test_what_a_run_left_that_was_killed_before_it_was_submitted_is_no_run(tmp_path, empty):
    places = Places(tmp_path / "state")
    places.embedded("early").mkdir(parents=True)
    if not empty:
        with servers.serving(places.embedded("early")):
            assert [row.state for row in run_list.rows(places, None)] == ["starting"]
    assert run_list.rows(places, None) == []
    ended = uplift("resume", "early", "--state-root", places.root, cwd=tmp_path)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "no run 'early' under way" in ended.err
    assert run_list.rows(places, None) == []


def test_a_cancelled_run_that_goes_on_is_told_as_running_and_can_be_cancelled_again(short_tmp, eventually):
    suite, places = a_suite(short_tmp, 10), Places(short_tmp / "state")
    words = standalone(suite, "--model", "sim:latency=0.8", "--in-flight", "1", "--detach")
    run_id = uplift(*words, cwd=short_tmp).out.strip()
    here = (run_id, "--state-root", places.root)
    assert uplift("cancel", *here, cwd=short_tmp).code == 3
    before = the_artifact(short_tmp)["attempts"]["run"]
    eventually(lambda: not processes_below(short_tmp))
    resumed = start_uplift("resume", *here, "--in-flight", "1", cwd=short_tmp)
    eventually(lambda: run_list.status(places, None, run_id)["state"] == "running")
    assert [row.state for row in run_list.rows(places, None)] == ["running"]
    eventually(lambda: run_list.status(places, None, run_id).get("done", 0) > before)
    again = uplift("cancel", *here, cwd=short_tmp)
    assert (again.code, again.line["verdict"]) == (3, "error"), again.err
    resumed.communicate(timeout=60)
    assert before < the_artifact(short_tmp)["attempts"]["run"] < 20
    assert run_list.status(places, None, run_id)["state"] == "cancelled"


def test_what_a_file_manager_leaves_beside_runs_is_no_run(finished_root, tmp_path):
    places = Places(tmp_path / "state")
    shutil.copytree(finished_root, places.root)
    for kind in ("runs", "embedded"):
        (places.root / kind).mkdir(exist_ok=True)
        (places.root / kind / ".DS_Store").write_bytes(b"")
        (places.root / kind / "my notes").mkdir()
    assert [row.state for row in run_list.rows(places, None)] == ["finished"]


def test_cancel_and_resume_of_an_interrupted_run_at_once_both_end(short_tmp, eventually):
    suite, places = a_suite(short_tmp, 6), Places(short_tmp / "state")
    words = standalone(suite, "--model", "sim:latency=0.4", "--in-flight", "1")
    owner = start_uplift(*words, cwd=short_tmp)
    eventually(lambda: any(row.done for row in run_list.rows(places, None)))
    owner.kill()
    owner.communicate()
    eventually(lambda: not processes_below(short_tmp))
    (run_id,) = places.run_ids("embedded")
    both = [
        start_uplift(command, run_id, "--state-root", places.root, cwd=short_tmp)
        for command in ("cancel", "resume")
    ]
    said = [process.communicate(timeout=100)[1] for process in both]
    assert both[1].returncode in (0, 1, 3), said  # as the run went, or cancelled
    assert the_artifact(short_tmp)["status"] in ("cancelled", "finished"), said
    eventually(lambda: not processes_below(short_tmp))


def test_a_run_that_somebody_is_at_work_on_is_not_deleted_and_one_that_cannot_be_is_told(
    leaving, monkeypatch
):
    places, run_id = leaving
    monkeypatch.setattr(servers, "OVER_SECONDS", 0.2)
    with (
        servers.holding(places.embedded(run_id)),
        pytest.raises(UnknownRun, match="is running; cancel it"),
    ):
        run_list.delete(places, None, run_id)
    assert places.records(run_id).exists()
    run_list.delete(places, None, run_id)
    assert run_list.rows(places, None) == []


@pytest.mark.parametrize("damaged", ["", "{", "[]", "null", '{"run_id": 3}', "\udcff"])
def test_a_run_whose_artifact_is_damaged_is_deleted_and_a_run_of_a_longer_name_is_not(leaving, damaged):
    places, run_id = leaving
    other = places.artifact(f"{run_id}-x")
    other.write_text(json.dumps({"run_id": f"{run_id}-x"}))
    places.artifact(run_id).write_bytes(damaged.encode(errors="surrogateescape"))
    run_list.delete(places, None, run_id)
    assert not places.artifact(run_id).exists()
    assert other.exists()


def test_deleting_a_run_that_is_over_waits_for_its_owner_to_leave(leaving):
    places, run_id = leaving
    about_to_leave, left = threading.Event(), threading.Event()

    def own():
        with servers.holding(places.embedded(run_id)):
            about_to_leave.set()
            time.sleep(0.5)
            left.set()

    owner = threading.Thread(target=own)
    owner.start()
    about_to_leave.wait()
    run_list.delete(places, None, run_id)
    assert left.is_set()
    owner.join()
    assert run_list.rows(places, None) == []


def test_a_watcher_joins_whoever_has_taken_the_run_over(short_tmp, eventually):
    suite, places = a_suite(short_tmp, 8), Places(short_tmp / "state")
    words = standalone(suite, "--model", "sim:latency=1,baseline=1,candidate=1", "--in-flight", "1")
    owner = start_uplift(*words, cwd=short_tmp)
    eventually(lambda: any(row.done for row in run_list.rows(places, None)))
    (run_id,) = places.run_ids("embedded")
    here = (run_id, "--state-root", places.root)
    watcher = start_uplift("watch", *here, cwd=short_tmp)
    old = servers.address(places.embedded(run_id))
    assert "attempts" in watcher.stderr.readline()  # it follows the run by now
    watcher.send_signal(signal.SIGSTOP)
    owner.kill()
    owner.communicate()
    heir = start_uplift("resume", *here, cwd=short_tmp)
    eventually(lambda: servers.address(places.embedded(run_id)) not in (None, old))
    watcher.send_signal(signal.SIGCONT)
    _, err = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, err
    heir.communicate(timeout=60)
    assert heir.returncode == 0
    assert the_artifact(short_tmp)["status"] == "finished"
