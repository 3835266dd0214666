"""Run a command that nobody vouches for, bounded in what it can see, change and use, and end it with all its
children.

    result = await run(
        [sys.executable, "-I", Input("bench.py"), Input("fixtures/data.csv")],
        inputs={"bench.py": b"print(1)", "fixtures": Path("suite/fixtures")},  # contents, or a file or folder
        environment={"AI_OUTPUT_FILE": Input("output.txt")},  # added to a clean environment
        timeout_seconds=60, limits=Limits(), sandbox="auto",
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
reading the environment of that user's processes, and killing them, our supervisor included.
Not covered in either: a kernel exploit; memory held in memory files, or by many processes between two looks at
it (ten a second). Run workers in a container with limits of its own when suites come from strangers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from judges import bubblewrap, cold
from judges.cold import Command, Confinement, Input, Limits, SandboxResult
from judges.confine import NOBODY
from judges.judgment import Sandbox

__all__ = ["Input", "Limits", "Probe", "SandboxResult", "confinement", "in_thread", "probe", "run"]

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
    limits: Limits | None = None,
    sandbox: Sandbox = "auto",
) -> SandboxResult:
    """Run a command to its end; cancelling this ends the command first. argv[0] is an absolute path.

    Raises SandboxUnavailable when `sandbox` is "required" and bubblewrap does not work.
    """
    command = Command(argv, timeout_seconds, inputs or {}, environment or {}, limits or Limits())
    return await in_thread(lambda cancelled: cold.run(command, confinement(sandbox), cancelled))


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
        trial = Command(
            [sys.executable, "-I", "-c", _LOOK_AROUND, *bubblewrap.package_folders()], timeout_seconds=60
        )
        try:
            result = cold.run(trial, Confinement(bubblewrap=True, user=user), threading.Event())
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
