"""Talk to one version of the code under test: an interpreter of its own, in its own process group.

It is asked one thing at a time over a pipe, and stopped (SIGSTOP) between questions. Runs inside the
sandbox, where nothing of this package exists but its caller, benchmark_runner, and the script that it
starts, benchmark_child.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_REPLY_BYTES = 4 * 1024 * 1024


class Broken(Exception):
    """A version of the code crashed, raised or went silent."""

    def __init__(self, version: Version, why: str) -> None:
        super().__init__(why)
        self.version = version


class OutOfTime(Broken):
    """The time was up while a version was at work."""


class Version:
    """One version of the code, in its own interpreter and process group, stopped while others are timed."""

    def __init__(self, role: str, deadline: float) -> None:
        self.role = role
        self.deadline = deadline
        self.busy_seconds = 0.0
        self.holds: dict[str, Any] = {}

    def start(self, solution: str, benchmarks: str) -> None:
        """Load both files, and wait to be asked."""
        script = str(Path(__file__).with_name("benchmark_child.py"))
        self.process = subprocess.Popen(
            # As isolated as -I but for the environment: with one hash seed, sets behave alike for all.
            [sys.executable, "-s", "-P", "-B", script, solution, benchmarks],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self.holds = self._receive("loading")
        self.signal(signal.SIGSTOP)

    def ask(self, **request: object) -> Any:
        """The answer to one request."""
        self.signal(signal.SIGCONT)
        self._send(request)
        answer = self._receive(str(request.get("name", request["do"])))
        self.signal(signal.SIGSTOP)
        return answer

    def seconds(self, name: str, number: int) -> float:
        """Wall time of `number` calls of a benchmark, after its setup, measured from out here."""
        self.signal(signal.SIGCONT)
        self._send({"do": "time", "name": name, "number": number})
        self._receive(name)
        begun = time.perf_counter()
        self._send("run")
        self._receive(name)
        elapsed = time.perf_counter() - begun
        self.signal(signal.SIGSTOP)
        return elapsed

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _send(self, message: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # reading will tell
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def _receive(self, doing: str) -> Any:
        assert self.process.stdout is not None
        begun = time.perf_counter()
        received = b""
        try:
            while not received.endswith(b"\n"):
                left = self.deadline - time.monotonic()
                if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                    raise OutOfTime(self, f"{doing}: not done when the time was up")
                part = os.read(self.process.stdout.fileno(), 65536)
                received += part
                if not part:
                    raise Broken(self, f"{doing}: the process ended")
                if len(received) > MAX_REPLY_BYTES:
                    raise Broken(self, f"{doing}: more than {MAX_REPLY_BYTES} bytes came back")
        finally:
            self.busy_seconds += time.perf_counter() - begun
        try:
            answer = json.loads(received)
        except ValueError:
            raise Broken(self, f"{doing}: something other than an answer came back") from None
        if isinstance(answer, dict) and "failed" in answer:
            raise Broken(self, f"{doing}: {answer['failed']}")
        return answer
