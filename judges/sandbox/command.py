"""Run an untrusted command that can see, change and use little, and end it with all its children.

    command = SandboxCommand(
        [sys.executable, "-I", Input("bench.py"), Input("fixtures/data.csv")],
        inputs={"bench.py": b"print(1)", "fixtures": Path("suite/fixtures")},  # contents, or a file or folder
        environment={"AI_OUTPUT_FILE": Input("output.txt")},  # added to a clean environment
        timeout_seconds=60,
    )
    result = await run(command, sandbox="auto")

An `Input` in argv or environment becomes the path at which the command finds that input. `result.ending` says
how the command ended, `result.output` is its stdout and stderr (going over `limits.output_bytes` ends it),
`result.report` what it wrote to file descriptor 3. `result.error` is set, and nothing was run, when the sandbox
did not start. Code of an output that it runs is to run apart from it: see `examining`. At most one command per core
runs at a time in a process, not counting examinees, and waiting for one's turn does not count as time used; several
worker processes on one host each have their own count.

Covered, with bubblewrap: no network, no home, no other process to be seen, nothing writable but small private
folders, no right to be had back; a clean environment; memory, processor time, processes, file size and output
bounded; all processes dead at the end, also when the worker is killed.
Covered without it (`sandboxed` is False, and a warning is logged once): the clean environment, the bounds, a
private folder with copies of the inputs, what is written to disks (looked at ten times a second), no dangerous
system call, and all processes dead at the end, daemons too (Linux). Under a root worker the command also gets a
user id of its own: it can write only where everyone may (such as /tmp), cannot signal others or read their environment.
Not covered without it: network, reading files; and under a worker that is not root, writing where its user may,
reading the environment of that user's processes, killing them, our supervisor included, and using up the processes
that the user may have, so that other commands without bubblewrap fail to start theirs.
Not covered in either: a kernel exploit; memory held in memory files, or by many processes between two looks at
it (ten a second). Run workers in a container with limits of its own when suites come from strangers.

`run` is the way in; `run_blocking` is the same for a thread that may wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import os
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from judges.inside import remove_folder, supervisor
from judges.inside.drop_rights import ASK_FD, EXAMINEE, NOBODY, RightsSettings
from judges.judgment import Judgment, Sandbox
from judges.sandbox import bubblewrap, without_bubblewrap
from judges.sandbox.bubblewrap import SandboxDescription, Sandboxed
from judges.sandbox.limits import SandboxLimits
from judges.sandbox.pipes import Taps
from judges.sandbox.without_bubblewrap import Supervised
from uplift_judge import ASK_VARIABLE, PYTHON_RUNS_CODE, Request

START_SECONDS = 30.0
TICK_SECONDS = 0.1
_MOST_EXAMINEES = 4  # of one command at a time; others wait

Ending = Literal["exited", "timeout", "output", "memory", "disk", "cancelled"]
# In words, where the command did not end by itself.
ENDINGS = {
    "timeout": "timed out",
    "output": "printed or reported more than is allowed",
    "memory": "used more memory than is allowed",
    "disk": "wrote more to disk than is allowed",
    "cancelled": "cancelled",
}
LAST_WORDS_CHARACTERS = 500


@dataclass(frozen=True)
class Input:
    """The path, as the command sees it, of an input or of something inside an input that is a folder."""

    place: str


CODE = Input("../code")  # our own modules


@dataclass(frozen=True)
class SandboxCommand:
    """What to run, on what, and how long at most; an input may take the place of a file in a folder before it.

    Given `stdin`, what it prints is its report. Of `examinees` it may have any started by their names, apart from it:
    it asks for them on descriptor 4, where it finds the nonce first.
    """

    argv: Sequence[str | Input]
    timeout_seconds: float
    inputs: Mapping[str, bytes | Path] = field(default_factory=dict)
    environment: Mapping[str, str | Input] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    examinees: Mapping[str, SandboxCommand] = field(default_factory=dict)
    nonce: bytes = b""
    stdin: bytes | None = None


def examining(command: SandboxCommand, text: bytes, left: Path | None) -> SandboxCommand:
    """The command as the examiner of an output and of the files that an agent left.

    By `uplift_judge` it has their code run in sandboxes apart from its own, as another user where the worker is root.
    """
    shared: dict[str, bytes | Path] = {"output/output.txt": text}
    places: dict[str, str | Input] = {"AI_OUTPUT_FILE": Input("output/output.txt")}
    if left is not None:
        shared["workspace"], places["AI_WORKSPACE"] = left, Input("workspace")
    python = [bubblewrap.python(), "-I", "-c", PYTHON_RUNS_CODE, "3", *bubblewrap.package_folders()]
    alone = SandboxCommand([], command.timeout_seconds, shared, places, command.limits)
    return replace(
        command,
        inputs={**command.inputs, **shared},
        environment={**command.environment, **places},
        examinees={"command": alone, "python": replace(alone, argv=python)},
    )


@dataclass(frozen=True)
class SandboxResult:
    """How a command ended and what it wrote; with `error` set, nothing was run.

    `exit_code` is 128 + n after signal n and None when we ended the command; `seconds` is its time on the
    wall.
    """

    ending: Ending
    exit_code: int | None
    output: bytes
    report: bytes
    seconds: float
    sandboxed: bool
    error: str | None = None

    @property
    def last_words(self) -> str:
        """The end of what the command printed."""
        return self.output.decode(errors="replace").strip()[-LAST_WORDS_CHARACTERS:]


@dataclass(frozen=True)
class Confinement:
    """How commands are confined on this machine: with bubblewrap, or `why_not`.

    `user` is whom a root worker's commands become.
    """

    bubblewrap: bool
    user: int | None = None
    why_not: str = ""


def run_blocking(
    command: SandboxCommand,
    confinement: Confinement,
    cancelled: threading.Event,
    request: Request | None = None,
) -> SandboxResult:
    """Run to the end, whichever it is; no process and no file of the command remains afterwards.

    With a request, the command has its descriptors, reads code from number 3, and ends when its reply is closed.
    """
    with ExitStack() as held:
        taps = Taps(command.limits.output_bytes, command.limits.report_bytes, held)
        ask_fd = _Examinees(command, confinement, held).ask_fd if command.examinees else -1
        started = _start(command, confinement, taps, held, ask_fd, request)
        taps.handed_over()
        try:
            ending, seconds = _watch(started, command, taps, cancelled, request)
        finally:
            started.kill()
            started.close()
        taps.take()
        return SandboxResult(
            ending=ending,
            exit_code=started.process.returncode if ending == "exited" else None,
            output=taps.output.taken,
            report=taps.report.taken,
            seconds=seconds,
            sandboxed=confinement.bubblewrap,
            error=None if ending == "cancelled" else _start_error(taps),
        )


def readable(source: Path, user: int | None, held: ExitStack) -> Path:
    """The folder or file itself, or a copy while `held` if it has something that `user` could not read."""
    if user is None or open_to_all(source):
        return source
    folder = Path(tempfile.mkdtemp(prefix="uplift-"))
    held.callback(remove_folder.remove, folder)
    return open_copy(source, folder / "copy")


def open_to_all(source: Path) -> bool:
    """Whether every user may read a file, or all of a folder."""
    for path in (source, *source.rglob("*")):
        wanted = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        if not path.is_symlink() and path.stat().st_mode & wanted != wanted:
            return False
    return True


def open_copy(source: Path, target: Path) -> Path:
    """Copy a file or folder so that every user may read it, and run what its owner may run."""
    copy = without_bubblewrap.copy(source, target)
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if runs else 0o644)
    return copy


class _Examinees:
    """Starts what a command asks for, each apart from it and from the others; ends them all as the block ends."""

    def __init__(self, command: SandboxCommand, confinement: Confinement, held: ExitStack) -> None:
        self._known = command.examinees
        self._confinement = replace(confinement, user=EXAMINEE if confinement.user else None)
        self._over = threading.Event()
        self._room = threading.Semaphore(_MOST_EXAMINEES)
        self._asks, theirs = (
            held.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        )
        self._asks.send(command.nonce)
        self.ask_fd = theirs.fileno()
        self._threads: list[threading.Thread] = []
        self._server = threading.Thread(target=self._serve)
        self._server.start()
        held.callback(self._end)

    def _serve(self) -> None:
        while self._room.acquire() and not self._over.is_set():
            request = Request.receive(self._asks)
            if request is None:
                self._room.release()
                time.sleep(0.001)  # whatever sends what makes no sense is not to keep us busy
            else:
                thread = threading.Thread(target=self._run, args=(request,))
                thread.start()
                self._threads = [*(other for other in self._threads if other.is_alive()), thread]

    def _run(self, request: Request) -> None:
        try:
            known = self._known[request.role]
            seconds = min(request.seconds, known.timeout_seconds)
            wanted = replace(known, argv=[*known.argv, *request.argv], timeout_seconds=seconds)
            result = run_blocking(wanted, self._confinement, self._over, request)
            request.tell(result.error or f"{result.ending} {result.exit_code}")
        except (OSError, ValueError, KeyError) as failed:
            request.tell(f"{type(failed).__name__}: {failed}")
        finally:
            request.close()
            self._room.release()

    def _end(self) -> None:
        self._over.set()
        self._asks.shutdown(socket.SHUT_RDWR)
        self._server.join()
        for thread in self._threads:
            thread.join()


def _heed(request: Request, started: Sandboxed | Supervised) -> bool:
    """Stop or wake all that was started, as who asked for it says; false once nobody wants it any more."""
    word, stopped = request.word(), set[int]()
    if word == "stop":
        while more := set(started.inside()) - stopped:
            supervisor.kill(more, signal.SIGSTOP)
            stopped |= more
        request.tell("stopped")
    elif word == "go":
        supervisor.kill(started.inside(), signal.SIGCONT)
    return word is not None


def _watch(
    started: Sandboxed | Supervised,
    command: SandboxCommand,
    taps: Taps,
    cancelled: threading.Event,
    request: Request | None,
) -> tuple[Ending, float]:
    """Wait until the command ends or goes over a bound; returns which, and its seconds."""
    began, allowed, running = time.monotonic(), START_SECONDS, False
    process, looked = started.process, 0.0
    with ExitStack() as held:
        exits = _exit_descriptor(process.pid, held)
        asked = [request.reply.fileno()] if request else []
        while True:
            taps.wait([*exits, *asked], TICK_SECONDS if exits else TICK_SECONDS / 5)
            if not running and taps.status.taken:
                began, allowed, running = time.monotonic(), command.timeout_seconds, True
            seconds = time.monotonic() - began
            if taps.over:
                return "output", seconds
            if process.poll() is not None:
                return "exited", seconds
            if cancelled.is_set() or (request and not _heed(request, started)):
                return "cancelled", seconds
            if seconds > allowed:
                return "timeout", seconds
            if time.monotonic() - looked < TICK_SECONDS / 2:
                continue
            looked = time.monotonic()
            if supervisor.resident_bytes(supervisor.descendants(process.pid)) > command.limits.memory_bytes:
                return "memory", seconds
            if started.disk_bytes() > command.limits.disk_bytes:
                return "disk", seconds


def _exit_descriptor(process: int, held: ExitStack) -> list[int]:
    """A descriptor that becomes ready when the process ends, where the system has such a thing."""
    if sys.platform != "linux":
        return []
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:  # it has ended already
        return []
    held.callback(os.close, descriptor)
    return [descriptor]


def _start(
    command: SandboxCommand,
    confinement: Confinement,
    taps: Taps,
    held: ExitStack,
    ask_fd: int,
    request: Request | None,
) -> Sandboxed | Supervised:
    """Start the program that gives up its rights and becomes the command: in a bubblewrap, or in a private folder."""
    if confinement.bubblewrap:
        folder, user = None, confinement.user
        inputs, work, tmp = bubblewrap.INPUTS, bubblewrap.WORK, bubblewrap.TMP
    else:
        folder, user = without_bubblewrap.Folder(command.inputs, bubblewrap.inside_code()), None
        held.callback(remove_folder.remove, folder.path)
        inputs, work, tmp = str(folder.inputs), str(folder.work), str(folder.tmp)
    ends = {"status_fd": taps.status.write_end, "lifeline_fd": taps.lifeline.read_end}
    ends["report_fd"] = request.code if request else taps.report.write_end
    keep = list(ends.values())
    if command.examinees:
        ends["ask_fd"] = ask_fd
        keep.append(ask_fd)
    stdio = (request.stdout, request.stderr, request.stdin) if request else (taps.output.write_end,)
    if command.stdin is not None:
        file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - `held` closes it
        file.write(command.stdin)
        file.seek(0)
        stdio = (taps.report.write_end, taps.output.write_end, file.fileno())
    more = {"folder": str(folder.path)} if folder else {"user": user, "namespace": True}
    told = settings(command.limits, command.timeout_seconds, **ends, **more)
    argv = [_resolved(value, inputs) for value in command.argv]
    given = {name: _resolved(value, inputs) for name, value in command.environment.items()}
    given |= {ASK_VARIABLE: str(ASK_FD)} if command.examinees else {}
    variables = environment(work, tmp) | given
    if folder is not None:
        argv = [*bubblewrap.boot("supervisor", told.to_json(), code=str(folder.code)), *argv]
        return Supervised(argv, variables, Path(work), keep, taps.lifeline, *stdio)
    reads, contents = bubblewrap.python_folders(), dict[str, bytes]()
    for name, source in command.inputs.items():
        if isinstance(source, bytes):
            contents[f"{inputs}/{name}"] = source
        else:
            reads[f"{inputs}/{name}"] = readable(source, user, held)
    description = SandboxDescription(reads=reads, contents=contents)
    launch = bubblewrap.Launch(
        [*bubblewrap.boot("drop_rights", told.to_json()), *argv], description, user, keep, command.limits
    )
    return bubblewrap.start(launch, variables, *stdio)


def settings(limits: SandboxLimits, seconds: float, **more: Any) -> RightsSettings:
    """What `drop_rights` is to do for a command with these limits that may take so many seconds."""
    return RightsSettings(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        file_bytes=limits.file_bytes,
        open_files=limits.open_files,
        # A command with threads uses more than a second of processor time a second.
        cpu_seconds=math.ceil(seconds * (os.cpu_count() or 1)) + 1,
        **more,
    )


def environment(work: str, tmp: str) -> dict[str, str]:
    """A clean environment: where things are, and one thread for libraries that would use every core."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": work, "TMPDIR": tmp, "LANG": "C.UTF-8", **threads}
    return own | {"PYTHONDONTWRITEBYTECODE": "1"}


