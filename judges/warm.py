"""Keep a few warm sandboxes and run pytest judgments in forks of them; blocking, for a thread.

One zygote serves one fixtures folder, as long as nothing in it changes. At most `MAX_ZYGOTES` are kept, the
least recently used idle one goes first. They end with this process, however it ends: each ends when the
socket to it closes. One that breaks is replaced. Where the construction does not work at all, `run` returns
None, and judgments take a fresh sandbox each.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path

from judges.cold import Confinement, SandboxResult
from judges.zygote_client import ConstructionFailed, Work, Zygote, ZygoteBroken

MAX_ZYGOTES = 4
_MAX_TRIES = 2  # of one judgment, in case a zygote breaks under it

_log = logging.getLogger(__name__)


def run(work: Work, confinement: Confinement, cancelled: threading.Event) -> SandboxResult | None:
    """Run the tests in a fork of a zygote; None when there is no working one, and a fresh sandbox must do."""
    pool = _pool()
    for _ in range(_MAX_TRIES):
        if pool.why_not:
            return None
        try:
            found = pool.take(work.fixtures, confinement)
            try:
                return found.run(work, cancelled)
            except ZygoteBroken as broken:
                found.broken = True
                _log.info("replacing a warm sandbox that %s", broken)
            finally:
                pool.give_back(found)
        except (ConstructionFailed, OSError) as failed:
            pool.why_not = str(failed)
            _log.info("no warm sandbox on this machine, judging takes longer: %s", failed)
    return None


def why_not() -> str:
    """Why this process makes no warm sandboxes; empty while it has no reason not to."""
    return _pool().why_not


def close() -> None:
    """End all zygotes of this process; the next judgment starts a new one."""
    if _pool.cache_info().currsize:
        _pool().close()


class _Pool:
    """The zygotes of this process, the most recently used last; `why_not` is set once the construction
    failed.
    """

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
        """Say that a judgment is over; a zygote that was replaced meanwhile ends with its last one."""
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
def _pool() -> _Pool:
    atexit.register(close)
    return _Pool()


# A forked child has none of the threads, and must leave its parent's zygotes alone.
os.register_at_fork(after_in_child=_pool.cache_clear)
