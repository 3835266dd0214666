"""`uplift worker --log-format json`: an object a line, that tells of which run, attempt and worker it is."""

import asyncio
import contextvars
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import a_suite, await_worker, standalone, start_uplift, uplift
from standing_in import provider_process

from judges.sandbox.command import in_thread
from judges.spec import Contains
from workers.attempts.run_context import Question
from workers.process.logs import JsonLines, at_work
from workers.store.messages import Task

ROOT = Path(__file__).parent.parent


def line(message, *args, **more):
    record = logging.makeLogRecord(
        {"name": "workers.x", "msg": message, "args": args, "levelname": "WARNING", **more}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLines, "worker", None)
        text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_has_time_level_logger_and_message_and_leaves_out_what_is_not_known():
    told = line("missed a beat: %s", "gone", created=0.25)
    assert told == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "workers.x",
        "message": "missed a beat: gone",
    }


def test_what_a_model_said_cannot_begin_a_line_of_its_own():
    assert line("it said %s", 'no\n{"run": "x"}\u2028\ud800\x1b[0m')["message"].startswith("it said no\n{")


def test_an_exception_is_in_the_line_that_tells_of_it():
    try:
        raise ValueError("bad")
    except ValueError as problem:
        told = line("failed", exc_info=(ValueError, problem, problem.__traceback__))
    assert told["exception"].endswith("ValueError: bad")


def test_a_warning_and_what_nobody_catches_are_objects_too():
    program = (
        "import threading, warnings; from workers.process.logs import write_json; write_json('warning')\n"
        "class Late:\n    def __del__(self): 1 / 0\n"
        "def fail(): raise ValueError('in a thread')\n"
        "def leave(): raise SystemExit\n"
        "def run(work): thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "warnings.warn('old'); Late(); run(fail); run(leave); raise ValueError('at last')"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    words = [one["message"].splitlines()[0] + one.get("exception", "").rpartition("Error")[2] for one in told]
    assert words[0].endswith("UserWarning: old")
    assert words[1:] == [
        "nobody could catch this: division by zero",
        "the thread Thread-1 (fail) ended: in a thread",
        "this process ends: at last",
    ]
    assert (ended.returncode, ended.stdout) == (1, "")


def test_an_attempt_is_named_as_its_record_names_it():
    task = Task(id="names-it", prompt="?", judge=Contains(type="contains", expected=["it"]))

    def inside():
        at_work.set(("run-1", Question(task, "candidate", "sim", 3)))
        return line("asked")

    told = contextvars.copy_context().run(inside)
    names = ("run", "task", "arm", "model", "attempt")
    assert [told[name] for name in names] == ["run-1", "names-it", "candidate", "sim", 3]
    assert "run" not in line("elsewhere")


async def test_a_line_of_a_judges_thread_names_its_attempt_too():
    task = Task(id="names-it", prompt="?", judge=Contains(type="contains", expected=["it"]))

    async def inside():
        at_work.set(("run-1", Question(task, "candidate", "sim", 3)))
        return await in_thread(lambda _: line("replacing a warm sandbox"))

    told = await asyncio.create_task(inside())
    assert (told.get("run"), told.get("task")) == ("run-1", "names-it")


def test_a_line_of_celery_names_the_run_of_its_message():
    assert line("received", data={"args": "run run-1 batch 1/2: tasks a"})["run"] == "run-1"
    assert line("failed", data={"args": "'run run-1 batch 1/2: tasks a'"})["run"] == "run-1"
    assert "run" not in line("received", data={"args": "(1, 2)"})
    assert "run" not in line("received", data="a library's own")
    assert line("lost", run="run-2")["run"] == "run-2"


@pytest.mark.slow
def test_every_line_of_a_worker_is_json_from_its_start_to_its_end(valkey, tmp_path):
    suite = a_suite(tmp_path, tasks=2)
    with provider_process() as provider, (tmp_path / "log").open("w") as log:
        worker = start_uplift(
            *("worker", "--broker", valkey, "--log-level", "info", "--log-format", "json"),
            cwd=tmp_path,
            env={
                "OPENAI_BASE_URL": f"{provider.url}/v1",
                "OPENAI_API_KEY": "k-canary",
                "UPLIFT_METRICS_PORT": "0",
            },
            stdout=log,
            stderr=log,
        )
        try:
            await_worker(valkey, worker.pid)
            ended = uplift(
                *standalone(suite, "--broker", valkey, "--model", "openai:m", "--quiet", "--json"),
                cwd=tmp_path,
                env={"OPENAI_API_KEY": "k-canary"},
            )
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()
    artifact = json.loads(ended.out)
    text = (tmp_path / "log").read_text()
    lines = [json.loads(told) for told in text.splitlines()]
    assert "k-canary" not in text
    assert [told["message"].split()[0] for told in lines[:2]] == ["worker", "metrics"]
    (name,) = artifact["environment"]["workers"]
    by_celery = [told for told in lines if told["logger"] == "celery.worker.strategy"]
    assert {told["run"] for told in by_celery} == {artifact["run_id"]}
    asked = [told for told in lines if told["message"].startswith("HTTP Request")]
    assert {told["worker"] for told in asked} == {name}
    assert {(told["run"], told["task"], told["arm"], told["attempt"]) for told in asked} == {
        (artifact["run_id"], f"task-{number}", arm, 1)
        for number in range(2)
        for arm in ("baseline", "candidate")
    }


def test_another_format_is_a_usage_error(tmp_path):
    ended = uplift("worker", "--broker", "redis://127.0.0.1:1/0", "--log-format", "xml", cwd=tmp_path)
    assert ended.code == 2
    assert "'xml'; give text or json" in ended.err
