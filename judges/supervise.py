"""Without bubblewrap: stay behind as the parent of a confined command and make sure that nothing of it
remains.

Orphans of the command come back to this process (Linux), so a daemonised child dies too. When the worker goes
away, however it ended, the lifeline closes: the command is killed and its private folder removed. A command
of the same user that kills this process escapes it; as root the command has another user and cannot.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from judges import confine, process_tree

WRITABLE = ("work", "tmp")
_TICK_SECONDS = 0.02
_RIGHTS_TO_CHANGE_USER = (1 << 6) | (1 << 7) | (1 << 8)  # CAP_SETGID, CAP_SETUID, CAP_SETPCAP


def fork_and_watch(settings: confine.Settings) -> confine.Settings:
    """Return in a new child, with settings for it; the parent never returns and ends as the child ends."""
    if sys.platform == "linux":
        confine.adopt_orphans()
    child = os.fork()
    if child != 0:
        _outlive(child, settings)
    os.close(settings.lifeline_fd)
    os.setsid()
    return _for_this_process(settings)


def _outlive(child: int, settings: confine.Settings) -> NoReturn:
    lifeline = settings.lifeline_fd
    os.closerange(0, lifeline)
    os.closerange(lifeline + 1, 256)
    ended = _watch(child, lifeline)
    if sys.platform == "linux":
        process_tree.kill_descendants(os.getpid())
    if settings.folder is not None and _worker_is_gone(lifeline):
        shutil.rmtree(settings.folder, ignore_errors=True)
    os._exit(128 + os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended))


def _watch(child: int, lifeline: int) -> int:
    """Wait for the child, killing it when told to or when the worker is gone; its wait status."""
    told_to_end = False
    while True:
        reaped, ended = os.waitpid(child, os.WNOHANG)
        if reaped:
            _kill_session(child)
            return ended
        if told_to_end:
            # Again and again: it may not yet have had a session of its own to kill.
            _kill_session(child)
            os.kill(child, signal.SIGKILL)
            time.sleep(_TICK_SECONDS)
        else:
            told_to_end = bool(select.select([lifeline], [], [], _TICK_SECONDS)[0])


def _kill_session(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _worker_is_gone(lifeline: int) -> bool:
    os.set_blocking(lifeline, False)
    try:
        while os.read(lifeline, 64):
            pass
    except BlockingIOError:
        return False
    return True


def _for_this_process(settings: confine.Settings) -> confine.Settings:
    """A user of its own where this is root; else a process limit on top of what the user already runs."""
    if os.geteuid() == 0 and _may_change_user():
        user = confine.FIRST_PRIVATE_UID + os.getpid()
        for name in WRITABLE if settings.folder else ():
            os.chown(Path(str(settings.folder), name), user, user)
        return replace(settings, user=user)
    return replace(settings, processes=settings.processes + _tasks_of_user())


def _may_change_user() -> bool:
    """Whether this root has the rights, and the user ids, to become somebody else: a container may withhold
    either.
    """
    if sys.platform != "linux":
        return False
    status = Path("/proc/self/status").read_text().split()
    held = int(status[status.index("CapEff:") + 1], 16)
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = confine.FIRST_PRIVATE_UID + 2**22  # process ids stay below this
    mapped = any(
        int(first) <= confine.FIRST_PRIVATE_UID and last < int(first) + int(n) for first, _, n in ranges
    )
    return mapped and held & _RIGHTS_TO_CHANGE_USER == _RIGHTS_TO_CHANGE_USER


def _tasks_of_user() -> int:
    """Threads of all processes of this user, which is what the process limit counts; 0 where /proc does not
    tell.
    """
    me = os.getuid()
    tasks = 0
    with suppress(OSError):
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == me:
                    tasks += sum(1 for _ in (process / "task").iterdir())
    return tasks
