"""For test files of suites: look at an output, and run its code where it can reach neither tests nor verdict.

    from uplift_judge import output, run_python

    def test_prints_the_primes_below_20():
        ran = run_python(output() + "\\nprint(primes(20))", timeout=5)
        assert ran.stdout.split() == ["2", "3", "5", "7", "11", "13", "17", "19"], ran.stderr

    output          the output's text, exactly as the model wrote it
    workspace       the folder with the files that an agent left
    run_python      run Python code, and see what it printed
    run_command     run a program

In a judgment, code runs in a process apart from the tests, in an empty folder of its own. It finds the output and an
agent's files (AI_OUTPUT_FILE, AI_WORKSPACE) and what is on its stdin; it cannot see `fixtures/`, nor read, change or
end the tests. So never import or `exec` code of an output in a test. Elsewhere (an editor, plain pytest with
AI_OUTPUT_FILE set) code runs as you do, with an UnguardedWarning. What else is in this module is for Uplift itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ran", "RunError", "UnguardedWarning", "output", "run_command", "run_python", "workspace"]

MAX_PRINTED_BYTES = 1024 * 1024
_MESSAGE_BYTES = 100_000
_PR_SET_DUMPABLE = 4
# Names the descriptor by which tests ask for a process; whoever starts it listens at the other end.
ASK_VARIABLE = "UPLIFT_ASK_FD"
# As `python -c` would; arguments: the descriptor with the code, and folders to import from.
PYTHON_RUNS_CODE = (
    "import sys; place, *folders = sys.argv[1:]; sys.argv[1:] = []; sys.path += folders; "
    "exec(compile(open(int(place), 'rb').read(), '<code>', 'exec'))"
)
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+uplift_judge\b", re.MULTILINE)
_WHY = {
    "timeout": "was still running when its time was up",
    "memory": "used more memory than is allowed",
    "disk": "wrote more to disk than is allowed",
}


class RunError(Exception):
    """There is no such thing, or what was run came to no end of its own; the message says why."""


class UnguardedWarning(UserWarning):
    """Code of an output runs with your rights, because this is no judgment."""


@dataclass(frozen=True)
class Ran:
    """How code ended and what it printed; the exit code is 128 + n after signal n."""

    exit_code: int
    stdout: str
    stderr: str


def output() -> str:
    """The output that is judged; raises RunError where AI_OUTPUT_FILE does not name it."""
    return _named("AI_OUTPUT_FILE", "the file with the output").read_bytes().decode()


def workspace() -> Path:
    """The folder with the files that an agent left; raises RunError where AI_WORKSPACE does not name it."""
    return _named("AI_WORKSPACE", "the folder that an agent left, and only agents leave one")


def run_python(code: str, *, stdin: str | bytes = b"", timeout: float = 10) -> Ran:
    """Run Python code as `python -c` would; raises RunError after `timeout` seconds or 1 MiB of print."""
    return _run("python", [], code.encode("utf-8", "replace"), stdin, timeout)


def run_command(
    argv: Sequence[str | os.PathLike[str]], *, stdin: str | bytes = b"", timeout: float = 10
) -> Ran:
    """Run a program with arguments; raises RunError after `timeout` seconds or 1 MiB of print."""
    if isinstance(argv, str) or not argv:
        raise ValueError("argv must be a list: the program and its arguments")
    return _run("command", [os.fspath(word) for word in argv], b"", stdin, timeout)


def _named(variable: str, what: str) -> Path:
    if variable not in os.environ:
        raise RunError(f"{variable} is not set; it names {what}")
    return Path(os.environ[variable])


def _run(role: str, argv: list[str], code: bytes, stdin: str | bytes, timeout: float) -> Ran:
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds, not {timeout}")
    given = stdin.encode("utf-8", "replace") if isinstance(stdin, str) else stdin
    with ExitStack() as held:
        files = [_file(content, held) for content in (code, given)]
        if ASK_VARIABLE not in os.environ:
            return _run_unguarded(argv, files[0], files[1], timeout)
        (out, stdout), (err, stderr) = os.pipe(), os.pipe()
        for end in (out, err):
            held.callback(os.close, end)
        try:
            reply = held.enter_context(ask(role, [*files, stdout, stderr], argv, timeout))
        finally:
            os.close(stdout)
            os.close(stderr)
        ended, *printed = _collected([reply.fileno(), out, err])
    ending, _, rest = ended.decode(errors="replace").partition(" ")
    if ending != "exited":
        why = f"did not start: {ending} {rest}" if ending else "was refused, or its judgment is over"
        raise RunError(f"what was run {_WHY.get(ending, why)} (timeout {timeout:g} s)")
    return Ran(int(rest), *(text.decode("utf-8", "replace") for text in printed))


def _file(content: bytes, held: ExitStack) -> int:
    file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - `held` closes it
    file.write(content)
    file.seek(0)
    return file.fileno()


def _collected(descriptors: list[int]) -> list[bytes]:
    """All that comes from each, to its end."""
    taken = {descriptor: bytearray() for descriptor in descriptors}
    waiting = set(descriptors)
    while waiting:
        for descriptor in select.select(waiting, [], [])[0]:
            part = os.read(descriptor, 65536)
            taken[descriptor] += part
            if not part:
                waiting.remove(descriptor)
            if len(taken[descriptor]) > MAX_PRINTED_BYTES:
                raise RunError(f"what was run printed more than {MAX_PRINTED_BYTES} bytes")
    return [bytes(content) for content in taken.values()]


def _run_unguarded(argv: list[str], code: int, stdin: int, timeout: float) -> Ran:
    warnings.warn(
        "this is no judgment of Uplift: the code runs unguarded, with your rights",
        UnguardedWarning,
        stacklevel=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                argv or [sys.executable, "-c", PYTHON_RUNS_CODE, str(code)],
                cwd=folder,
                stdin=stdin,
                capture_output=True,
                timeout=timeout,
                pass_fds=[code],
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"what was run {_WHY['timeout']} (timeout {timeout:g} s)") from None
        except OSError as failed:
            raise RunError(f"what was run did not start: {failed}") from None
    texts = (text.decode("utf-8", "replace") for text in (ended.stdout, ended.stderr))
    return Ran(ended.returncode if ended.returncode >= 0 else 128 - ended.returncode, *texts)


def is_imported_in(source: bytes) -> bool:
    """Whether a test file uses this module."""
    return _IMPORTS.search(source) is not None


def ask(role: str, descriptors: list[int], argv: Sequence[str] = (), seconds: float = 1e9) -> socket.socket:
    """Ask whoever started this process to start another, which gets code, stdin, stdout and stderr.

    What comes back tells how it ended (`exited 0`); closing it ends the process. This one hides its memory and
    descriptors first: without bubblewrap, the other one could be of the same user.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(fileno=os.dup(int(os.environ[ASK_VARIABLE]))) as asks:
        message = json.dumps({"role": role, "argv": list(argv), "seconds": seconds}).encode()
        try:
            socket.send_fds(asks, [message], [*descriptors, theirs.fileno()])
        except OSError as failed:
            ours.close()
            raise RunError(f"nothing can be run: {failed}") from None
    return ours


