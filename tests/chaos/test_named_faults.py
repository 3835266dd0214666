"""Single faults, each told as a story: what is said, what is kept, and that going on makes the run whole."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from running import start_uplift

from workers.store.keys import Keys

from .checker import check, check_left_behind
from .faults import cut_connections, deliver_twice, restart_server
from .stage import SHORT, Pace, Stage, a_folder, remove

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIM = "sim:baseline=0.5,candidate=0.7,latency=0.3,cost=0.01,seed=1"
SMALL = replace(SHORT, tasks=6, pass_k=1)


@contextmanager
def a_stage(model: str = SIM, pace: Pace = SMALL) -> Iterator[Stage]:
    stage = Stage(a_folder(), pace, model)
    try:
        yield stage
    except BaseException:
        sys.stderr.write(stage.story())
        raise
    finally:
        stage.close()
        remove(stage.folder)


def said(stage: Stage) -> str:
    return (stage.folder / "producer.log").read_text()


def assert_whole(stage: Stage) -> None:
    assert stage.await_end() in (0, 1), stage.story()
    assert check(stage, None) == []


def test_a_flushed_server_is_said_and_the_workers_go_on_with_the_next_run() -> None:
    with a_stage() as stage:
        stage.start_worker()
        stage.evaluate()
        assert stage.until(lambda: stage.recorded() > 0, 60)
        stage.client.flushall()
        assert stage.producer is not None
        assert stage.producer.wait(timeout=60) == 3
        assert f"run {stage.run_id} vanished from the server" in said(stage)
        assert "Traceback" not in said(stage)
        assert not stage.artifact_path().exists()
        stage.evaluate("--detach")  # nobody watches: the callback itself must find its way
        assert stage.producer.wait(timeout=60) == 0
        assert stage.until(lambda: stage.client.exists(Keys(stage.run_id).artifacts), 60), stage.story()


@pytest.mark.long
def test_a_full_server_is_said_loses_nothing_and_the_run_goes_on_when_there_is_room() -> None:
    with a_stage(pace=replace(SMALL, tasks=12)) as stage:
        stage.start_worker()
        stage.evaluate()
        assert stage.until(lambda: stage.recorded() > 3, 60)
        stage.client.config_set("maxmemory", "1")
        before = stage.recorded()
        assert stage.until(lambda: "out of memory" in said(stage), 60), stage.story()
        assert stage.recorded() >= before
        stage.client.config_set("maxmemory", "0")
        assert_whole(stage)


@pytest.mark.long
def test_a_server_whose_disk_is_full_is_said_and_the_run_goes_on_when_there_is_room() -> None:
    with a_stage(pace=replace(SMALL, tasks=12)) as stage, files_end_here(stage) as make_room:
        stage.start_worker()
        assert stage.until(lambda: stage.client.exists("uplift:workers"), 60)
        stage.evaluate()
        assert stage.until(lambda: "No space left on device" in said(stage), 60), stage.story()
        make_room()
        assert_whole(stage)
        assert "Traceback" not in said(stage)


@contextmanager
def files_end_here(stage: Stage) -> Iterator[object]:
    """The server can write 60 kB to a file, and then no more until there is room again."""
    stage.server.terminate()
    stage.server.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    words = [word for word in stage.server.args if word]  # type: ignore[union-attr]  # a list, as started
    stage.server = subprocess.Popen(words, stdout=subprocess.DEVNULL, restore_signals=False)
    assert stage.until(lambda: _answers(stage), 20)
    resource.prlimit(stage.server.pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    yield lambda: resource.prlimit(stage.server.pid, resource.RLIMIT_FSIZE, everything)


def _answers(stage: Stage) -> bool:
    try:
        return bool(stage.client.ping())
    except redis.RedisError:
        return False


# Python would cut off the compiled modules that it writes, and others would stumble over them.
LITTLE_ROOM = """
import resource, runpy, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
runpy.run_module("producer.cli", run_name="__main__")
"""


def test_a_full_disk_at_home_is_said_writes_nothing_by_halves_and_can_be_made_up_for() -> None:
    with a_stage(pace=replace(SMALL, tasks=40, latency=0.0), model="sim:latency=0,cost=0.01") as stage:
        stage.start_worker()
        stage.evaluate("--detach")
        assert stage.producer is not None
        assert stage.producer.wait(timeout=60) == 0
        words = [
            "watch",
            stage.run_id,
            "--broker",
            stage.url,
            "--state-root",
            stage.folder / "state",
            "--quiet",
        ]
        ended = subprocess.run(
            [sys.executable, "-P", "-c", LITTLE_ROOM, *map(str, words)],
            capture_output=True,
            text=True,
            env={**os.environ, **stage.environment},
            cwd=stage.folder,
            timeout=120,
        )
        assert ended.returncode == 3, ended.stderr
        assert (
            "File too large; all records are kept: mend that, then go on with: uplift resume" in ended.stderr
        )
        assert "Traceback" not in ended.stderr
        assert not stage.artifact_path().exists()
        assert [path for path in (stage.folder / "state").rglob(".*") if path.is_file()] == []
        stage.resume()
        assert_whole(stage)


def test_results_that_come_after_a_cancel_are_late_and_their_cost_is_shown_as_wasted() -> None:
    with a_stage("sim:latency=2,cost=0.01", replace(SMALL, tasks=3)) as stage:
        worker = stage.start_worker()
        stage.evaluate("--detach")
        assert stage.producer is not None
        assert stage.producer.wait(timeout=60) == 0
        assert stage.until(lambda: stage.client.zcard(Keys(stage.run_id).claims) == SMALL.in_flight, 60)
        worker.send_signal(signal.SIGSTOP)
        stage.producer = stage.start_command("cancel")
        assert stage.producer.wait(timeout=60) == 3
        artifact = json.loads(stage.artifact_path().read_text())
        assert (artifact["status"], artifact["attempts"]["run"]) == ("cancelled", 0)
        worker.send_signal(signal.SIGCONT)
        state = stage.store.state
        assert stage.until(lambda: state(stage.run_id).wasted_attempts == SMALL.in_flight, 60)  # type: ignore[union-attr]  # the run exists
        assert state(stage.run_id).wasted == pytest.approx(0.03)  # type: ignore[union-attr]  # the run exists
        assert stage.recorded() == 0
        assert json.loads(stage.artifact_path().read_text()) == artifact


POISON = """
import os, signal, sys
prompt = sys.stdin.read()
pid = os.getppid()
while "word1" in prompt and pid > 1:
    words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    if "workers.process.quarantine" in words or "worker" in words:
        os.kill(pid, signal.SIGKILL)
    pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
