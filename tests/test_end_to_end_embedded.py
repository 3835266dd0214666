"""One command on a laptop with nothing set up: a private server, a worker, an artifact, and nothing left behind."""

import gzip
import json
import os
import signal
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis
from running import a_suite, processes_below, standalone, start_uplift, the_artifact, uplift

from producer.server import address
from workers.store.redis_client import workers
from workers.store.run_store import Store

pytestmark = pytest.mark.slow

BOLD = (
    *("execution_pass_rate", "baseline_pass_rate", "delta", "verdict", "reason"),
    *("candidate_results", "baseline_results", "truth_anchor"),
)


@pytest.fixture
def folder(short_tmp, monkeypatch, eventually):
    """A folder for everything, temporary files included, so that leftovers are seen."""
    (short_tmp / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(short_tmp / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield short_tmp
    eventually(lambda: not processes_below(short_tmp), 30)


def sockets(folder):
    return [path for path in folder.rglob("*") if path.is_socket()]


def records_of(folder, run_id):
    with gzip.open(folder / "state" / "runs" / run_id / "records.jsonl.gz") as file:
        return [json.loads(line) for line in file]


def run_id_of(folder):
    (found,) = (folder / "state" / "runs").iterdir()
    return found.name


def slots(server):
    """How many attempts each worker of a private server makes at once; nothing while none is there."""
    if not (url := address(server)):
        return []
    with closing(redis.Redis.from_url(url)) as client:
        return [worker["slots"] for worker in workers(client)]


def wait_until(folder, eventually, holds):
    """Wait until the progress of the one run that is under way is as wanted; its server is asked, not a command."""

    def reached():
        served = [place for place in (folder / "state" / "embedded").glob("*") if address(place)]
        if not served:
            return False
        with closing(redis.Redis.from_url(address(served[0]))) as client, suppress(redis.ConnectionError):
            return holds(Store(client).progress(served[0].name))
        return False  # it does not listen yet

    eventually(reached)
    return run_id_of(folder)


def wait_for_records(folder, eventually, count):
    """Wait until the one run that is under way has at least this many records."""
    return wait_until(folder, eventually, lambda progress: progress.recorded >= count)


def test_a_mock_run_prints_one_line_writes_one_artifact_and_leaves_nothing(folder):
    ended = uplift(*standalone(a_suite(folder), "--mock"), cwd=folder)
    assert ended.code == 0, ended.err
    assert ended.out.count("\n") == 1
    assert set(ended.line) == {"execution_pass_rate", "baseline_pass_rate", "delta", "verdict"}
    artifact = the_artifact(folder)
    assert all(name in artifact for name in BOLD)
    assert artifact["truth_anchor"] == str(next((folder / "state" / "evaluations").iterdir()))
    assert {row["task_id"] for row in artifact["candidate_results"]} == {f"task-{n}" for n in range(4)}
    assert "simulated" in ended.err
    assert sockets(folder) == []
    assert list((folder / "tmp").iterdir()) == []
    assert list((folder / "state" / "embedded").iterdir()) == []


def test_the_default_state_root_keeps_itself_out_of_git_and_a_chosen_one_does_not(folder):
    suite = a_suite(folder)
    words = [word for word in standalone(suite, "--mock") if word not in ("--state-root", folder / "state")]
    assert uplift(*words, cwd=folder).code == 0
    assert (folder / ".uplift" / ".gitignore").read_text() == "*\n"
    assert uplift(*standalone(suite, "--mock"), cwd=folder).code == 0
    assert not (folder / "state" / ".gitignore").exists()


def test_the_exit_code_follows_the_verdict_and_a_failure_leaves_a_trace(folder):
    ended = uplift(*standalone(a_suite(folder, 12), "--model", "sim:baseline=1,candidate=0"), cwd=folder)
    assert (ended.code, ended.line["verdict"], ended.line["delta"]) == (1, "fail", -1.0)
    (trace,) = (folder / "state" / "traces").iterdir()
    assert len(json.loads(trace.read_text())["failed_tasks"]) == 12


def test_a_quiet_command_still_says_why_there_is_no_verdict(folder):
    ended = uplift(*standalone(a_suite(folder), "--model", "sim:error=1", "--quiet"), cwd=folder)
    assert (ended.code, ended.line["verdict"]) == (3, "error")
    assert len(ended.err.splitlines()) == 1
    assert "ended in error" in ended.err


def test_every_planned_attempt_has_exactly_one_record_even_when_many_err(folder):
    model = "sim:baseline=0.5,candidate=0.5,error=0.3,seed=3"
    ended = uplift(*standalone(a_suite(folder, 10), "--model", model, "--pass-k", "3"), cwd=folder)
    records = records_of(folder, run_id_of(folder))
    assert len(records) == 60 == len({(r["task"], r["arm"], r["attempt"]) for r in records})
    retried = [r for r in records if r["deliveries"] > 1]
    assert retried  # some errors were tried again
    assert all(r["deliveries"] == 3 for r in records if r["outcome"] == "error")
    assert ended.code in (0, 1, 3)


def test_a_killed_command_leaves_no_process_and_no_socket_and_its_run_can_be_resumed(folder, eventually):
    suite = a_suite(folder, 20)
    leases = {"UPLIFT_LEASE_SECONDS": "600"}  # nobody waits for those of a worker that is gone
    words = standalone(suite, "--model", "sim:latency=0.25", "--in-flight", "2")
    process = start_uplift(*words, cwd=folder, env=leases)
    run_id = wait_for_records(folder, eventually, 3)
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not processes_below(folder))
    assert sockets(folder) == []
    told = process.stderr.readline()
    process.stderr.close()
    assert told.startswith(
        f"uplift: run {run_id}; should this command die, go on with: uplift resume {run_id} "
    )
    here = ["--state-root", folder / "state", "--json"]
    status = uplift("status", run_id, *here, cwd=folder).line
    (row,) = json.loads(uplift("runs", *here, cwd=folder).out)
    for facts in (status, row):
        assert (facts["state"], facts["suite"], facts["total"]) == ("interrupted", str(suite), 40)
        assert 3 <= facts["done"] < 40
    # And the list says so where nobody knows a width: in a pipe, as in a log of CI
    listed = uplift("runs", *here[:2], cwd=folder, env={"COLUMNS": "80"}).out.splitlines()[-1]
    assert listed.split()[:3] == [run_id, "interrupted", f"{facts['done']}/40"]
    assert listed.rstrip().endswith("/".join(suite.parts[-2:]))
    assert sockets(folder) == []
    ended = uplift("resume", run_id, "--state-root", folder / "state", cwd=folder, env=leases)
    assert ended.code in (0, 1), ended.err
    records = records_of(folder, run_id)
    assert len(records) == 40 == len({(r["task"], r["arm"]) for r in records})
    assert the_artifact(folder)["run_id"] == run_id


def test_the_first_interrupt_stops_new_attempts_and_resume_runs_only_the_rest(folder, eventually):
    suite = a_suite(folder, 20)
    process = start_uplift(*standalone(suite, "--model", "sim:latency=0.25", "--in-flight", "2"), cwd=folder)
    run_id = wait_for_records(folder, eventually, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"uplift resume {run_id} --state-root {folder / 'state'}\n" in err
    assert not (folder / "state" / "evaluations").exists()
    (folder / "uplift.toml").write_text("in_flight = 7")  # for runs that start: this one has its own
    process = start_uplift("resume", run_id, "--state-root", folder / "state", cwd=folder)
    eventually(lambda: slots(folder / "state" / "embedded" / run_id))
    assert slots(folder / "state" / "embedded" / run_id) == [2]
    _, err = process.communicate(timeout=60)
    left = int(next(line for line in err.splitlines() if "attempts left" in line).split()[1])
    assert 0 < left < 40
    assert len(records_of(folder, run_id)) == 40


def test_a_second_interrupt_ends_the_command_at_once(folder, eventually):
    suite = a_suite(folder, 4)
    process = start_uplift(*standalone(suite, "--model", "sim:latency=200"), cwd=folder)
    run_id = wait_until(folder, eventually, lambda progress: progress.in_flight)
    status = uplift("status", run_id, "--state-root", folder / "state", "--json", cwd=folder)
    assert status.line["in_flight"]
    process.send_signal(signal.SIGINT)
    assert any("waiting for those in flight" in line for line in process.stderr)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    eventually(lambda: not processes_below(folder))


def test_a_detached_run_is_finished_by_its_supervisor_and_can_be_watched(folder):
    suite = a_suite(folder, 6)
    begun = uplift(*standalone(suite, "--model", "sim:latency=0.3", "--detach"), cwd=folder)
    assert begun.code == 0, begun.err
    run_id = begun.out.strip()
    ended = uplift("watch", run_id, "--state-root", folder / "state", cwd=folder)
    assert ended.code in (0, 1), ended.err
    assert the_artifact(folder)["run_id"] == run_id
    again = uplift("watch", run_id, "--state-root", folder / "state", cwd=folder)
    assert again.out == ended.out, again.err


def test_a_detached_run_can_be_cancelled_and_then_resumed_to_its_end(folder, eventually):
    suite = a_suite(folder, 20)
    model = (
        "sim:latency=1.5,baseline=1,candidate=1"  # ten seconds in all: it must not end before it is cancelled
    )
    begun = uplift(*standalone(suite, "--model", model, "--in-flight", "6", "--detach"), cwd=folder)
    run_id = begun.out.strip()
    wait_for_records(folder, eventually, 2)
    cancelled = uplift("cancel", run_id, "--state-root", folder / "state", cwd=folder)
    assert cancelled.code == 3
    artifact = the_artifact(folder)
    assert (artifact["verdict"], artifact["status"]) == ("error", "cancelled")
    assert "cancelled" in artifact["reason"]
    # The supervisor may still be on its way out, server and worker with it.
    ended = uplift("resume", run_id, "--state-root", folder / "state", cwd=folder)
    assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err
    assert len(records_of(folder, run_id)) == 40
    again = uplift("resume", run_id, "--state-root", folder / "state", cwd=folder)
    assert (again.code, again.out) == (0, ended.out), again.err


def test_files_of_a_run_named_by_hostile_ids_stay_inside(folder):
    a_suite(folder)
    for command in ("status", "watch", "resume", "cancel"):
        ended = uplift(command, "../../x", "--state-root", folder / "state", cwd=folder)
        assert ended.code == 2
        assert "run id '../../x' is not valid" in ended.err
        assert len(ended.err.strip().splitlines()) == 1
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--task-suite", "missing.yaml"], 2, "Task suite not found: missing.yaml"),
        (["--skill-path", "nowhere"], 2, "skill not found: nowhere"),
        (["--pass-k", "0"], 2, "--pass-k is 0"),
        (["--gate", "luck"], 2, '--gate is "luck"; allowed: verdict, decision'),
        (["--model", "gtp-5"], 2, "unknown model 'gtp-5'"),
        (["--broker", "redis://127.0.0.1:1/0"], 3, "the broker cannot be reached"),
        (["--broker", "redis://queue.internal/0"], 2, "without password or TLS"),
        (["--task", "tsak-1"], 2, "task-1"),
        (["--mock", "--output", "skill"], 2, "--output skill is a folder; give a file in it"),
        (["--mock", "--output", "suite.yaml/x.json"], 2, "--output suite.yaml/x.json cannot be written"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy_and_writes_nothing(folder, words, code, says):
    ended = uplift(*standalone(a_suite(folder), *words), cwd=folder)
    assert ended.code == code, ended.err
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert len(ended.err.strip().splitlines()) == 1
    assert not (folder / "state" / "evaluations").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_state_root_that_cannot_be_written_is_said(folder):
    suite = a_suite(folder)
    (folder / "state").mkdir(mode=0o500)
    ended = uplift(*standalone(suite, "--mock"), cwd=folder)
    assert (ended.code, "cannot be written" in ended.err) == (2, True)


def test_a_state_root_that_is_a_file_is_said(folder):
    suite = a_suite(folder)
    (folder / "state").write_text("")
    ended = uplift(*standalone(suite, "--mock"), cwd=folder)
    assert (ended.code, "cannot be written" in ended.err) == (2, True)
    assert "Traceback" not in ended.err


def test_a_dry_run_shows_the_plan_and_writes_nothing(folder):
    ended = uplift(*standalone(a_suite(folder), "--mock", "--pass-k", "3", "--dry-run", "--json"), cwd=folder)
    assert ended.code == 0
    assert (ended.line["tasks"], ended.line["model_calls"]) == (4, 24)
    assert not (folder / "state").exists()


def test_one_attempt_can_be_looked_at(folder):
    uplift(*standalone(a_suite(folder), "--model", "sim:candidate=1"), cwd=folder)
    run_id = run_id_of(folder)
    shown = uplift("show", run_id, "task-2", "--state-root", folder / "state", cwd=folder)
    assert "candidate" in shown.out
    assert "word2" in shown.out
    missing = uplift("show", run_id, "task-22", "--state-root", folder / "state", cwd=folder)
    assert (missing.code, "did you mean task-2?" in missing.err) == (2, True)


def test_the_baseline_is_asked_once_a_week_and_only_for_what_changed(folder):
    suite, cache = a_suite(folder), folder / "cache"

    def asked(*more):
        """How many attempts were really run, per arm."""
        state = Path(tempfile.mkdtemp(dir=folder, prefix="state-"))
        words = [*standalone(suite, "--baseline-cache-dir", cache, *more), "--state-root", state]
        assert uplift(*words, cwd=folder).code in (0, 1)
        (path,) = (state / "runs").glob("*/records.jsonl.gz")
        with gzip.open(path) as file:
            records = [json.loads(line) for line in file]
        return sorted(r["arm"] for r in records if not r["cached"])

    every_arm = ["baseline"] * 4 + ["candidate"] * 4
    assert asked("--model", "sim") == every_arm
    assert asked("--mock") == every_arm  # mock and sim never serve each other
    suite.write_text(suite.read_text().replace("Say word1.", "Say word1, please."))
    assert asked("--model", "sim") == ["baseline"] + ["candidate"] * 4
    for entry in cache.glob("*/*.json"):
        old = json.loads(entry.read_text())
        old["created"] -= 7 * 24 * 3600
        entry.write_text(json.dumps(old))
    assert asked("--model", "sim") == every_arm


@pytest.mark.parametrize(
    ("taken", "code", "says"), [("closed", 0, ""), ("full", 3, "standard output: No space")]
)
def test_an_output_that_nobody_takes_changes_no_verdict(folder, taken, code, says):
    """A reader such as `head` that has enough is no failure; a disk without room is, and never one of the skill."""
    words = standalone(a_suite(folder), "--mock", "--quiet")
    out = lost(taken)
    process = start_uplift(*words, cwd=folder, stdout=out)
    os.close(out)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert says in err
    assert "Traceback" not in err
    assert the_artifact(folder)["verdict"] == "pass"


def lost(taken):
    if taken == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    os.close(reading)
    return writing
