"""Run a command that nobody vouches for, bounded in what it can see, change and use; it ends with all its children.

    result = await run(
        [sys.executable, "-I", Input("bench.py"), Input("fixtures/data.csv")],
        inputs={"bench.py": b"print(1)", "fixtures": Path("suite/fixtures")},  # contents, or a file or folder
        environment={"AI_OUTPUT_FILE": Input("output.txt")},  # added to a clean environment
        timeout_seconds=60, limits=SandboxLimits(), sandbox="auto",
    )

An `Input` in argv or environment becomes the path at which the command finds that input. `result.ending` says
how the command ended, `result.output` is its stdout and stderr (going over `limits.output_bytes` ends it),
`result.report` what it wrote to file descriptor 3. `result.error` is set, and nothing was run, when the sandbox
did not start. At most one command per core runs at a time in a process, and waiting for one's turn does not
count as time used; several worker processes on one host each have their own count.

Covered, with bubblewrap: no network, no home, no other process to be seen, nothing writable but small private
folders, no right to be had back; a clean environment; memory, processor time, processes, file size and output
bounded; all processes dead at the end, also when the worker is killed.
Covered without it (`sandboxed` is False, and a warning is logged once): the clean environment, the bounds, a
private folder with copies of the inputs, and all processes dead at the end, daemons too (Linux). Under a root
worker the command also gets a user id of its own: it can write only where everyone may (such as /tmp), cannot
signal others or read their environment.
Not covered without it: network, reading files; and under a worker that is not root, writing where its user may,
reading the environment of that user's processes, killing them, our supervisor included, and using up the processes
that the user may have, so that other commands without bubblewrap fail to start theirs.
Not covered in either: a kernel exploit; memory held in memory files, or by many processes between two looks at
it (ten a second). Run workers in a container with limits of its own when suites come from strangers.

`run` is the way in; `run_blocking` is the same for a thread that may wait.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from judges.inside import remove_folder, supervisor
from judges.inside.drop_rights import NOBODY, RightsSettings
from judges.judgment import Sandbox
from judges.sandbox import bubblewrap, pipes, without_bubblewrap

MIB = 1024 * 1024
START_SECONDS = 30.0
TICK_SECONDS = 0.1
# The program that every command starts as, found in a folder that holds nothing but `judges.inside`.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from judges.inside import {0}; {0}.main()"

Ending = Literal["exited", "timeout", "output", "memory", "cancelled"]


@dataclass(frozen=True)
class Input:
    """The path, as the command sees it, of an input or of something inside an input that is a folder."""

    place: str


@dataclass(frozen=True)
class SandboxLimits:
    """Bounds on a command. Memory holds for each process (address space) and for all together (resident)."""

    memory_bytes: int = 4096 * MIB
    processes: int = 64
    file_bytes: int = 64 * MIB
    open_files: int = 256
    output_bytes: int = 1 * MIB
    report_bytes: int = 4 * MIB


@dataclass(frozen=True)
class SandboxCommand:
    """What to run, on what, and how long at most."""

    argv: Sequence[str | Input]
    timeout_seconds: float
    inputs: Mapping[str, bytes | Path] = field(default_factory=dict)
    environment: Mapping[str, str | Input] = field(default_factory=dict)
    limits: SandboxLimits = SandboxLimits()


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


class StartedCommand(Protocol):
    """A running sandbox: how to end it, and to clear up after it."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Confinement:
    """How commands are held on this machine: with bubblewrap or without, and whom a root worker's command
    becomes.
    """

    bubblewrap: bool
    user: int | None = None


def run_blocking(
    command: SandboxCommand, confinement: Confinement, cancelled: threading.Event
) -> SandboxResult:
    """Run to the end, whichever it is; no process and no file of the command remains afterwards."""
    with ExitStack() as held:
        taps = _Taps(
            output=held.enter_context(pipes.Pipe(command.limits.output_bytes)),
            report=held.enter_context(pipes.Pipe(command.limits.report_bytes)),
            status=held.enter_context(pipes.Pipe(4096)),
            lifeline=held.enter_context(pipes.Lifeline()),
        )
        begin = _start_bubblewrap if confinement.bubblewrap else _start_plain
        started = begin(command, confinement, taps, held)
        taps.handed_over()
        try:
            ending, seconds = _watch(started, command, taps, cancelled)
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


@functools.cache
def inside_code() -> dict[str, bytes]:
    """Our modules that run inside, by their place under a folder of their own: a package without the rest of it."""
    modules = Path(remove_folder.__file__).parent.glob("*.py")
    return {
        "judges/__init__.py": b"",
        **{f"judges/inside/{path.name}": path.read_bytes() for path in modules},
    }


