"""See and end all the processes that one process has started, however they tried to get away (Linux)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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


def kill_descendants(root: int) -> None:
    """Kill until none is left: a process that forks while it is being counted is met in the next round."""
    while living := descendants(root):
        for process in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        if root == os.getpid():
            _reap()


def _reap() -> None:
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
