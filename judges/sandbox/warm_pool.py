"""Keep a few warm sandboxes and run pytest judgments in forks of them; blocking, for a thread.

A zygote is a warm interpreter in a sandbox (judges/inside/fork_server.py). One serves one fixtures folder, as long as
nothing in it changes. At most `MAX_ZYGOTES` are kept, the least recently used idle one goes first. They end with this
process, however it ends: each ends when the socket to it closes. One that breaks is replaced. Where the construction
does not work at all, `run` returns None, and judgments take a fresh sandbox each.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

from judges.inside import fork_server
from judges.inside.pytest_plugin import PytestRun
from judges.sandbox import bubblewrap, command
from judges.sandbox.command import Confinement, Ending, SandboxResult
from judges.sandbox.limits import SandboxLimits
from judges.sandbox.pipes import Pipe, Taps

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
    limits: SandboxLimits = field(default_factory=SandboxLimits)

    def job(self) -> fork_server.Job:
        test_file = f"{_FIXTURES}/{self.test_file}"
        return fork_server.Job(
            run=PytestRun(test_file, _FIXTURES, f"{_WARM_UP}/pytest.ini", self.packages),
            limits=command.settings(self.limits, self.timeout_seconds),
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
        with theirs, Pipe(4096) as said:
            arguments = [str(theirs.fileno()), json.dumps(asdict(_places(confinement)))]
            launch = bubblewrap.Launch(
                bubblewrap.boot("fork_server", *arguments, bare=False),
                _described(command.readable(fixtures, confinement.user, self._held)),
                confinement.user,
                [theirs.fileno()],
                SandboxLimits(),
                os.cpu_count() or 1,
                _CAPABILITIES,
            )
            variables = command.environment(bubblewrap.WORK, bubblewrap.TMP)
            self._started = bubblewrap.start(launch, variables, said.write_end)
            said.handed_over()
            theirs.close()
            self._wait_until_ready(said)

    def run(self, work: Work, cancelled: threading.Event) -> SandboxResult:
        """Run one judgment to its end; all its processes are gone afterwards. Raises ZygoteBroken."""
        began = time.monotonic()
        with ExitStack() as held:
            taps = Taps(work.limits.output_bytes, work.limits.report_bytes, held)
            self._send(work, taps)
            self._follow(work, taps, cancelled)
            ending, code = _ended(taps.status.taken)
            if ending == "cancelled" and taps.over:
                ending = "output"
            return SandboxResult(
                ending=ending,
                exit_code=code if ending == "exited" else None,
                output=taps.output.taken,
                report=taps.report.taken,
                seconds=time.monotonic() - began,
                sandboxed=True,
            )

    def close(self) -> None:
        """End the zygote and every judgment in it."""
        self._started.kill()
        self._started.close()
        self._held.close()

    def _wait_until_ready(self, said: Pipe) -> None:
        self._control.settimeout(command.START_SECONDS)
        try:
            ready = self._control.recv(16)
        except OSError:
            ready = b""
        self._control.settimeout(None)
        if ready != b"ready":
            self.close()
            said.take()
            raise ConstructionFailed("did not start: " + said.taken.decode(errors="replace").strip()[-500:])

    def _send(self, work: Work, taps: Taps) -> None:
        """Hand a job over with the descriptors that it needs, in the order of `fork_server.Descriptors`."""
        try:
            with ExitStack() as opened:
                text = bubblewrap.memory_file(work.text, opened)
                serves, asks = (
                    opened.enter_context(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                )
                # Past the zygote and the keeper, whose memory what tests have started may see.
                serves.send(work.nonce.encode())
                descriptors = [*(pipe.write_end for pipe in taps.pipes), text, taps.lifeline.read_end]
                descriptors += [asks.fileno(), serves.fileno()]
                socket.send_fds(self._control, [work.job().to_json()], descriptors)
        except OSError as failed:
            raise ZygoteBroken(f"takes no job: {failed}") from failed
        taps.handed_over()

    def _follow(self, work: Work, taps: Taps, cancelled: threading.Event) -> None:
        """Collect what a judgment writes until its keeper, the last of its processes, has ended."""
        latest = time.monotonic() + work.timeout_seconds + command.START_SECONDS
        while taps.status.read_end is not None:
            taps.wait((), command.TICK_SECONDS)
            if taps.over or cancelled.is_set():
                taps.lifeline.let_go()
            if time.monotonic() > latest:
                self._started.kill()
                raise ZygoteBroken("does not end a judgment")
        taps.take()


def _described(fixtures: Path) -> bubblewrap.SandboxDescription:
    contents = {f"{_WARM_UP}/test_warm_up.py": _WARM_UP_TESTS, f"{_WARM_UP}/pytest.ini": b""}
    reads = {**bubblewrap.python_folders(), _FIXTURES: fixtures}
    return bubblewrap.SandboxDescription(reads=reads, contents=contents, folders=(_OUTPUT,))


def _places(confinement: Confinement) -> fork_server.InsidePlaces:
    return fork_server.InsidePlaces(
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
    """How a judgment ended, from its keeper's status line; raises ZygoteBroken where there is none."""
    begun, _, told = status.decode(errors="replace").partition("\n")
    if begun.startswith("could not"):
        raise ConstructionFailed(begun)
    ending, _, code = told.partition(" ")
    for known in get_args(Ending):
        if begun == "started" and ending == known:
            return known, int(code)
    raise ZygoteBroken("ended in the middle of a judgment")


