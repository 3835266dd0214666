"""Every command that Uplift advises works as printed: typed into a shell where the first command was typed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from browsing import free_port
from conftest import start_server
from running import Ended, a_suite, await_worker, standalone, start_uplift, uplift, worker

from producer.state_root import Places, on_broker

pytestmark = pytest.mark.slow
PASSWORD = "hunter2hunter2"
QUICK = ("--model", "sim:candidate=1,baseline=1")


@pytest.fixture
def shell(short_tmp: Path) -> dict[str, str]:
    """Surroundings in which `uplift` is this one."""
    program = short_tmp / "bin" / "uplift"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m producer.cli "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "COLUMNS": "120"}


@pytest.fixture
def locked(short_tmp: Path) -> Iterator[str]:
    """A server that asks for a password."""
    port = free_port()
    process, url = start_server(short_tmp, "--port", str(port))
    with redis.Redis.from_url(url) as client:
        client.config_set("requirepass", PASSWORD)
    yield f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
    process.kill()
    process.wait()


def typed(command: str, shell: dict[str, str], folder: Path, **more: str) -> Ended:
    ended = subprocess.run(
        command, shell=True, cwd=folder, env={**shell, **more}, capture_output=True, text=True, timeout=120
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def advised(text: str, verb: str) -> str:
    """The last command of that kind in what was printed."""
    return re.findall(rf"uplift {verb}\b[^`\n]*", text)[-1]


def test_what_a_run_on_a_broker_advises_works_as_printed(
    valkey: str, short_tmp: Path, shell: dict[str, str]
) -> None:
    run = start_uplift(*standalone(a_suite(short_tmp), "--broker", valkey, *QUICK), cwd=short_tmp)
    assert run.stderr is not None
    told = next(line for line in run.stderr if "no worker answers" in line)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    helper = subprocess.Popen(
        f"exec {advised(told, 'worker')}", shell=True, cwd=short_tmp, env=shell, stderr=subprocess.DEVNULL
    )
    try:
        await_worker(valkey, helper.pid)
        ended = typed(advised(err, "resume"), shell, short_tmp)
        assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err
    finally:
        helper.terminate()
        helper.wait(timeout=30)


def test_a_detached_run_and_a_report_that_comes_too_early_name_a_watch_that_works(
    valkey: str, short_tmp: Path, shell: dict[str, str]
) -> None:
    begun = uplift(*standalone(a_suite(short_tmp), "--broker", valkey, "--detach", *QUICK), cwd=short_tmp)
    here = ["--broker", valkey, "--state-root", short_tmp / "state"]
    early = uplift("report", begun.out.strip(), *here, cwd=short_tmp)
    assert early.code == 2
    with worker(valkey, short_tmp):
        for said in (begun, early):
            ended = typed(advised(said.err, "watch"), shell, short_tmp)
            assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err


def test_a_password_is_never_printed_and_the_command_works_with_the_variable_that_it_names(
    locked: str, short_tmp: Path, shell: dict[str, str]
) -> None:
    words = standalone(a_suite(short_tmp), "--detach", *QUICK)
    begun = uplift(*words, "--broker", locked, cwd=short_tmp)
    quiet = uplift(*words, cwd=short_tmp, env={"UPLIFT_BROKER": locked})
    assert (begun.code, quiet.code) == (0, 0), begun.err + quiet.err
    assert "# set UPLIFT_BROKER to redis://:***@127.0.0.1" in begun.err
    assert "#" not in quiet.err
    with worker(locked, short_tmp):
        for said in (begun, quiet):
            assert PASSWORD not in said.out + said.err
            ended = typed(advised(said.err, "watch"), shell, short_tmp, UPLIFT_BROKER=locked)
            assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err


def test_a_private_run_in_a_state_root_of_its_own_is_found_as_printed(
    short_tmp: Path, shell: dict[str, str]
) -> None:
    begun = uplift(*standalone(a_suite(short_tmp), "--detach", *QUICK), cwd=short_tmp)
    ended = typed(advised(begun.err, "watch"), shell, short_tmp)
    assert (ended.code, ended.line["verdict"]) == (0, "pass"), ended.err
    unknown = uplift("watch", "no-such-run", "--state-root", short_tmp / "state", cwd=short_tmp)
    listed = typed(advised(unknown.err, "runs"), shell, short_tmp)
    assert begun.out.strip() in listed.out


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("unix:///a b/s", "uplift resume r --broker 'unix:///a b/s'"),
        ("redis://198.51.100.7:1/0", "uplift resume r --insecure --broker redis://198.51.100.7:1/0"),
        (
            "rediss://h/0?password=pw",
            "uplift resume r  # set UPLIFT_BROKER to rediss://h/0?password=***, with",
        ),
        (None, "uplift resume r"),
    ],
)
def test_an_address_is_printed_whole_or_not_at_all(url: str | None, printed: str) -> None:
    assert Places(Path(".uplift")).command("resume", "r", url).startswith(printed)
    assert on_broker("uplift resume r", url).startswith(printed)
