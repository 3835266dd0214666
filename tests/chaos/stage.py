"""A private server, real worker processes and a real producer, all of which can be hurt and mended again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from conftest import start_server
from running import a_suite, standalone, start_uplift
from test_monitor import free_port
from test_shared_server import the_recipe
from test_tls import behind_tls, make_certificate

from bench.distance import away
from workers.store.keys import Keys
from workers.store.run_store import Store


@dataclass(frozen=True)
class Pace:
    """How long leases last and attempts take; `ends_within` is when a mended run must be over."""

    lease: float
    latency: float
    ends_within: float
    tasks: int = 15
    pass_k: int = 2
    in_flight: int = 3

    def environment(self) -> dict[str, str]:
        return {
            "UPLIFT_LEASE_SECONDS": str(self.lease),
            "UPLIFT_DRAIN_SECONDS": str(min(8.0, self.lease / 2)),
            "UPLIFT_IN_FLIGHT": str(self.in_flight),
        }


GUISE = Path(__file__).parent / "guise"
FOREIGN_TASKS = 20
SHORT = Pace(lease=2.0, latency=0.2, ends_within=90)
PRODUCTION = Pace(lease=30.0, latency=1.0, ends_within=300)


class DidNotEnd(AssertionError):
    """Something that must come to an end did not."""


@dataclass
class Stage:
    """Everything that takes part in one disturbed run. All its files are in `folder`, temporary ones included."""

    folder: Path
    pace: Pace
    model: str
    server_options: tuple[str, ...] = ()
    detached: bool = False
    guise: str = ""
    milliseconds: int = 0
    around: ExitStack = field(default_factory=ExitStack)
    strangers: list[subprocess.Popen[str]] = field(default_factory=list)
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    producer: subprocess.Popen[str] | None = None
    run_id: str = ""
    log: list[str] = field(default_factory=list)
    hurt: set[str] = field(default_factory=set)
    deaths: int = 0

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir()
        (self.folder / "data").mkdir()
        self.suite = a_suite(self.folder, self.pace.tasks)
        program = f'argv = ["sh", "-c", "sleep {self.pace.latency}; cat"]'
        lines = [
            'sandbox = "off"',
            'least_sandbox = "off"',
            'skill_mode = "prepend"',
            "[commands.slow]",
            program,
        ]
        (self.folder / "uplift.toml").write_text("\n".join(lines))
        if self.guise == "rights":
            self.limit_rights()
        self.start_server()
        self.client = redis.Redis.from_url(self.direct, socket_timeout=60)
        self.store = Store(self.client)
        self.url = self._address()

    @property
    def environment(self) -> dict[str, str]:
        return {**self.pace.environment(), "TMPDIR": str(self.folder / "tmp")}

    @property
    def attempts(self) -> int:
        return self.pace.tasks * self.pace.pass_k * 2

    def note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() % 1000:7.2f} {text}")

    def start_server(self) -> None:
        self.server, self.direct = start_server(self.folder / "data", *self.server_options)

    def limit_rights(self) -> None:
        """Let the server know a user with the rights of the recipe, also when it starts again."""
        user = " ".join(the_recipe()[2:])
        (self.folder / "users.acl").write_text(f"user default on nopass ~* &* +@all\nuser {user}\n")
        self.port = free_port()
        self.server_options += ("--port", str(self.port), "--aclfile", str(self.folder / "users.acl"))

    def _address(self) -> str:
        """How producer and workers reach the server."""
        match self.guise:
            case "tls":
                certificate = make_certificate(self.folder)
                socket = self.direct.removeprefix("unix://")
                port = self.around.enter_context(behind_tls(socket, certificate))
                return f"rediss://localhost:{port}/0?ssl_ca_certs={certificate[0]}"
            case "rights":
                return f"redis://evals:PASSWORD@127.0.0.1:{self.port}/0"
            case "far":
                return self.around.enter_context(away(self.direct, self.milliseconds))
        return self.direct

    def start_worker(self) -> subprocess.Popen[str]:
        words = ["worker", "--broker", self.url, "--log-level", "warning"]
        number = len(self.workers)
        self.workers.append(self._start(words, f"worker-{number}.log", **self._disguise(number)))
        return self.workers[-1]

    def start_stranger(self) -> None:
        """A worker of another version, in the same lanes, which can read nothing of ours."""
        words = ["worker", "--broker", self.url, "--log-level", "warning"]
        self.strangers.append(self._start(words, "stranger.log", CHAOS_VERSION="99", PYTHONPATH=str(GUISE)))

    def start_foreign(self) -> None:
        """Another Celery app on the same database, with tasks of its own."""
        address = f"redis+socket://{self.direct.removeprefix('unix://')}"
        argv = [sys.executable, str(GUISE / "foreign.py"), address, str(self.folder / "foreign.txt")]
        with (self.folder / "foreign.log").open("a") as output:
            process = subprocess.Popen(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
            )
        self.strangers.append(process)
        with Celery("asks", broker=address, set_as_current=False) as foreign:
            for number in range(FOREIGN_TASKS):
                foreign.send_task("foreign.write", [f"task-{number}"], ignore_result=True)

    def others_disturbed(self) -> list[str]:
        """What went wrong for those who share the server, in words; once all is whole again."""
        if self.guise == "rights" and (refused := self.client.acl_log()):
            return [f"the rights of the recipe are not enough: {refused}"]
        if self.guise != "foreign":
            return []
        wanted = {f"task-{number}": 1 for number in range(FOREIGN_TASKS)}
        self.until(lambda: set(self._foreign_ran()) == set(wanted), 60)
        ran = self._foreign_ran()
        # Celery itself repeats tasks, or loses one, when its connection breaks: then nothing may wait for ever.
        if "server" in self.hurt:
            return [f"{waiting} foreign tasks wait"] if (waiting := self.client.llen("celery")) else []
        return [f"foreign tasks ran {dict(ran)}"] if ran != wanted else []

    def _foreign_ran(self) -> Counter[str]:
        file = self.folder / "foreign.txt"
        return Counter(file.read_text().split() if file.exists() else [])

    def _disguise(self, number: int) -> dict[str, str]:
        """What makes a worker of this stage different: every second clock is wrong, or all have one name."""
        match self.guise:
            case "skewed":
                ahead = ("3600", "-3600")[number // 2 % 2] if number % 2 == 0 else ""
                return {"CHAOS_CLOCK": ahead, "PYTHONPATH": str(GUISE)}
            case "namesakes":
                return {"CHAOS_NAMESAKE": "1", "PYTHONPATH": str(GUISE)}
        return {}

    def evaluate(self, *more: str) -> None:
        self.run_id = f"run-{os.getpid()}-{time.monotonic_ns()}"
        words = ["--broker", self.url, "--model", self.model, "--pass-k", str(self.pace.pass_k), "--quiet"]
        words += ["--detach"] if self.detached else []
        self.producer = self._start(
            [*standalone(self.suite), *words, "--run-id", self.run_id, *more], "producer.log"
        )

    def resume(self) -> None:
        self.producer = self.start_command("resume")

    def start_command(self, command: str) -> subprocess.Popen[str]:
        return self._start(
            [command, self.run_id, "--broker", self.url, "--state-root", self.folder / "state", "--quiet"],
            "producer.log",
        )

    def _start(self, words: list[Any], log: str, **more: str) -> subprocess.Popen[str]:
        environment = {**self.environment, **more}
        with (self.folder / log).open("a") as output:
            return start_uplift(*words, cwd=self.folder, env=environment, stdout=output, stderr=output)

    def recorded(self) -> int:
        """How many records the server holds; -1 while it does not answer."""
        try:
            return int(self.client.hlen(Keys(self.run_id).records))
        except redis.RedisError:
            return -1

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def living_workers(self) -> list[subprocess.Popen[str]]:
        return [worker for worker in self.workers if worker.poll() is None]

    def heal(self) -> None:
        """Make sure that a server, a worker and a producer are there, as people would after an incident."""
        for process in (self.server, *self.workers):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        if self.server.poll() is not None:
            self.start_server()
        if not self.living_workers():
            self.start_worker()

    def await_end(self) -> int:
        """Follow the run to its artifact, resuming it as often as a producer was killed; returns the exit code.

        A detached run has to end with nobody watching; only then is it fetched.
        """
        deadline = time.monotonic() + self.pace.ends_within
        if self.detached:
            begun = time.monotonic()
            if not self.until(self.has_ended, self.pace.ends_within):
                raise DidNotEnd(f"nobody ended the detached run in {self.pace.ends_within} s\n{self.story()}")
            self.note(f"ended by itself {time.monotonic() - begun:.1f} s after all was whole again")
            self.producer = self.start_command("watch")
        while True:
            assert self.producer is not None
            try:
                code = self.producer.wait(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise DidNotEnd(f"no artifact after {self.pace.ends_within} s\n{self.story()}") from None
            if self.artifact_path().exists():
                return code
            if code in (0, 1):  # a verdict without an artifact, or a traceback
                raise DidNotEnd(f"the producer ended with {code} and left no artifact\n{self.story()}")
            if code == 3 or code < 0 or code in (2, 130):
                if time.monotonic() > deadline or code == 2:
                    raise DidNotEnd(f"the producer ended with {code}\n{self.story()}")
                self.note(f"producer ended with {code}; resuming")
                # A producer that died before the run existed has nothing to resume.
                self.resume() if self.exists() else self.evaluate()

    def has_ended(self) -> bool:
        try:
            return bool(self.client.exists(Keys(self.run_id).artifacts))
        except redis.RedisError:
            return False

    @contextmanager
    def longest_stall(self) -> Iterator[list[float]]:
        """Measure, within the block, the longest time in which nothing came of a run that is not over, in seconds."""
        over, longest = threading.Event(), [0.0]

        def look() -> None:
            seen, since = self.recorded(), time.monotonic()
            while not over.wait(0.1) and not self.has_ended():
                longest[0] = max(longest[0], time.monotonic() - since)
                if (now := self.recorded()) != seen or now < 0:  # it counts from when the server answers
                    seen, since = now, time.monotonic()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield longest
        finally:
            over.set()
            thread.join()

    def exists(self) -> bool:
        return bool(self.client.exists(Keys(self.run_id).state))

    def artifact_path(self) -> Path:
        return self.folder / "state" / "evaluations" / f"{self.run_id}.json"

    def stop_workers(self) -> list[int]:
        """Tell every worker to leave; their exit codes."""
        for worker in (*self.living_workers(), *self.strangers):
            worker.terminate()
        codes = []
        for worker in (*self.workers, *self.strangers):
            try:
                codes.append(worker.wait(timeout=40))
            except subprocess.TimeoutExpired:
                raise DidNotEnd(f"a worker did not leave\n{self.story()}") from None
        return codes

    def close(self) -> None:
        for process in (self.producer, *self.workers, *self.strangers, self.server):
            if process is not None and process.poll() is None:
                process.kill()
            if process is not None:
                process.wait()
        self.client.close()
        self.around.close()

    def story(self) -> str:
        """What happened, for whoever has to understand a violation."""
        logs = [
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in sorted(self.folder.glob("*.log"))
        ]
        ends = [f"worker {number} ended with {one.poll()}" for number, one in enumerate(self.workers)]
        return "\n".join([*self.log, *ends, *logs])


def a_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="ch-", dir="/tmp"))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