MAX_ZYGOTES = 4
_MAX_TRIES = 2  # of one judgment, in case a zygote breaks under it

_log = logging.getLogger(__name__)


def run(work: Work, confinement: Confinement, cancelled: threading.Event) -> SandboxResult | None:
    """Run the tests in a fork of a zygote; None when there is no working one, and a fresh sandbox must do."""
    zygotes = pool()
    for _ in range(_MAX_TRIES):
        if zygotes.why_not:
            return None
        try:
            found = zygotes.take(work.fixtures, confinement)
            try:
                return found.run(work, cancelled)
            except ZygoteBroken as broken:
                found.broken = True
                _log.info("replacing a warm sandbox that %s", broken)
            finally:
                zygotes.give_back(found)
        except (ConstructionFailed, OSError) as failed:
            zygotes.why_not = str(failed)
            _log.info("no warm sandbox on this machine, judging takes longer: %s", failed)
    return None


def close() -> None:
    """End all zygotes of this process; the next judgment starts a new one."""
    if pool.cache_info().currsize:
        pool().close()


class _Pool:
    """The zygotes of this process, the most recently used last; `why_not` is set when none could be started."""

    def __init__(self) -> None:
        self.why_not = ""
        self._lock = threading.Lock()
        self._zygotes: OrderedDict[Hashable, Zygote] = OrderedDict()

    def take(self, fixtures: Path, confinement: Confinement) -> Zygote:
        """A zygote for these fixtures, started if need be; to be given back."""
        key = (fixtures, confinement, _fingerprint(fixtures))
        with self._lock:
            found = self._zygotes.pop(key, None)
            if found is None or found.broken:
                found = Zygote(fixtures, confinement)
            self._zygotes[key] = found
            found.users += 1
            self._let_idle_ones_go()
            return found

    def give_back(self, used: Zygote) -> None:
        """Give a zygote back after a judgment; one that was replaced meanwhile ends with its last judgment."""
        with self._lock:
            used.users -= 1
            for key in [key for key, zygote in self._zygotes.items() if zygote is used and zygote.broken]:
                del self._zygotes[key]
            if used.users == 0 and used not in self._zygotes.values():
                used.close()
            self._let_idle_ones_go()

    def close(self) -> None:
        with self._lock:
            while self._zygotes:
                self._zygotes.popitem()[1].close()

    def _let_idle_ones_go(self) -> None:
        idle = [key for key, zygote in self._zygotes.items() if zygote.users == 0]
        for key in idle[: max(0, len(self._zygotes) - MAX_ZYGOTES)]:
            self._zygotes.pop(key).close()


def _fingerprint(folder: Path) -> Hashable:
    """Changes when a file of the folder is added, removed or written: a zygote may have been given a copy."""
    found = []
    for entry in os.scandir(folder):
        about = entry.stat(follow_symlinks=False)
        inside = _fingerprint(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else None
        found.append((entry.name, about.st_ino, about.st_size, about.st_mtime_ns, inside))
    return hash(tuple(sorted(found, key=lambda told: told[0])))


@functools.cache
def pool() -> _Pool:
    """The zygotes of this process."""
    atexit.register(close)
    return _Pool()


# A forked child has none of the threads, and must leave its parent's zygotes alone.
os.register_at_fork(after_in_child=pool.cache_clear)
