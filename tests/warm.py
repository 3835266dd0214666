"""The command line without its start: a process that has loaded everything forks one for each command.

Most of a short command's time goes into loading modules, and the tests run hundreds of commands. A fork is a process
and session of its own, with its own directory, environment and output, and ends as Python ends. Tests of what only a
fresh interpreter does (what it loads, which variables it reads) start one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

# Celery and kombu look these up by name when they are first needed.
BY_NAME = (
    "celery.app.amqp",
    "celery.backends.redis",
    "celery.loaders.app",
    "kombu.transport.redis",
    "pandas",
)
PACKAGES = ("producer", "workers", "aggregate")
EXTRAS = "workers.models."  # what a vendor's SDK brings is loaded where it is asked
_LONGEST = 1 << 20


def run(words: list[str], folder: Path, environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `uplift words`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        told, tell = os.pipe()
        request = json.dumps([words, str(folder), environment]).encode()
        assert len(request) < _LONGEST
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.connect(_forking())
            socket.send_fds(asked, [request], [out.fileno(), err.fileno(), tell])
        os.close(tell)
        code = _ended(told, words, timeout)
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(), err.read().decode()


def _ended(told: int, words: list[str], timeout: float) -> int:
    """Wait for the exit code; a command that takes longer than allowed is killed."""
    with os.fdopen(told) as lines:
        pid = int(lines.readline())
        if not select.select([lines], [], [], timeout)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout)
        return int(lines.readline())


# A program that asks for a fork as `run` does, passes signals on to it and ends as it ends.
_PROGRAM = """\
import json, os, signal, socket, sys
told, tell = os.pipe()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [request], [1, 2, tell])
os.close(tell)
with os.fdopen(told) as lines:
    pid = int(lines.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(lines.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


def program(folder: Path) -> Path:
    """Write an `uplift` for scripts into a folder that goes on their PATH; its input is empty."""
    path = folder / "uplift"
    words = [sys.executable, "-P", "-m", "producer.cli"]
    if sys.platform == "linux":
        script = folder / ".uplift.py"
        script.write_text(_PROGRAM.format(address=_forking()))
        words = [sys.executable, "-I", "-S", str(script)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return path


@cache
def _forking() -> str:
    """Where the process that forks listens; it ends when this one does, however that ends."""
    ready, line = os.pipe()
    argv = [sys.executable, "-P", __file__, str(line)]
    # The directory and variables of the first test that asks are not those of the next.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "OPENBLAS_NUM_THREADS") if name in os.environ}
    process = subprocess.Popen(argv, cwd="/", env=kept, stdin=subprocess.PIPE, pass_fds=[line])
    atexit.register(process.communicate)  # closes its input, which ends it
    os.close(line)
    with os.fdopen(ready) as said:
        return "\0" + said.readline().strip()


def _serve(ready: int) -> list[str]:
    """Fork for every request. Returns in each fork, with the words to run; the process itself ends with its parent."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = f"uplift-tests-{os.getpid()}"
    listener.bind("\0" + name)
    listener.listen()
    os.write(ready, f"{name}\n".encode())
    os.close(ready)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:  # nobody writes there: it was closed
            os._exit(0)
        asked, _ = listener.accept()
        request, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 3)
        asked.close()
        if os.fork() == 0:
            listener.close()
            return _become(json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _become(request: tuple[list[str], str, dict[str, str]], out: int, err: int, tell: int) -> list[str]:
    """In the fork: start the command's own process and report its pid and end; in that process: be the command."""
    words, folder, environment = request
    command = os.fork()
    if command:
        os.write(tell, f"{command}\n".encode())
        _, status = os.waitpid(command, 0)
        os.write(tell, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(tell)
    os.setsid()
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for given, standard in ((out, 1), (err, 2)):
        os.dup2(given, standard)
        os.close(given)
    # Those that this process began with may not have been pipes.
    for name, standard, buffering in (("stdout", 1, -1), ("stderr", 2, 1)):
        was = getattr(sys, name)
        stream = os.fdopen(standard, "w", buffering, was.encoding, was.errors, closefd=False)
        setattr(sys, name, stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return words


def _load() -> None:
    for package in PACKAGES:
        found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        for name in (module.name for module in found):
            if not name.endswith("__main__") and not name.startswith(EXTRAS):
                importlib.import_module(name)
    for name in BY_NAME:
        importlib.import_module(name)


def _end(ended: SystemExit) -> None:
    """End as Python ends, but for taking all loaded modules apart, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does it: first threads, then exit functions
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        raise ended from None
    if not isinstance(ended.code, int | None):
        raise ended
    os._exit(ended.code or 0)


if __name__ == "__main__":
    _load()
    gc.freeze()
    words = _serve(int(sys.argv[1]))
    from producer.cli import main

    sys.argv = ["uplift", *words]
    try:
        main()
    except SystemExit as ended:
        _end(ended)
