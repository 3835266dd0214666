"""Start a zygote and run judgments in it: the worker's side of `zygote`; blocking, for a thread."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

from judges import bubblewrap, cold, pipes, zygote
from judges.cold import Confinement, Ending, Limits, SandboxResult
from judges.pytest_plugin import Run

_CODE = ("confine.py", "process_tree.py", "pytest_plugin.py", "zygote.py")
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from judges import zygote; zygote.main()"
_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETUID", "CAP_SETGID", "CAP_SETFCAP", "CAP_KILL")
_FIXTURES = f"{bubblewrap.INPUTS}/fixtures"
_OUTPUT = f"{bubblewrap.INPUTS}/output"
_WARM_UP = f"{bubblewrap.CODE}/warm_up"
_WARM_UP_TESTS = b"""\
import pytest

@pytest.fixture
def one():
    return 1

def test_that_passes(one):
    assert one == 1

def test_that_fails(one):
    assert one == 2, "so that the code for failures is imported too"
"""


class ZygoteBroken(Exception):
    """A zygote ended before its time, or takes no more jobs: another one may do better."""


class ConstructionFailed(Exception):
    """This machine does not allow what a zygote needs; the text says what is known."""


@dataclass(frozen=True)
class Work:
    """One judgment's work: a test file of a fixtures folder, the output to test, the nonce of its report."""

    test_file: str
    fixtures: Path
    text: bytes
    nonce: str
    packages: tuple[str, ...]
    timeout_seconds: float
    limits: Limits = field(default_factory=Limits)

    def job(self) -> zygote.Job:
        test_file = f"{_FIXTURES}/{self.test_file}"
        return zygote.Job(
            run=Run(test_file, _FIXTURES, f"{_WARM_UP}/pytest.ini", self.nonce, self.packages),
            limits=cold.settings(
                self.limits, self.timeout_seconds, report_fd=-1, status_fd=-1, lifeline_fd=-1
            ),
            timeout_seconds=self.timeout_seconds,
            output_file=f"{_OUTPUT}/output.txt",
        )


class Zygote:
    """A started zygote. Several threads may run judgments in it at the same time."""

    def __init__(self, fixtures: Path, confinement: Confinement) -> None:
        self.broken = False
        self.users = 0
        self._held = ExitStack()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._held.callback(self._control.close)
        with theirs, pipes.Pipe(4096) as said:
            view = _view(cold.readable(fixtures, confinement.user, self._held))
            arguments = [str(theirs.fileno()), json.dumps(asdict(_places(confinement)))]
            self._started = bubblewrap.start(
                [sys.executable, "-I", "-c", _BOOT, bubblewrap.CODE, *arguments],
                view,
                environment=cold.environment(bubblewrap.WORK, bubblewrap.TMP),
                user=confinement.user,
                capabilities=_CAPABILITIES,
                output=said.write_end,
                keep=[theirs.fileno()],
            )
            said.handed_over()
            theirs.close()
            self._wait_until_ready(said)

    def run(self, work: Work, cancelled: threading.Event) -> SandboxResult:
        """Run one judgment to its end; all its processes are gone afterwards. Raises ZygoteBroken."""
        began = time.monotonic()
        with ExitStack() as held:
            output = held.enter_context(pipes.Pipe(work.limits.output_bytes))
            report = held.enter_context(pipes.Pipe(work.limits.report_bytes))
            status = held.enter_context(pipes.Pipe(4096))
            lifeline = held.enter_context(pipes.Lifeline())
            self._send(work, (output, report, status), lifeline)
            self._follow(work, (output, report, status), lifeline, cancelled)
            ending, code = _ended(status.taken)
            if ending == "cancelled" and (output.over or report.over):
                ending = "output"
            return SandboxResult(
                ending=ending,
                exit_code=code if ending == "exited" else None,
                output=output.taken,
                report=report.taken,
                seconds=time.monotonic() - began,
                sandboxed=True,
            )

    def close(self) -> None:
        """End the zygote and every judgment in it."""
        self._started.kill()
        self._started.close()
        self._held.close()

    def _wait_until_ready(self, said: pipes.Pipe) -> None:
        self._control.settimeout(cold.START_SECONDS)
        try:
            ready = self._control.recv(16)
        except OSError:
            ready = b""
        self._control.settimeout(None)
        if ready != b"ready":
            self.close()
            said.take()
            raise ConstructionFailed("did not start: " + said.taken.decode(errors="replace").strip()[-500:])

    def _send(self, work: Work, taps: tuple[pipes.Pipe, ...], lifeline: pipes.Lifeline) -> None:
        """Hand a job over with the descriptors that it needs, in the order of `zygote.Descriptors`."""
        text = os.memfd_create("output")
        try:
            with open(text, "wb", closefd=False) as file:
                file.write(work.text)
            os.lseek(text, 0, os.SEEK_SET)
            descriptors = [*(tap.write_end for tap in taps), text, lifeline.read_end]
            socket.send_fds(self._control, [work.job().to_json()], descriptors)
        except OSError as failed:
            raise ZygoteBroken(f"takes no job: {failed}") from failed
        finally:
            os.close(text)
        for tap in taps:
            tap.handed_over()
        lifeline.handed_over()

    def _follow(
        self, work: Work, taps: tuple[pipes.Pipe, ...], lifeline: pipes.Lifeline, cancelled: threading.Event
    ) -> None:
        """Collect what a judgment writes until its keeper is gone, which it is after all else of it."""
        output, report, status = taps
        latest = time.monotonic() + work.timeout_seconds + cold.START_SECONDS
        while status.read_end is not None:
            pipes.wait(taps, (), cold.TICK_SECONDS)
            if output.over or report.over or cancelled.is_set():
                lifeline.let_go()
            if time.monotonic() > latest:
                self._started.kill()
                raise ZygoteBroken("does not end a judgment")
        for tap in taps:
            tap.take()


def _view(fixtures: Path) -> bubblewrap.View:
    contents = {f"{bubblewrap.CODE}/{name}": content for name, content in cold.code_contents(_CODE).items()}
    contents |= {f"{_WARM_UP}/test_warm_up.py": _WARM_UP_TESTS, f"{_WARM_UP}/pytest.ini": b""}
    return bubblewrap.View(binds={_FIXTURES: fixtures}, contents=contents, folders=(_OUTPUT,))


def _places(confinement: Confinement) -> zygote.Places:
    return zygote.Places(
        root=_FIXTURES,
        output=_OUTPUT,
        work=bubblewrap.WORK,
        empty=bubblewrap.EMPTY,
        small_bytes=bubblewrap.SMALL_FILESYSTEM_BYTES,
        warm_up=f"{_WARM_UP}/test_warm_up.py",
        keep=tuple(folder for folder in bubblewrap.python_folders() if folder.startswith("/tmp/")),
        user=confinement.user,
    )


def _ended(status: bytes) -> tuple[Ending, int]:
    """How a judgment ended, as its keeper told; raises ZygoteBroken when it told nothing."""
    begun, _, told = status.decode(errors="replace").partition("\n")
    if begun.startswith("could not"):
        raise ConstructionFailed(begun)
    ending, _, code = told.partition(" ")
    for known in get_args(Ending):
        if begun == "started" and ending == known:
            return known, int(code)
    raise ZygoteBroken("ended in the middle of a judgment")
