"""Run one command in a fresh sandbox and wait for its end: a blocking call. `sandbox` is the way in."""

from __future__ import annotations

import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from judges import bubblewrap, pipes, plain, process_tree
from judges.confine import Settings

MIB = 1024 * 1024
START_SECONDS = 30.0
TICK_SECONDS = 0.1
_CODE = ("confine.py", "supervise.py", "process_tree.py")
# The program that every command starts as: `confine`, found in a folder that holds nothing but a few of our
# modules.
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from judges import confine; confine.main()"

Ending = Literal["exited", "timeout", "output", "memory", "cancelled"]


@dataclass(frozen=True)
class Input:
    """The path, as the command sees it, of an input or of something inside an input that is a folder."""

    place: str


@dataclass(frozen=True)
class Limits:
    """Bounds on a command. Memory holds for each process (address space) and for all together (resident)."""

    memory_bytes: int = 4096 * MIB
    processes: int = 64
    file_bytes: int = 64 * MIB
    open_files: int = 256
    output_bytes: int = 1 * MIB
    report_bytes: int = 4 * MIB


@dataclass(frozen=True)
class Command:
    """What to run, on what, and how long at most."""

    argv: Sequence[str | Input]
    timeout_seconds: float
    inputs: Mapping[str, bytes | Path] = field(default_factory=dict)
    environment: Mapping[str, str | Input] = field(default_factory=dict)
    limits: Limits = Limits()


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


class Started(Protocol):
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


def run(command: Command, confinement: Confinement, cancelled: threading.Event) -> SandboxResult:
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


def code_contents(names: Iterable[str]) -> dict[str, bytes]:
    """Our modules that run inside, by their place under a folder of their own: a package without the rest of
    it.
    """
    here = Path(__file__).parent
    return {"judges/__init__.py": b"", **{f"judges/{name}": (here / name).read_bytes() for name in names}}


def readable(source: Path, user: int | None, held: ExitStack) -> Path:
    """The folder or file itself, or a copy while `held` if it has something that `user` could not read."""
    if user is None or all(map(_readable_by_all, [source, *source.rglob("*")])):
        return source
    folder = Path(tempfile.mkdtemp(prefix="uplift-"))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    copy = plain.copy(source, folder / "copy")
    for path in [copy, *copy.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
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
    started: Started, command: Command, taps: _Taps, cancelled: threading.Event
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
            if (
                process_tree.resident_bytes(process_tree.descendants(process.pid))
                > command.limits.memory_bytes
            ):
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


def _start_bubblewrap(command: Command, confinement: Confinement, taps: _Taps, held: ExitStack) -> Started:
    root = bubblewrap.INPUTS
    binds: dict[str, Path] = {}
    contents = {f"{bubblewrap.CODE}/{place}": content for place, content in code_contents(_CODE).items()}
    for name, source in command.inputs.items():
        if isinstance(source, bytes):
            contents[f"{root}/{name}"] = source
        else:
            binds[f"{root}/{name}"] = readable(source, confinement.user, held)
    told = _settings(command, taps, user=confinement.user, namespace=True)
    return bubblewrap.start(
        [*_boot(bubblewrap.CODE), told.to_json(), *_resolved(command.argv, root)],
        bubblewrap.View(binds, contents),
        environment=_environment(command, root, bubblewrap.WORK, bubblewrap.TMP),
        user=confinement.user,
        # To become that user; or to map root, which the command is until `confine` gives it a namespace of
        # its own.
        capabilities=("CAP_SETFCAP",) if confinement.user is None else ("CAP_SETUID", "CAP_SETGID"),
        output=taps.output.write_end,
        keep=[told.report_fd, told.status_fd, told.lifeline_fd],
    )


def _start_plain(command: Command, confinement: Confinement, taps: _Taps, held: ExitStack) -> Started:
    folder = plain.Folder(command.inputs, code_contents(_CODE))
    held.callback(folder.remove)
    told = _settings(command, taps, supervise=True, folder=str(folder.path))
    return plain.start(
        [*_boot(str(folder.code)), told.to_json(), *_resolved(command.argv, str(folder.inputs))],
        environment=_environment(command, str(folder.inputs), str(folder.work), str(folder.tmp)),
        cwd=folder.work,
        output=taps.output.write_end,
        keep=[told.report_fd, told.status_fd, told.lifeline_fd],
        lifeline=taps.lifeline,
    )


def _boot(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _BOOT, code]


def settings(limits: Limits, seconds: float, **more: Any) -> Settings:
    """What `confine` is to do for a command with these limits that may take so many seconds."""
    return Settings(
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


def _settings(command: Command, taps: _Taps, **more: Any) -> Settings:
    ends = {"report_fd": taps.report.write_end, "status_fd": taps.status.write_end}
    ends["lifeline_fd"] = taps.lifeline.read_end
    return settings(command.limits, command.timeout_seconds, **ends, **more)


def _environment(command: Command, inputs: str, work: str, tmp: str) -> dict[str, str]:
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