print(prompt)
"""


def with_command(stage: Stage, program: str, *, name: str = "it") -> None:
    """Declare a program as a model in the stage's folder, where the command line and its workers look."""
    (stage.folder / f"{name}.py").write_text(program)
    argv = json.dumps([sys.executable, "-I", str(stage.folder / f"{name}.py")])
    (stage.folder / "uplift.toml").write_text(
        f'least_sandbox = "off"\n[commands.{name}]\nargv = {argv}\nagent = false\n'
    )
    stage.model = f"command:{name}"


@pytest.mark.long
def test_an_attempt_that_kills_its_worker_every_time_is_poison_and_its_neighbours_are_judged() -> None:
    with a_stage(pace=replace(SMALL, tasks=4)) as stage, replaced_workers(stage):
        with_command(stage, POISON)
        stage.evaluate("--sandbox", "off")
        assert stage.await_end() == 3
        records = {(r.task, r.arm): r for r in stage.store.records(stage.run_id)}
        assert len(records) == 8
        deadly = {key for key, record in records.items() if record.outcome == "error"}
        assert deadly == {("task-1", "baseline"), ("task-1", "candidate")}
        assert all("poison" in (records[key].error or "") for key in deadly)
        assert {r.outcome for key, r in records.items() if key not in deadly} == {"passed"}
        assert stage.client.hlen(Keys(stage.run_id).owners) == 0