@dataclass(frozen=True)
class Request:
    """A process that is asked for: its role, arguments and time, its descriptors, and where to tell its end."""

    role: str
    argv: list[str]
    seconds: float
    code: int
    stdin: int
    stdout: int
    stderr: int
    reply: socket.socket

    @classmethod
    def receive(cls, asks: socket.socket) -> Request | None:
        """The request that waits; None for anything else, since whoever asks may be under another's control."""
        descriptors: list[int] = []
        try:
            told, descriptors, _, _ = socket.recv_fds(asks, _MESSAGE_BYTES, 5)
            for descriptor in descriptors:  # what is started must not answer in our name
                os.set_inheritable(descriptor, False)
            match json.loads(told):
                case {"role": str(role), "argv": list(argv), "seconds": float() | int() as seconds} if (
                    seconds > 0
                ):
                    code, stdin, stdout, stderr, reply = descriptors
                    words, most = [str(word) for word in argv], min(float(seconds), 1e9)
                    if b"\0" in os.fsencode("".join(words)):
                        raise ValueError("no argument can hold a NUL")
                    made = (code, stdin, stdout, stderr, socket.socket(fileno=reply))
                    return cls(role, words, most, *made)
        except (OSError, ValueError, ArithmeticError, RecursionError):
            pass
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def tell(self, words: str) -> None:
        """Say how it ended, if anybody still listens."""
        with suppress(OSError):
            self.reply.send(words.encode(errors="replace"), socket.MSG_DONTWAIT)

    def word(self) -> str | None:
        """What the asking side says meanwhile: `stop`, `go`, nothing (""), or None once it has closed its end."""
        try:
            return self.reply.recv(16, socket.MSG_DONTWAIT).decode(errors="replace") or None
        except BlockingIOError:
            return ""
        except OSError:
            return None

    def close(self) -> None:
        """Let go of everything that came with it."""
        for descriptor in (self.code, self.stdin, self.stdout, self.stderr):
            os.close(descriptor)
        self.reply.close()
