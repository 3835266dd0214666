"""Serve judgments from a warm interpreter in a bubblewrap: pytest waits before it collects, each judgment is a fork.

    worker ─ socket ─▶ zygote ─ fork ─▶ keeper ─ fork ─▶ first process ─ fork ─▶ tests

The zygote never reads a line of a suite. The keeper of one judgment ends it when its time is up, when it holds too
much memory, or when the worker closes the lifeline. The first process has namespaces of its own for processes, mounts,
network and more, in which it mounts empty folders, a new /proc and the output, read-only; when it ends, the
kernel ends all in there. The tests run as `drop_rights` leaves them: no capability, no user namespace, bounded.

Standard library, pytest and three of our modules only: nothing else exists in there.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from judges.inside import drop_rights, pytest_plugin, supervisor

if TYPE_CHECKING:
    import pytest

MESSAGE_BYTES = 65536
_TICK_SECONDS = 0.1
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_EMPTY = "mode=1777"


@dataclass(frozen=True)
class InsidePlaces:
    """Where things are inside; `keep` are folders of the interpreter that an empty one would hide."""

    root: str
    output: str
    work: str
    empty: tuple[str, ...]
    small_bytes: int
    warm_up: str
    keep: tuple[str, ...]
    user: int | None


@dataclass(frozen=True)
class Job:
    """One judgment: the tests to run, for how long, and within which bounds."""

    run: pytest_plugin.PytestRun
    limits: drop_rights.RightsSettings
    timeout_seconds: float
    output_file: str

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, told: bytes) -> Job:
        fields = json.loads(told)
        fields["run"] = pytest_plugin.PytestRun(**fields["run"])
        fields["limits"] = drop_rights.RightsSettings(**fields["limits"])
        return cls(**fields)


@dataclass(frozen=True)
class Descriptors:
    """What comes with a job, in this order: where it writes, what it reads, and who holds it."""

    output: int
    report: int
    status: int
    text: int
    lifeline: int


def main() -> NoReturn:
    """Serve jobs from the socket whose descriptor is argv[1] until the worker closes it."""
    control = _out_of_the_way(int(sys.argv[1]))
    places = InsidePlaces(**json.loads(sys.argv[2]))
    del sys.path[0]  # this code's own folder, of no interest to tests
    _warm_up(places.warm_up)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    plugin = _Paused(control, places)
    folder = str(Path(places.warm_up).parent)
    code = pytest_plugin.run_pytest(folder, places.root, f"{folder}/pytest.ini", plugin)
    # Only the fork that ran the tests gets here.
    plugin.tell("end", code=code)
    os._exit(0)


def _out_of_the_way(control: int) -> socket.socket:
    """Move the control socket to a high number, and put /dev/null at the number that tests will write to.

    Anything else there, such as a log file of pytest's, would be closed under it when a fork takes the
    number.
    """
    moved = socket.socket(fileno=fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 100))
    os.close(control)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != pytest_plugin.REPORT_FD:
        os.dup2(nowhere, pytest_plugin.REPORT_FD)
        os.close(nowhere)
    return moved


class _Paused(pytest_plugin.Reporter):
    """The plugin of a pytest that stops before it collects anything, and goes on in a fork for each judgment."""

    def __init__(self, control: socket.socket, places: InsidePlaces) -> None:
        super().__init__("", pytest_plugin.REPORT_FD)
        self._control = control
        self._places = places

    def pytest_collection(self, session: pytest.Session) -> None:
        self._control.send(b"ready")
        gc.collect()
        gc.freeze()  # in the forks too: a collection would copy every page that it looks at
        run = _serve(self._control, self._places)
        if _has_conftest(run):
            # It may add options, which this pytest has already parsed: start over.
            pytest_plugin.run(run)
            os._exit(0)
        self.nonce = run.nonce
        pytest_plugin.make_importable(run)
        self.tell("start")
        session.config.args = [run.test_file]


def _serve(control: socket.socket, places: InsidePlaces) -> pytest_plugin.PytestRun:
    """Fork for each job that comes; returns only in the forks, confined and ready to run their tests."""
    while True:
        told, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 5)
        if not told:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return _keep(Job.from_json(told), Descriptors(*descriptors), places)
        for descriptor in descriptors:
            os.close(descriptor)
        supervisor.reap()


def _has_conftest(run: pytest_plugin.PytestRun) -> bool:
    root = Path(run.root)
    folders = [folder for folder in Path(run.test_file).parents if folder.is_relative_to(root)]
    return any((folder / "conftest.py").exists() for folder in folders)


def _warm_up(test_file: str) -> None:
    """Run pytest once on a file of our own, with a failing test, so that forks find all of it imported."""
    path, kept = list(sys.path), os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    folder = str(Path(test_file).parent)
    pytest_plugin.run(
        pytest_plugin.PytestRun(test_file, folder, f"{folder}/pytest.ini", "warm-up"), report=nowhere
    )
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nowhere)
    sys.path[:] = path
    sys.modules.pop(Path(test_file).stem, None)


def _keep(job: Job, held: Descriptors, places: InsidePlaces) -> pytest_plugin.PytestRun:
    """Start a judgment's first process, wait for it or end it, report how it ended; only the tests return."""
    try:
        drop_rights.die_with_parent()
        drop_rights.unshare(drop_rights.CLONE_NEWPID)
        first = os.fork()
        if first == 0:
            return _be_first(job, held, places)
        for descriptor in (held.output, held.report, held.text):
            os.close(descriptor)
        ending = _watch(first, job, held.lifeline)
        _, status = os.waitpid(first, 0)
        os.write(held.status, f"\n{ending} {os.waitstatus_to_exitcode(status)}".encode())
    except OSError as failed:
        drop_rights.fail(held.status, failed)
    os._exit(0)