def marked(judgment: Judgment, result: SandboxResult) -> Judgment:
    """Say so in a judgment's details where the command ran without bubblewrap."""
    if result.sandboxed:
        return judgment
    return judgment.model_copy(update={"details": f"[{UNSANDBOXED}] {judgment.details}"})


def _resolved(value: str | Input, root: str) -> str:
    return f"{root}/{value.place}" if isinstance(value, Input) else value


def _start_error(taps: Taps) -> str | None:
    begun, _, why = taps.status.taken.partition(b": ")
    if begun == b"started":
        return why.decode(errors="replace") or None
    said = taps.status.taken or taps.output.taken[-500:] or b"it gave no reason"
    return "the sandbox did not start: " + said.decode(errors="replace").strip()


UNSANDBOXED = "without bubblewrap"
# Packages that only root may read are no use to a command that is not root.
_LOOK_AROUND = "import os, sys; [os.listdir(folder) for folder in sys.argv[1:]]"

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


class SandboxUnavailable(Exception):
    """A sandbox was required and there is none; the text says why."""


async def run(command: SandboxCommand, sandbox: Sandbox = "auto") -> SandboxResult:
    """Run a command to its end; cancelling this ends the command first. argv[0] is an absolute path.

    Raises SandboxUnavailable when `sandbox` is "required" and bubblewrap does not work.
    """
    return await in_thread(lambda cancelled: run_blocking(command, confinement(sandbox), cancelled))