@contextmanager
def replaced_workers(stage: Stage) -> Iterator[None]:
    """Somebody, a container engine for example, starts a new worker whenever one has died."""
    over = threading.Event()

    def supervise() -> None:
        while not over.wait(0.2):
            if len(stage.living_workers()) < 2:
                stage.start_worker()

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


LEDGER = """
import os, sys
with open({path!r}, "a") as ledger:
    ledger.write("call\\n")
prompt = sys.stdin.read()
import json, time
time.sleep(0.2)
print(json.dumps({{"text": prompt, "cost": 0.25}}))
"""


def test_what_the_model_side_billed_is_what_the_run_says_it_spent() -> None:
    """Connections are cut, the server restarts and every batch is delivered twice; nobody pays twice."""

    with a_stage(pace=replace(SMALL, tasks=8)) as stage:
        ledger = stage.folder / "ledger"
        with_command(stage, LEDGER.format(path=str(ledger)))
        with (stage.folder / "uplift.toml").open("a") as config:
            config.write('output = "json"\ntext_path = "text"\ncost_path = "cost"\n')
        stage.start_worker()
        stage.evaluate("--sandbox", "off")
        assert stage.until(lambda: stage.recorded() > 2, 60)
        draw = random.Random(1)
        for fault in (deliver_twice, cut_connections, restart_server):
            fault(stage, draw)
        assert stage.await_end() in (0, 1), stage.story()
        billed = 0.25 * len(ledger.read_text().splitlines())
        state = stage.store.state(stage.run_id)
        assert state is not None
        assert state.spent == pytest.approx(billed)
        assert check(stage, None) == []


STUCK = """
import os, sys
sys.argv = ["uplift", "worker", "--broker", {url!r}]
if not os.path.exists({marker!r}):
    open({marker!r}, "w").close()
    from workers.process.transport import Channel
    Channel._brpop_start = lambda self, timeout=None: None  # the broker is never asked for a message
from producer.cli import main
main()
"""


@pytest.mark.long
def test_a_worker_that_hears_nothing_although_messages_wait_starts_anew_by_itself() -> None:
    with a_stage() as stage:
        worker = start_program(stage, STUCK)
        stage.evaluate()
        assert_whole(stage)
        assert "starting it anew" in (stage.folder / "worker-0.log").read_text()
        assert worker.poll() is None
        assert stage.stop_workers() == [0]


BREAKS = """
import os, sys
sys.argv = ["uplift", "worker", "--broker", {url!r}]
if not os.path.exists({marker!r}):
    import time
    from celery.worker import state
    def breaks_later(until=time.monotonic() + 6):
        if time.monotonic() > until:
            open({marker!r}, "w").close()
            raise SystemError("a bug")
    state.maybe_shutdown = breaks_later
from producer.cli import main
main()
"""


@pytest.mark.long
def test_a_worker_that_breaks_down_starts_anew_by_itself() -> None:
    """Celery ends a worker for an error that it does not know, and calls that a success."""
    with a_stage("sim:latency=4,cost=0.01") as stage:
        worker = start_program(stage, BREAKS)
        stage.evaluate()
        assert_whole(stage)
        assert "starting it anew" in (stage.folder / "worker-0.log").read_text()
        assert worker.poll() is None
        assert stage.stop_workers() == [0]


def start_program(stage: Stage, program: str) -> subprocess.Popen[str]:
    """A worker that is broken the first time, and as it should be when it is started again."""
    text = program.format(url=stage.url, marker=str(stage.folder / "was-broken"))
    with (stage.folder / "worker-0.log").open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-c", text],
            env={**os.environ, **stage.environment},
            stdout=output,
            stderr=output,
            text=True,
        )
    stage.workers.append(worker)
    return worker


