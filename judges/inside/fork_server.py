"""Serve judgments from a warm interpreter in a bubblewrap: pytest waits before it collects, each judgment is a fork.

    worker ─ socket ─▶ zygote ─ fork ─▶ keeper ─ fork ─▶ first process ─ fork ─▶ tests

The zygote never reads a line of a suite. The keeper of one judgment ends it when its time is up, when it holds too
much memory, or when the worker closes the lifeline. The first process has namespaces of its own for processes, mounts,
network and more, in which it mounts empty folders, a new /proc and the output, read-only; when it ends, the
kernel ends all in there. The tests run as `drop_rights` leaves them: no capability, no user namespace, bounded.

What tests run by `uplift_judge` the keeper starts beside their first process, in a fork of its own memory, which holds
no nonce: with another first process, other namespaces, another user where there is one, and no fixtures.

Standard library, pytest and our modules that are inside only: nothing else exists in there.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from judges.inside import drop_rights, pytest_plugin, supervisor
from uplift_judge import Request

if TYPE_CHECKING:
    import pytest

MESSAGE_BYTES = 65536
_TICK_SECONDS = 0.1
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_EMPTY = "mode=1777"
_HIGHEST_DESCRIPTOR = 1 << 20


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
    """What comes with a job, in this order: where it writes, what it reads, who holds it, and where the tests ask
    for processes and the keeper hears of it.
    """

    output: int
    report: int
    status: int
    text: int
    lifeline: int
    asks: int
    serves: int


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
    """Move the control socket to a high number, and put /dev/null at the numbers that tests will write to.

    Anything else there, such as a log file of pytest's, would be closed under it when a fork takes the
    number.
    """
    moved = socket.socket(fileno=fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, 100))
    os.close(control)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for place in (drop_rights.REPORT_FD, drop_rights.ASK_FD):
        os.dup2(nowhere, place)
    if nowhere not in (drop_rights.REPORT_FD, drop_rights.ASK_FD):
        os.close(nowhere)
    return moved


class _Paused(pytest_plugin.Reporter):
    """The plugin of a pytest that stops before it collects anything, and goes on in a fork for each judgment."""

    def __init__(self, control: socket.socket, places: InsidePlaces) -> None:
        super().__init__("", drop_rights.REPORT_FD)
        self._control = control
        self._places = places

    def pytest_collection(self, session: pytest.Session) -> None:
        self._control.send(b"ready")
        gc.collect()
        gc.freeze()  # in the forks too: a collection would copy every page that it looks at
        run = _serve(self._control, self._places)
        self.nonce = pytest_plugin.become_examiner()
        if _has_conftest(run):
            # It may add options, which this pytest has already parsed: start over.
            pytest_plugin.run(run, self.nonce)
            os._exit(0)
        pytest_plugin.make_importable(run.root, run.packages)
        self.tell("start")
        session.config.args = [run.test_file]


def _serve(control: socket.socket, places: InsidePlaces) -> pytest_plugin.PytestRun:
    """Fork for each job that comes; returns only in the forks, confined and ready to run their tests."""
    while True:
        told, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 7)
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
        pytest_plugin.PytestRun(test_file, folder, f"{folder}/pytest.ini"), "warm-up", report=nowhere
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
        for descriptor in (held.output, held.report, held.asks):
            os.close(descriptor)
        ending = _watch(first, job, held, places)
        _, status = os.waitpid(first, 0)
        os.write(held.status, f"\n{ending} {os.waitstatus_to_exitcode(status)}".encode())
    except OSError as failed:
        drop_rights.fail(held.status, failed)
    os._exit(0)


def _watch(first: int, job: Job, held: Descriptors, places: InsidePlaces) -> str:
    """Wait until the first process can be reaped, having killed it if it went over a bound.

    Meanwhile what its tests ask for is started, one process after the other.
    """
    deadline = time.monotonic() + job.timeout_seconds
    exited = os.pidfd_open(first)
    asks = socket.socket(fileno=held.serves)
    examinee: _Examinee | None = None
    ending = "exited"
    while True:
        waited_for = [exited, held.lifeline, *(examinee.descriptors if examinee else [held.serves])]
        ready, _, _ = select.select(waited_for, [], [], _TICK_SECONDS)
        if exited in ready:
            ending = "exited"
        elif held.lifeline in ready:
            ending = "cancelled"
        elif time.monotonic() > deadline:
            ending = "timeout"
        elif supervisor.resident_bytes(supervisor.descendants(first)) > job.limits.memory_bytes:
            ending = "memory"
        elif examinee is not None:
            examinee = None if examinee.has_ended(job) else examinee
            continue
        else:
            request = Request.receive(asks) if held.serves in ready else None
            examinee = _Examinee(request, job, held, places) if request else None
            continue
        if examinee is not None:
            examinee.end("cancelled")
        if ending != "exited":
            os.kill(first, signal.SIGKILL)
            select.select([exited], [], [])
        return ending


class _Examinee:
    """A process that tests have asked for; it ends when they no longer want it."""

    def __init__(self, request: Request, job: Job, held: Descriptors, places: InsidePlaces) -> None:
        self._request = request
        self._deadline = time.monotonic() + request.seconds
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        drop_rights.come_back(own)
        drop_rights.unshare(drop_rights.CLONE_NEWPID)
        self._first = os.fork()
        if self._first == 0:
            _be_examinees_first(request, job, held, places)
        os.close(own)
        self._exited = os.pidfd_open(self._first)
        self.descriptors = [self._exited, request.reply.fileno()]

    def has_ended(self, job: Job) -> bool:
        """Whether it is over, also because it has gone over a bound."""
        if select.select([self._exited], [], [], 0)[0]:
            self.end("exited")
        elif self._request.word() is None:
            self.end("cancelled")
        elif time.monotonic() > self._deadline:
            self.end("timeout")
        elif supervisor.resident_bytes(supervisor.descendants(self._first)) > job.limits.memory_bytes:
            self.end("memory")
        else:
            return False
        return True

    def end(self, ending: str) -> None:
        """Kill what is left of it, and tell who asked for it."""
        os.kill(self._first, signal.SIGKILL)
        _, status = os.waitpid(self._first, 0)
        self._request.tell(f"{ending} {os.waitstatus_to_exitcode(status)}")
        self._request.close()
        os.close(self._exited)


def _be_examinees_first(request: Request, job: Job, held: Descriptors, places: InsidePlaces) -> NoReturn:
    try:
        drop_rights.die_with_parent()
        user = None if places.user is None else drop_rights.EXAMINEE
        _make_world(job, held.text, places, hidden=(places.root,))
        child = os.fork()
        if child == 0:
            _become_examinee(request, job, places, user)
        os.closerange(3, _HIGHEST_DESCRIPTOR)
        drop_rights.become_harmless(user)
        drop_rights.serve_as_first(child)
    except OSError as failed:
        drop_rights.fail(request.reply.fileno(), failed)
    finally:
        os._exit(1)


def _become_examinee(request: Request, job: Job, places: InsidePlaces, user: int | None) -> NoReturn:
    """Drop all rights, and run the code in this warm interpreter, or become the program."""
    _drop_all_rights(job, places, user)
    for place, given in enumerate((request.stdin, request.stdout, request.stderr)):
        os.dup2(given, place)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    if request.role == "python":
        code = os.pread(request.code, os.fstat(request.code).st_size, 0)
        os.closerange(3, _HIGHEST_DESCRIPTOR)
        sys.path += [folder for folder in job.run.packages if folder not in sys.path]
        _run_code(code)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.closerange(3, request.reply.fileno())
    os.closerange(request.reply.fileno() + 1, _HIGHEST_DESCRIPTOR)
    try:
        os.execvp(request.argv[0], request.argv)
    except OSError as failed:
        request.tell(f"could not start {request.argv[0]}: {failed.strerror}; ")
    os._exit(127)


def _run_code(code: bytes) -> NoReturn:
    """Run code as `python -c` does, and end as it ends."""
    atexit._clear()
    # pytest's, which would keep to themselves what an interpreter prints
    logging.root.handlers.clear()
    threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__
    main, status = ModuleType("__main__"), 0
    sys.modules["__main__"], sys.argv = main, ["-c"]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 - they stay
    try:
        exec(compile(code, "<code>", "exec"), vars(main))
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)  # noqa: T201 - as Python does
    except BaseException as broken:
        status = 1
        traceback.print_exception(
            broken.with_traceback(broken.__traceback__ and broken.__traceback__.tb_next)
        )
    threading._shutdown()  # type: ignore[attr-defined] # it waits for threads, as the interpreter does at its end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 255)


def _be_first(job: Job, held: Descriptors, places: InsidePlaces) -> pytest_plugin.PytestRun:
    """Be process 1: mount a file system with nothing new but the output, start the tests, and end with them."""
    try:
        drop_rights.die_with_parent()
        os.close(held.lifeline)
        os.close(held.serves)
        _make_world(job, held.text, places)
        tests = os.fork()
        if tests == 0:
            _become_tests(job, held, places)
        else:
            for descriptor in (held.output, held.report, held.status, held.asks):
                os.close(descriptor)
            drop_rights.become_harmless(places.user)
            drop_rights.serve_as_first(tests)
    except OSError as failed:
        drop_rights.fail(held.status, failed)
    return job.run


def _make_world(job: Job, text: int, places: InsidePlaces, hidden: tuple[str, ...] = ()) -> None:
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
    for place in hidden:
        drop_rights.mount("tmpfs", place, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "mode=755")
    output = Path(job.output_file)
    output.write_bytes(os.pread(text, os.fstat(text).st_size, 0))
    output.chmod(0o444)
    drop_rights.mount("none", places.output, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _become_tests(job: Job, held: Descriptors, places: InsidePlaces) -> None:
    """Drop all rights; the job's output and report become descriptors 1, 2 and 3, and the others are closed."""
    _drop_all_rights(job, places, places.user)
    os.write(held.status, b"started")
    for place, given in enumerate((held.output, held.output, held.report, held.asks), start=1):
        os.dup2(given, place)
    for given in (held.output, held.report, held.status, held.asks, held.text):
        os.close(given)


def _drop_all_rights(job: Job, places: InsidePlaces, user: int | None) -> None:
    os.chdir(places.work)
    os.setsid()
    drop_rights.enter_own_user_namespace(user)
    drop_rights.limit_resources(job.limits)
    drop_rights.drop_all_capabilities()
    drop_rights.restrict_for_good()
    os.environ["AI_OUTPUT_FILE"] = job.output_file