def confinement(sandbox: Sandbox) -> Confinement:
    """How to confine a command under this setting; warns once a process where bubblewrap is not used.

    Takes a while on first use, so call it from a thread. Raises SandboxUnavailable.
    """
    tried = probe() if sandbox != "off" else Confinement(bubblewrap=False, why_not="switched off")
    if not tried.bubblewrap:
        if sandbox == "required":
            raise SandboxUnavailable(
                f"a sandbox is required and bubblewrap does not work here: {tried.why_not}"
            )
        _warn_once(tried.why_not)
    return tried


@functools.cache
def probe(*, for_agents: bool = False) -> Confinement:
    """Find out whether bubblewrap works here by running this Python in it, once a process; agents need no Python."""
    if sys.platform != "linux":
        return Confinement(bubblewrap=False, why_not="bubblewrap needs Linux")
    if bubblewrap.executable() is None:
        return Confinement(bubblewrap=False, why_not="bwrap is not installed")
    # Root that cannot hand its commands to another user still gets the rest, in a container whose root is none outside.
    reasons, users = [], (None,) if os.geteuid() else (NOBODY,) if _is_machines_root() else (NOBODY, None)
    for user in users:
        look_around = [bubblewrap.python(), "-I", "-c", _LOOK_AROUND, *bubblewrap.package_folders()]
        trial = SandboxCommand(["/bin/sh", "-c", ":"] if for_agents else look_around, timeout_seconds=60)
        tried = Confinement(bubblewrap=True, user=user)
        try:
            result = run_blocking(trial, tried, threading.Event())
        except OSError as failed:
            reasons.append(str(failed))
            continue
        if result.error is None and result.exit_code == 0:
            return tried
        reasons.append(result.error or result.output.decode(errors="replace").strip()[-300:] or result.ending)
    return Confinement(bubblewrap=False, why_not=reasons[0])