def test_a_worker_that_is_told_to_stop_hands_back_a_quarantined_attempt_too() -> None:
    with a_stage("sim:latency=60,cost=0.01", replace(SMALL, tasks=1)) as stage:
        worker = stage.start_worker()
        stage.evaluate("--detach")
        assert stage.producer is not None
        assert stage.producer.wait(timeout=60) == 0
        assert stage.until(lambda: stage.client.zcard(Keys(stage.run_id).claims) == 2, 60)
        stage.client.hset(Keys(stage.run_id).deaths, mapping={"0": 2, "1": 2})
        worker.terminate()
        worker.wait(timeout=40)
        second = stage.start_worker()
        alone = stage.client
        assert stage.until(
            lambda: any(b"workers.process.quarantine" in words for words in _below(second.pid)), 60
        ), stage.story()
        assert stage.until(lambda: alone.zcard(Keys(stage.run_id).claims) > 0, 60)
        second.terminate()
        assert second.wait(timeout=40) == 0
        assert stage.client.hlen(Keys(stage.run_id).owners) == 0
        assert stage.client.hgetall(Keys(stage.run_id).deaths) == {b"0": b"2", b"1": b"2"}
        assert check_left_behind_processes(stage) == []


def _below(pid: int) -> list[bytes]:
    """Command lines of a process's children."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            try:
                found.append(Path(f"/proc/{child}/cmdline").read_bytes())
            except OSError:
                continue
    return found


def check_left_behind_processes(stage: Stage) -> list[str]:
    return [text for _, text in check_left_behind(stage) if "processes" in text]


def test_a_private_worker_that_dies_is_replaced_and_the_run_is_whole() -> None:
    with a_stage(pace=replace(SMALL, tasks=10)) as stage:
        words = [
            "evaluate",
            "--standalone",
            "--task-suite",
            stage.suite,
            "--skill-path",
            stage.folder / "skill",
        ]
        words += ["--state-root", stage.folder / "state", "--model", SIM, "--in-flight", "2"]
        process = start_uplift(*words, cwd=stage.folder, env=stage.environment)
        assert stage.until(lambda: _private_worker(stage) is not None, 60)
        time.sleep(2)
        os.kill(_private_worker(stage) or 0, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        assert process.returncode in (0, 1), err
        assert "the private worker ended unexpectedly (signal 9)" in err


def test_a_laptop_that_loses_power_resumes_where_it_was() -> None:
    with a_stage(pace=replace(SMALL, tasks=20, lease=600.0)) as stage:  # nobody waits for those that are left
        state = stage.folder / "state"
        words = [
            "evaluate",
            "--standalone",
            "--task-suite",
            stage.suite,
            "--skill-path",
            stage.folder / "skill",
        ]
        words += ["--state-root", state, "--model", SIM, "--in-flight", "2"]
        process = start_uplift(*words, cwd=stage.folder, env=stage.environment)
        assert stage.until(lambda: _private_worker(stage) is not None, 60)
        time.sleep(4)
        for pid in _processes_with(stage, "embedded"):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()
        (run,) = (state / "runs").iterdir()
        ended = start_uplift(
            "resume", run.name, "--state-root", state, cwd=stage.folder, env=stage.environment
        )
        _, err = ended.communicate(timeout=120)
        assert ended.returncode in (0, 1), err
        left = int(next(line for line in err.splitlines() if "attempts left" in line).split()[1])
        assert 0 < left < 40
        (artifact,) = (state / "evaluations").iterdir()
        assert json.loads(artifact.read_text())["attempts"]["run"] == 40


def _private_worker(stage: Stage) -> int | None:
    return next(iter(_processes_with(stage, "embedded", b"-m\0workers\0")), None)


def _processes_with(stage: Stage, place: str, words: bytes = b"") -> list[int]:
    """Processes of this stage whose temporary files or arguments are below `place`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line, around = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            mark = str(stage.folder / "state" / place).encode()
            if words in line and (mark in line or b"TMPDIR=" + mark in around):
                found.append(int(entry.name))
    return found