def readable(source: Path, user: int | None, held: ExitStack) -> Path:
    """The folder or file itself, or a copy while `held` if it has something that `user` could not read."""
    if user is None or open_to_all(source):
        return source
    folder = Path(tempfile.mkdtemp(prefix="uplift-"))
    held.callback(remove_folder.remove, folder)
    return open_copy(source, folder / "copy")


def open_to_all(source: Path) -> bool:
    """Whether every user may read a file, or all of a folder."""
    return all(map(_readable_by_all, [source, *source.rglob("*")]))


def open_copy(source: Path, target: Path) -> Path:
    """Copy a file or folder so that every user may read it, and run what its owner may run."""
    copy = without_bubblewrap.copy(source, target)
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if runs else 0o644)
    return copy


@dataclass(frozen=True)
class _Taps:
    output: pipes.Pipe
    report: pipes.Pipe
    status: pipes.Pipe
    lifeline: pipes.Lifeline

    def all(self) -> tuple[pipes.Pipe, ...]:
        return self.output, self.report, self.status

    def handed_over(self) -> None:
        for pipe in self.all():
            pipe.handed_over()
        self.lifeline.handed_over()

    def take(self) -> None:
        for pipe in self.all():
            pipe.take()


def _watch(
    started: StartedCommand, command: SandboxCommand, taps: _Taps, cancelled: threading.Event
) -> tuple[Ending, float]:
    """Wait for the command to end or to go over a bound: which it was, and its seconds."""
    began, allowed, running = time.monotonic(), START_SECONDS, False
    process = started.process
    with ExitStack() as held:
        exits = _exit_descriptor(process.pid, held)
        while True:
            pipes.wait(taps.all(), exits, TICK_SECONDS if exits else TICK_SECONDS / 5)
            if not running and taps.status.taken:
                began, allowed, running = time.monotonic(), command.timeout_seconds, True
            seconds = time.monotonic() - began
            if taps.output.over or taps.report.over:
                return "output", seconds
            if process.poll() is not None:
                return "exited", seconds
            if cancelled.is_set():
                return "cancelled", seconds
            if seconds > allowed:
                return "timeout", seconds
            if supervisor.resident_bytes(supervisor.descendants(process.pid)) > command.limits.memory_bytes:
                return "memory", seconds


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


def _start_bubblewrap(
    command: SandboxCommand, confinement: Confinement, taps: _Taps, held: ExitStack
) -> StartedCommand:
    root = bubblewrap.INPUTS
    binds: dict[str, Path] = {}
    contents = {f"{bubblewrap.CODE}/{place}": content for place, content in inside_code().items()}
    for name, source in command.inputs.items():
        if isinstance(source, bytes):
            contents[f"{root}/{name}"] = source
        else:
            binds[f"{root}/{name}"] = readable(source, confinement.user, held)
    told = _settings(command, taps, user=confinement.user, namespace=True)
    return bubblewrap.start(
        [*_boot("drop_rights", bubblewrap.CODE), told.to_json(), *_resolved(command.argv, root)],
        bubblewrap.SandboxView(binds, contents),
        environment=_environment(command, root, bubblewrap.WORK, bubblewrap.TMP),
        user=confinement.user,
        # To become that user; or to map root, which the command is until `drop_rights` gives it a namespace of
        # its own.
        capabilities=("CAP_SETFCAP",) if confinement.user is None else ("CAP_SETUID", "CAP_SETGID"),
        output=taps.output.write_end,
        keep=[told.report_fd, told.status_fd, told.lifeline_fd],
    )


def _start_plain(
    command: SandboxCommand, confinement: Confinement, taps: _Taps, held: ExitStack
) -> StartedCommand:
    folder = without_bubblewrap.Folder(command.inputs, inside_code())
    held.callback(folder.remove)
    told = _settings(command, taps, folder=str(folder.path))
    return without_bubblewrap.start(
        [
            *_boot("supervisor", str(folder.code)),
            told.to_json(),
            *_resolved(command.argv, str(folder.inputs)),
        ],
        environment=_environment(command, str(folder.inputs), str(folder.work), str(folder.tmp)),
        cwd=folder.work,
        output=taps.output.write_end,
        keep=[told.report_fd, told.status_fd, told.lifeline_fd],
        lifeline=taps.lifeline,
    )


def _boot(program: str, code: str) -> list[str]:
    return [bubblewrap.python(), "-I", "-S", "-c", _BOOT.format(program), code]


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
    """A clean environment: where things are, and one thread for numerical libraries that would take every
    core.
    """
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": work, "TMPDIR": tmp, "LANG": "C.UTF-8", **threads}
    return own | {"PYTHONDONTWRITEBYTECODE": "1"}


