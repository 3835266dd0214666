"""Without bubblewrap: be the parent of a confined command, and kill everything that it started when it ends.

Orphans of the command come back to this process (Linux), so a daemonised child dies too. When the worker goes
away, however it ended, the lifeline closes: the command is killed and its private folder removed. A command
of the same user that kills this process escapes it; as root the command has another user and cannot.

`descendants` and `kill_descendants` find and end all processes that one has started, however they tried to get away.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from judges.inside import drop_rights, remove_folder

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 4096
SHARED = ("/dev/shm", "/tmp", "/var/tmp")


def descendants(root: int) -> list[int]:
    """Process ids of the children of `root`, theirs, and so on; empty where /proc does not tell."""
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def resident_bytes(processes: Iterable[int]) -> int:
    """Memory that the processes hold together; pages shared by several count several times."""
    return sum(_resident_pages(process) for process in processes) * _PAGE_BYTES


def written_bytes(processes: Iterable[int]) -> int:
    """Bytes that the processes, and those of their children that have ended, caused to be written to disks."""
    return sum(_written(process) for process in processes)


def allocated_bytes(places: Iterable[Path]) -> int:
    """What files and folders with all in them take, at least a block each; what goes away meanwhile is not counted."""
    total, waiting = 0, list(places)
    for place in waiting:  # which grows meanwhile
        with suppress(OSError):
            about = place.lstat()
            total += max(_BLOCK_BYTES, about.st_blocks * 512)
            waiting += list(place.iterdir()) if stat.S_ISDIR(about.st_mode) else []
    return total


def shared_by(user: int) -> set[Path]:
    """What a user has in folders that everybody may write to; for a user with other programs, only in memory."""
    found: set[Path] = set()
    for folder in SHARED if user >= drop_rights.FIRST_PRIVATE_UID else SHARED[:1]:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    found |= {Path(entry)} if entry.stat(follow_symlinks=False).st_uid == user else set()
    return found


def kill_descendants(root: int) -> None:
    """Kill all descendants, in rounds until none is left: a process may fork while they are listed."""
    while living := descendants(root):
        kill(living)
        if root == os.getpid():
            reap()


def kill(processes: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Kill the processes that are still there and that we may kill; or send them another signal."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def reap() -> None:
    """Collect dead children, of which those that were adopted have no other parent to do it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _resident_pages(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0


def _written(process: int) -> int:
    try:
        told = Path(f"/proc/{process}/io").read_text().split()
        return int(told[told.index("write_bytes:") + 1])
    except (OSError, ValueError, IndexError):
        return 0


WRITABLE = ("work", "tmp")
_TICK_SECONDS = 0.02
_OTHERS_MAY_START = (
    192  # threads that the user's other programs may start while the command runs: a browser, agents
)
_RIGHTS_TO_CHANGE_USER = (1 << 6) | (1 << 7) | (1 << 8)  # CAP_SETGID, CAP_SETUID, CAP_SETPCAP


def main() -> None:
    """Without bubblewrap: confine a child that becomes the command, and watch over it."""
    drop_rights.confine(fork_and_watch)


def fork_and_watch(settings: drop_rights.RightsSettings) -> drop_rights.RightsSettings:
    """Return in a new child, with settings for it; the parent never returns and ends as the child ends."""
    if sys.platform == "linux":
        drop_rights.adopt_orphans()
    child = os.fork()
    if child != 0:
        _outlive(child, settings)
    os.close(settings.lifeline_fd)
    os.setsid()
    return _for_this_process(settings)


def _outlive(child: int, settings: drop_rights.RightsSettings) -> NoReturn:
    lifeline = settings.lifeline_fd
    os.closerange(0, lifeline)
    os.closerange(lifeline + 1, 256)
    ended = _watch(child, lifeline)
    if sys.platform == "linux":
        kill_descendants(os.getpid())
        for left in shared_by(private_user(os.getpid())):
            remove_folder.remove(left)
    if settings.folder is not None and _worker_is_gone(lifeline):
        remove_folder.remove(Path(settings.folder))
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


def _for_this_process(settings: drop_rights.RightsSettings) -> drop_rights.RightsSettings:
    """Settings for this child: as root a user of its own; else a process limit above what the user already runs."""
    if os.geteuid() == 0 and _may_change_user():
        user = private_user(os.getppid())
        for name in WRITABLE if settings.folder else ():
            os.chown(Path(str(settings.folder), name), user, user)
        return replace(settings, user=user)
    return replace(settings, processes=settings.processes + _tasks_of_user() + _OTHERS_MAY_START)


def private_user(supervisor: int) -> int:
    """The user whom a root worker's command becomes under a supervisor with this process id."""
    return drop_rights.FIRST_PRIVATE_UID + supervisor


def _may_change_user() -> bool:
    """Whether this root may become another user: a container may withhold the right, or the user ids."""
    if sys.platform != "linux":
        return False
    status = Path("/proc/self/status").read_text().split()
    held = int(status[status.index("CapEff:") + 1], 16)
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    last = drop_rights.FIRST_PRIVATE_UID + 2**22  # process ids stay below this
    mapped = any(
        int(first) <= drop_rights.FIRST_PRIVATE_UID and last < int(first) + int(n) for first, _, n in ranges
    )
    return mapped and held & _RIGHTS_TO_CHANGE_USER == _RIGHTS_TO_CHANGE_USER


def _tasks_of_user() -> int:
    """Count this user's threads, which the process limit counts too; 0 where /proc does not tell."""
    me = os.getuid()
    tasks = 0
    with suppress(OSError):
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                if process.name.isdigit() and process.stat().st_uid == me:
                    tasks += sum(1 for _ in (process / "task").iterdir())
    return tasks