def facts_inside() -> dict[str, str]:
    """What the kernel tells a command in the best sandbox of this machine of itself; empty where it does not."""
    code = "print(open('/proc/self/status').read())"
    argv = [bubblewrap.python(), "-I", "-c", code]
    result = run_blocking(SandboxCommand(argv, timeout_seconds=60), probe(), threading.Event())
    lines = result.output.decode(errors="replace").splitlines() if result.exit_code == 0 else []
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_machines_root() -> bool:
    return Path("/proc/self/uid_map").read_text().split()[:2] == ["0", "0"]


async def in_thread(work: Callable[[threading.Event], _Value]) -> _Value:
    """Run blocking work in one of as many threads as there are cores, from any event loop.

    When the caller is cancelled, the event is set, and the work has ended before the cancellation goes on.
    """
    cancelled = threading.Event()
    future: Future[_Value] = _threads().submit(contextvars.copy_context().run, work, cancelled)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        cancelled.set()
        if not future.cancelled():
            with suppress(Exception):
                await asyncio.wrap_future(future)
        raise


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="sandbox")


@functools.cache
def _warn_once(why: str) -> None:
    _log.warning(
        "judging %s (%s): code under test has the network, and may read%s what this worker may; see docs/isolation.md",
        UNSANDBOXED,
        why,
        "" if os.geteuid() == 0 and sys.platform == "linux" else ", change and kill",
    )


if sys.platform != "win32":
    # A forked child has none of the threads.
    os.register_at_fork(after_in_child=_threads.cache_clear)