def _watch(first: int, job: Job, lifeline: int) -> str:
    """Wait until the first process can be reaped, having killed it if it went over a bound."""
    deadline = time.monotonic() + job.timeout_seconds
    exited = os.pidfd_open(first)
    ending = "exited"
    while True:
        ready, _, _ = select.select([exited, lifeline], [], [], _TICK_SECONDS)
        if exited in ready:
            return ending
        if lifeline in ready:
            ending = "cancelled"
        elif time.monotonic() > deadline:
            ending = "timeout"
        elif supervisor.resident_bytes(supervisor.descendants(first)) > job.limits.memory_bytes:
            ending = "memory"
        if ending != "exited":
            os.kill(first, signal.SIGKILL)
            select.select([exited], [], [])
            return ending


def _be_first(job: Job, held: Descriptors, places: InsidePlaces) -> pytest_plugin.PytestRun:
    """Be process 1: mount a file system with nothing new but the output, start the tests, and end with them."""
    try:
        drop_rights.die_with_parent()
        os.close(held.lifeline)
        _make_world(job, held.text, places)
        tests = os.fork()
        if tests == 0:
            _become_tests(job, held, places)
        else:
            for descriptor in (held.output, held.report, held.status):
                os.close(descriptor)
            drop_rights.become_harmless(places.user)
            drop_rights.serve_as_first(tests)
    except OSError as failed:
        drop_rights.fail(held.status, failed)
    return job.run


def _make_world(job: Job, text: int, places: InsidePlaces) -> None:
    drop_rights.unshare(
        drop_rights.CLONE_NEWNS
        | drop_rights.CLONE_NEWIPC
        | drop_rights.CLONE_NEWUTS
        | drop_rights.CLONE_NEWNET
    )
    drop_rights.mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    kept = {folder: os.open(folder, os.O_PATH) for folder in places.keep}
    for place in places.empty:
        drop_rights.mount(
            "tmpfs", place, "tmpfs", _MS_NOSUID | _MS_NODEV, f"{_EMPTY},size={places.small_bytes}"
        )
    for folder, descriptor in kept.items():
        Path(folder).mkdir(parents=True, exist_ok=True)
        drop_rights.mount(f"/proc/self/fd/{descriptor}", folder, "", _MS_BIND | _MS_REC)
        os.close(descriptor)
    drop_rights.mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    drop_rights.mount("tmpfs", places.output, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    output = Path(job.output_file)
    with os.fdopen(text, "rb") as source:
        output.write_bytes(source.read())
    output.chmod(0o444)
    drop_rights.mount("none", places.output, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _become_tests(job: Job, held: Descriptors, places: InsidePlaces) -> None:
    """Drop all rights; the job's output and report become descriptors 1, 2 and 3, and the others are closed."""
    os.chdir(places.work)
    os.setsid()
    drop_rights.enter_own_user_namespace(places.user)
    drop_rights.limit_resources(job.limits)
    drop_rights.drop_all_capabilities()
    drop_rights.restrict_for_good()
    os.write(held.status, b"started")
    for given, place in ((held.output, 1), (held.output, 2), (held.report, pytest_plugin.REPORT_FD)):
        os.dup2(given, place)
    for given in (held.output, held.report, held.status):
        os.close(given)
    os.environ["AI_OUTPUT_FILE"] = job.output_file