def _settings(command: SandboxCommand, taps: _Taps, **more: Any) -> RightsSettings:
    ends = {"report_fd": taps.report.write_end, "status_fd": taps.status.write_end}
    ends["lifeline_fd"] = taps.lifeline.read_end
    return settings(command.limits, command.timeout_seconds, **ends, **more)


def _environment(command: SandboxCommand, inputs: str, work: str, tmp: str) -> dict[str, str]:
    given = {name: _resolve(value, inputs) for name, value in command.environment.items()}
    return environment(work, tmp) | given


def _resolved(values: Sequence[str | Input], root: str) -> list[str]:
    return [_resolve(value, root) for value in values]


def _resolve(value: str | Input, root: str) -> str:
    return f"{root}/{value.place}" if isinstance(value, Input) else value


def _readable_by_all(path: Path) -> bool:
    if path.is_symlink():
        return True
    mode = path.stat().st_mode
    return bool(mode & stat.S_IROTH) and (not path.is_dir() or bool(mode & stat.S_IXOTH))


def _start_error(taps: _Taps) -> str | None:
    if taps.status.taken == b"started":
        return None
    said = taps.status.taken.removeprefix(b"started: ") or taps.output.taken[-500:] or b"it gave no reason"
    return "the sandbox did not start: " + said.decode(errors="replace").strip()


UNSANDBOXED = "without bubblewrap"
# Packages that only root may read are no use to a command that is not root.
_LOOK_AROUND = "import os, sys; [os.listdir(folder) for folder in sys.argv[1:]]"

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


class SandboxUnavailable(Exception):
    """A sandbox was required and there is none; the text says why."""


@dataclass(frozen=True)
class Probe:
    """Whether bubblewrap works here, as tried; else `why_not`. `user` is whom a root worker's commands
    become.
    """

    works: bool
    why_not: str = ""
    user: int | None = None


async def run(
    argv: Sequence[str | Input],
    *,
    timeout_seconds: float,
    inputs: Mapping[str, bytes | Path] | None = None,
    environment: Mapping[str, str | Input] | None = None,
    limits: SandboxLimits | None = None,
    sandbox: Sandbox = "auto",
) -> SandboxResult:
    """Run a command to its end; cancelling this ends the command first. argv[0] is an absolute path.

    Raises SandboxUnavailable when `sandbox` is "required" and bubblewrap does not work.
    """
    command = SandboxCommand(
        argv, timeout_seconds, inputs or {}, environment or {}, limits or SandboxLimits()
    )
    return await in_thread(lambda cancelled: run_blocking(command, confinement(sandbox), cancelled))


def confinement(sandbox: Sandbox) -> Confinement:
    """How to hold a command under this setting; warns once a process when it must do without bubblewrap.

    Takes a while on first use, so call it from a thread. Raises SandboxUnavailable.
    """
    found = probe() if sandbox != "off" else Probe(works=False, why_not="switched off")
    if found.works:
        return Confinement(bubblewrap=True, user=found.user)
    if sandbox == "required":
        raise SandboxUnavailable(f"a sandbox is required and bubblewrap does not work here: {found.why_not}")
    _warn_once(found.why_not)
    return Confinement(bubblewrap=False)


@functools.cache
def probe() -> Probe:
    """Try bubblewrap by running this Python in it, once a process."""
    if sys.platform != "linux":
        return Probe(works=False, why_not="bubblewrap needs Linux")
    if bubblewrap.executable() is None:
        return Probe(works=False, why_not="bwrap is not installed")
    # Root that cannot hand its commands to another user (some containers) still gets the rest.
    reasons = []
    for user in (NOBODY, None) if os.geteuid() == 0 else (None,):
        trial = SandboxCommand(
            [bubblewrap.python(), "-I", "-c", _LOOK_AROUND, *bubblewrap.package_folders()], timeout_seconds=60
        )
        try:
            result = run_blocking(trial, Confinement(bubblewrap=True, user=user), threading.Event())
        except OSError as failed:
            reasons.append(str(failed))
            continue
        if result.error is None and result.exit_code == 0:
            return Probe(works=True, user=user)
        reasons.append(result.error or result.output.decode(errors="replace").strip()[-300:] or result.ending)
    return Probe(works=False, why_not=reasons[0])


async def in_thread(work: Callable[[threading.Event], _Value]) -> _Value:
    """Run blocking work in one of as many threads as there are cores, from any event loop.

    When the caller is cancelled, the event is set, and the work has ended before the cancellation goes on.
    """
    cancelled = threading.Event()
    future: Future[_Value] = _threads().submit(work, cancelled)
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
    _log.warning("judging %s (%s): less is held back, see docs/judges.md", UNSANDBOXED, why)


if sys.platform != "win32":
    # A forked child has none of the threads.
    os.register_at_fork(after_in_child=_threads.cache_clear)
