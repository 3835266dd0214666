"""Run a program that stands for a model: bounded output, a clean environment, nothing left running.

Covered: output is cut while it is read, the process group is killed however the run ends, the program itself
also when this process dies, no environment but what is allowed. Where bubblewrap works, children that left
the group die too (see confine.py). Not covered without it: a child that starts its own session and lives on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from workers.models import MAX_OUTPUT_BYTES, ModelFailed

# A reader of lines keeps at most one; longer ones are dropped.
MAX_LINE_BYTES = 4 * MAX_OUTPUT_BYTES
_STDERR_TAIL = 4096
_LAST_WORDS_SECONDS = 2.0
_PASSED_ON = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *(
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
)
# Returns True when nothing more needs to be read: the program is then killed.
OnLine = Callable[[bytes], bool]

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True)
class Finished:
    """How a program ended: exit code (negative: killed by that signal), output, and the end of its errors."""

    exit_code: int
    output: bytes
    cut: bool
    errors: str


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    cwd: Path,
    environment: Mapping[str, str],
    on_line: OnLine | None = None,
) -> Finished:
    """Run a program to its end, or to its 4 MiB of output, where it is killed.

    With `on_line` every line of output is handed over as it comes and none is kept; there is then no limit to
    their number. Raises ModelFailed if the program cannot be started.
    """
    loop = asyncio.get_running_loop()
    watched = _Watched(loop, on_line)
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: watched,
            *argv,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as problem:
        raise ModelFailed(f"{argv[0]} cannot be started: {problem.strerror}", hopeless=True) from None
    try:
        writer = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        writer.write(stdin)
        writer.close()
        await watched.over.wait()
        _kill_group(transport.get_pid())
        # Its children may hold the pipes, but what was written before is to be read.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await watched.silent.wait()
    finally:
        _kill_group(transport.get_pid())
        transport.close()
        await watched.exited.wait()
    watched.last_line()
    code = transport.get_returncode()
    errors = bytes(watched.errors).decode("utf-8", "replace")
    return Finished(code if code is not None else -signal.SIGKILL, bytes(watched.output), watched.cut, errors)


def clean_environment(home: Path, allowed: Sequence[str] = ()) -> dict[str, str]:
    """A program's environment: paths, language, proxies, a home of its own, and what is allowed by name."""
    environment = {name: os.environ[name] for name in (*_PASSED_ON, *allowed) if name in os.environ}
    return {**environment, "HOME": str(home), "TMPDIR": str(home / "tmp")}


class _Watched(asyncio.SubprocessProtocol):
    """Collects what a program writes. `over` is set when it has exited or has said too much."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_line: OnLine | None) -> None:
        self.loop = loop
        self.on_line = on_line
        self.over, self.exited, self.silent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.output, self.errors = bytearray(), bytearray()
        self.cut = False
        self._open = {1, 2}
        self._skipping = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors += data
            del self.errors[:-_STDERR_TAIL]
        elif self.on_line is not None:
            self._lines(data, self.on_line)
        elif not self.cut:
            self.output += data
            if len(self.output) > MAX_OUTPUT_BYTES:
                self.cut = True
                self.over.set()

    def _lines(self, data: bytes, on_line: OnLine) -> None:
        first, *rest = data.split(b"\n")
        self.output += first
        for piece in rest:
            if not self._skipping and on_line(bytes(self.output)):
                self.over.set()
            self._skipping = False
            self.output = bytearray(piece)
        if len(self.output) > MAX_LINE_BYTES:
            self.output.clear()
            self._skipping = self.cut = True

    def last_line(self) -> None:
        """Hand over what came after the last line end."""
        if self.on_line is not None:
            if self.output and not self._skipping:
                self.on_line(bytes(self.output))
            self.output.clear()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.over.set()


def _kill_group(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """In the child, before the program starts: be killed when the worker is."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
